//! `forebay bench starvation`, as a user runs it: what its report says is what happened.

use std::process::Output;
use std::time::Duration;

use forebay_testkit::{Fault, FaultProxy, When, image, label};
use forebay_tests::{Daemon, Installation, Origin, UserHome, eventually, png};
use serde_json::Value;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 4;
const SAMPLES: u64 = 20;
const BATCH: u64 = 8;

/// Full batches of an epoch.
const BATCHES: u64 = SHARDS * SAMPLES / BATCH;

/// Seconds between the two clocks of half of the waits, at most: a call and its return.
const CALL: f64 = 0.000_2;

/// The same of any wait, on a machine that is busy.
const INTERRUPTED: f64 = 0.001;

/// Runs the benchmark on raw samples, whose steps compute next to nothing.
fn starvation(home: &UserHome, origin: &Origin, more: &[&str]) -> Output {
    home.forebay(&["bench", "starvation", "s3://bucket/{0..3}.tar", "--daemon", "embedded"])
        .args(["--raw", "--step", "0.001"])
        .args(more)
        .envs(origin.environment())
        .output()
        .unwrap()
}

/// The same, where the store stands behind a proxy.
fn through(proxy: &FaultProxy, home: &UserHome, origin: &Origin, more: &[&str]) -> Output {
    home.forebay(&["bench", "starvation", "s3://bucket/{0..3}.tar", "--daemon", "embedded"])
        .args(["--raw", "--step", "0.001"])
        .args(more)
        .envs(origin.environment())
        .env("AWS_ENDPOINT_URL", proxy.endpoint())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn number(epoch: &Value, pointer: &str) -> f64 {
    epoch.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}: {epoch}"))
}

/// Asserts what holds of every epoch: sums are sums, and the first step is not counted.
fn assert_sound(epoch: &Value) {
    let steps = BATCHES - 1;
    assert_eq!(epoch["steps"], steps);
    assert_eq!(epoch["samples"], steps * BATCH);
    assert_eq!(epoch["wait"]["count"], steps);
    let by_cause = epoch["wait"]["by_cause"].as_object().unwrap();
    let sum: f64 = by_cause.values().map(|seconds| seconds.as_f64().unwrap()).sum();
    let total = number(epoch, "/wait/total_seconds");
    assert!((sum - total).abs() <= 1e-6 * total.max(1.0), "{sum} {total}");
    // The same by two clocks; a call itself takes some microseconds that nobody waited.
    let measured = number(epoch, "/wait/measured_seconds");
    let allowed = 0.01 * total + INTERRUPTED * steps as f64;
    assert!((measured - total).abs() <= allowed, "{measured} {total}");
    let raw = &epoch["accelerators"][0]["raw"];
    let summed = |of: &Value| of.as_array().unwrap().iter().filter_map(Value::as_f64).sum::<f64>();
    assert_eq!(raw["wait_seconds"].as_array().unwrap().len() as u64, steps);
    assert!((summed(&raw["wait_seconds"]) - measured).abs() < 1e-6, "{raw}");
    let causes = raw["by_cause"].as_object().unwrap();
    assert!(causes.keys().eq(by_cause.keys()), "{raw}");
    for (name, steps) in causes {
        assert!((summed(steps) - by_cause[name].as_f64().unwrap()).abs() < 1e-6, "{name}");
    }
    // Quantiles are those of the waits, to three digits.
    let mut waits: Vec<f64> =
        raw["wait_seconds"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    waits.sort_by(f64::total_cmp);
    for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)] {
        let told = number(epoch, &format!("/wait/{name}_seconds"));
        let wait = waits[(share * steps as f64).ceil() as usize - 1];
        assert!((told - wait).abs() <= 1e-3 * wait + 2e-9, "{name}: {told} {wait}");
    }
    let of_step = |cause: &Value, step: usize| cause[step].as_f64().unwrap();
    let mut unbooked: Vec<f64> = (0..steps as usize)
        .map(|step| {
            let booked: f64 = causes.values().map(|cause| of_step(cause, step)).sum();
            of_step(&raw["wait_seconds"], step) - booked
        })
        .collect();
    unbooked.sort_by(f64::total_cmp);
    assert!(unbooked[unbooked.len() / 2] <= CALL, "{unbooked:?}");
    let long = raw["wait_seconds"].as_array().unwrap().iter();
    let long = long.filter(|wait| wait.as_f64().unwrap() > 0.1 * 0.001).count();
    assert_eq!(epoch["wait"]["stalls"], long);
    let wall = number(epoch, "/wall_seconds");
    assert!(total <= wall, "{total} {wall}");
    let ideal = steps as f64 * 0.001 / wall;
    assert!((number(epoch, "/au_ideal") - ideal).abs() < 1e-9, "{epoch}");
    // Sleepers oversleep, and never wake too early.
    let (computed, rest) = (number(epoch, "/au_measured"), 1.0 - total / wall);
    assert!(computed >= ideal && computed <= rest + 1e-6, "{ideal} {computed} {rest}");
    // DLIO counts nominal time, over all but the first step, which ends when what is counted
    // begins.
    let of = |name: &str| number(epoch, &format!("/accelerators/0/{name}_seconds"));
    let counted = of("whole") - of("first_step");
    assert!(counted >= wall && of("first_step") >= of("first_batch") + 0.001, "{epoch}");
    let dlio = number(epoch, "/au_dlio");
    assert!((dlio - steps as f64 * 0.001 / counted).abs() < 1e-9 && dlio <= ideal, "{epoch}");
    let by_tier = epoch["by_tier"].as_object().unwrap().values();
    let read = by_tier.map(|bytes| bytes.as_u64().unwrap()).sum::<u64>() as f64;
    assert!(read >= number(epoch, "/tier_bytes"), "{epoch}");
    let payload = number(epoch, "/tier_bytes") + number(epoch, "/origin_bytes");
    let least = (steps * BATCH) as f64 * SIZES.start as f64;
    assert!(payload >= least, "{payload} {least}");
    assert!((number(epoch, "/bytes_per_second") * wall - payload).abs() < 1.0, "{epoch}");
}

/// A cache that was empty is cold once, whether or not bytes came by way of the tier.
#[test]
fn report_separates_cold_from_warm_epochs() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let report = said(&starvation(&home, &origin, &["--batch-size", "8", "--json"]));
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["batch_size"], &report["step_seconds"]), (&8.into(), &0.001.into()));
    let epochs = report["epochs"].as_array().unwrap();
    let names: Vec<_> = epochs.iter().map(|epoch| epoch["temperature"].as_str().unwrap()).collect();
    assert_eq!(names, ["cold", "warm"]);
    let stored: usize = (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len()).sum();
    assert_eq!(epochs[0]["fetched_bytes"], stored);
    assert_eq!(epochs[1]["fetched_bytes"], 0);
    epochs.iter().for_each(assert_sound);

    // Another daemon on the same cache: warm from its first epoch on, in text too.
    eventually("no daemon is left", || home.daemons().is_empty());
    let more = ["--batch-size", "8", "--epochs", "1"];
    let text = said(&starvation(&home, &origin, &more));
    assert!(text.contains("(warm)"), "{text}");

    // A shard that is new makes an epoch that fetches some of its bytes.
    let bytes = origin.bytes("3.tar");
    origin.put("3.tar", &[bytes, vec![0; 10_240]].concat());
    eventually("no daemon is left", || home.daemons().is_empty());
    let text = said(&starvation(&home, &origin, &more));
    assert!(text.contains("(mixed)"), "{text}");
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// The first step is not counted; an epoch that has no other has no figures.
#[test]
fn single_batch_epoch_is_rejected_with_advice() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    for batch in ["80", "81"] {
        let output = starvation(&home, &origin, &["--batch-size", batch]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("--batch-size"), "{error}");
        assert!(output.stdout.is_empty());
    }
    eventually("no daemon is left", || home.daemons().is_empty());
}

fn document(output: &Output) -> Value {
    serde_json::from_str(&said(output)).unwrap()
}

/// Asserts that the command line was refused, and said `what`.
fn assert_misused(output: &Output, what: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(what), "{error}");
}

/// Writes a manifest of the shards, and returns its path.
fn indexed(home: &UserHome, origin: &Origin, folder: &std::path::Path) -> String {
    let manifest = folder.join("m.json").to_str().unwrap().to_owned();
    let mut index = home.forebay(&["index", "s3://bucket/{0..3}.tar", "-o", &manifest]);
    let index = index.args(["--daemon", "embedded"]).envs(origin.environment()).output().unwrap();
    assert!(index.status.success(), "{}", String::from_utf8_lossy(&index.stderr));
    manifest
}

/// Several accelerators are the ranks of one job: all samples go to one or the other, once.
#[test]
fn accelerators_share_an_epoch() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let two = ["--accelerators", "2", "--batch-size", "5"];
    assert_misused(&starvation(&home, &origin, &two), "forebay index");
    let folder = tempfile::tempdir().unwrap();
    let manifest = indexed(&home, &origin, folder.path());
    let more = [&two[..], &["--manifest", &manifest, "--json"]].concat();
    let report = document(&starvation(&home, &origin, &more));
    for epoch in report["epochs"].as_array().unwrap() {
        let ranks = epoch["accelerators"].as_array().unwrap();
        let steps: Vec<_> = ranks.iter().map(|rank| rank["steps"].as_u64().unwrap()).collect();
        // Of 40 samples a rank the first five are not counted.
        assert_eq!(steps, [7, 7]);
        assert_eq!((&epoch["steps"], &epoch["samples"]), (&14.into(), &70.into()));
        let walls: f64 = ranks.iter().map(|rank| number(rank, "/wall_seconds")).sum();
        assert!((number(epoch, "/au_ideal") - 14.0 * 0.001 / walls).abs() < 1e-9, "{epoch}");
    }
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Saves are part of the wall time and of no wait for a batch, and reach the store.
#[test]
fn saves_between_steps_are_told_apart() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let asked = ["--batch-size", "8", "--epochs", "2", "--json", "--checkpoint-every", "4"];
    assert_misused(&starvation(&home, &origin, &asked), "--checkpoint-to");
    let to = ["--checkpoint-to", "s3://bucket/saves", "--checkpoint-bytes", "5000001"];
    let report = document(&starvation(&home, &origin, &[&asked[..], &to].concat()));
    let saves = &report["configuration"]["saves"];
    assert_eq!(saves["to"], "s3://bucket/saves");
    assert_eq!((&saves["every"], &saves["bytes"]), (&4.into(), &5_000_001.into()));
    for epoch in report["epochs"].as_array().unwrap() {
        assert_sound(epoch);
        // After four of the nine counted steps, and after eight.
        assert_eq!(epoch["saves"]["count"], 2);
        assert_eq!(epoch["saves"]["bytes"], 2 * 5_000_001);
        let (wall, steps) = (number(epoch, "/wall_seconds"), number(epoch, "/steps"));
        let saved = number(epoch, "/saves/total_seconds");
        assert!(
            saved > 0.0 && saved <= 2.0 * number(epoch, "/saves/max_seconds") + 0.01,
            "{epoch}"
        );
        assert!(number(epoch, "/wait/measured_seconds") + steps * 0.001 + saved <= wall, "{epoch}");
        let without = steps * 0.001 / (wall - saved);
        assert!((number(epoch, "/saves/au_ideal_without") - without).abs() < 1e-6, "{epoch}");
    }
    // The daemon ends once all is uploaded.
    eventually("no daemon is left", || home.daemons().is_empty());
    assert_eq!(origin.bytes("saves/rank-0").len(), 5_000_001);
}

/// Shards with known samples that no step reaches are left out: the daemon would prefetch them.
#[test]
fn few_steps_need_few_shards() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let folder = tempfile::tempdir().unwrap();
    let manifest = indexed(&home, &origin, folder.path());
    let more = ["--manifest", &manifest, "--batch-size", "8", "--json", "--steps", "3"];
    let stored = |shards| {
        let names = (0..shards).map(|n| format!("{n}.tar"));
        names.map(|name| origin.bytes(&name).len() as u64).sum::<u64>()
    };
    // Three steps take 24 samples; of shards that are mixed all are read.
    for (window, shards) in [("0", 2), ("3", 3)] {
        let home = UserHome::new(ACTOR);
        let more = [&more[..], &["--window", window]].concat();
        let report = document(&starvation(&home, &origin, &more));
        let epochs = report["epochs"].as_array().unwrap();
        assert_eq!(report["configuration"]["urls"], serde_json::json!(["s3://bucket/{0..3}.tar"]));
        assert_eq!(report["configuration"]["shards"], shards);
        assert_eq!(epochs[0]["fetched_bytes"], stored(shards));
        assert_eq!((&epochs[1]["temperature"], &epochs[1]["steps"]), (&"warm".into(), &2.into()));
        eventually("no daemon is left", || home.daemons().is_empty());
    }
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Cold, cached and synthetic steps are told apart, and only where there are such.
#[test]
fn stalls_are_separated_by_difference() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let more = ["--batch-size", "8", "--differential", "--json"];
    let report = document(&starvation(&home, &origin, &more));
    let parts = &report["differential"];
    let of = |name: &str| number(parts, &format!("/{name}_seconds"));
    assert!(of("synthetic_step") >= 0.001, "{parts}");
    for (epoch, name) in ["cold_step", "cached_step"].into_iter().enumerate() {
        let epoch = &report["epochs"][epoch];
        let step = number(epoch, "/wall_seconds") / number(epoch, "/steps");
        assert!((of(name) - step).abs() < 1e-9, "{report}");
    }
    let (cold, cached, synthetic) = (of("cold_step"), of("cached_step"), of("synthetic_step"));
    assert!((of("fetch_stall") - (cold - cached)).abs() < 1e-9, "{parts}");
    assert!((of("prep_stall") - (cached - synthetic)).abs() < 1e-9, "{parts}");

    // The cache is full by now: there is nothing to tell apart, but what was asked for beside that
    // is told.
    eventually("no daemon is left", || home.daemons().is_empty());
    let more = [&more[..], &["--find-most", "--trial", "1"]].concat();
    let output = starvation(&home, &origin, &more);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("FOREBAY_CACHE"), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.get("differential").is_none() && report["held"]["trials"].is_array());
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// A store that answers late lets a cold epoch wait for its first batch, and a warm one not.
#[test]
fn late_first_batch_is_reported() {
    const LATE: Duration = Duration::from_secs(2);
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    proxy.set([(When::get().of("/0.tar"), Fault::Delay(LATE))]);
    let home = UserHome::new(ACTOR);
    let report = document(&through(&proxy, &home, &origin, &["--batch-size", "8", "--json"]));
    let epochs = report["epochs"].as_array().unwrap();
    let (cold, warm) = (&epochs[0], &epochs[1]);
    for of_first in ["/first_batch_seconds", "/accelerators/0/first_batch_seconds"] {
        assert!(number(cold, of_first) >= LATE.as_secs_f64(), "{cold}");
        assert!(number(warm, of_first) < LATE.as_secs_f64(), "{warm}");
    }
    // It is in no wait.
    assert!(number(cold, "/wait/measured_seconds") < LATE.as_secs_f64(), "{cold}");
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// A late store's delay in a cold epoch is a fetch stall, by difference and by cause.
#[test]
fn late_store_is_a_fetch_stall() {
    const LATE: Duration = Duration::from_secs(3);
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    // Not the first shard, whose batch is not counted.
    proxy.set([(When::get().of("/3.tar"), Fault::Delay(LATE))]);
    let home = UserHome::new(ACTOR);
    let more = ["--batch-size", "8", "--differential", "--json"];
    let parts = &document(&through(&proxy, &home, &origin, &more))["differential"];
    let of = |name: &str| number(parts, &format!("/{name}_seconds"));
    let (fetch, prep) = (of("fetch_stall"), of("prep_stall"));
    // It was asked for while batches before it were played, which takes far less than the half of
    // that.
    assert!(fetch * (BATCHES - 1) as f64 >= LATE.as_secs_f64() / 2.0, "{parts}");
    assert!(fetch >= 0.95 * (fetch + prep) && prep.abs() <= 0.05 * fetch, "{parts}");
    assert!((of("booked_fetch") - fetch).abs() <= 0.05 * fetch, "{parts}");
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Images that take long to decode are a prep stall, however warm or cold the epoch.
#[test]
fn slow_decoding_is_a_prep_stall() {
    const SIDE: u32 = 2000;
    let (origin, home) = (Origin::new(), UserHome::new(ACTOR));
    let image = png(SIDE);
    let mut tar = tar::Builder::new(Vec::new());
    for sample in 0..24 {
        for (field, data) in [("png", &image[..]), ("cls", b"1")] {
            let mut header = tar::Header::new_ustar();
            header.set_size(data.len() as u64);
            tar.append_data(&mut header, format!("{sample:06}.{field}"), data).unwrap();
        }
    }
    origin.put("0.tar", &tar.into_inner().unwrap());
    let mut command = home.forebay(&["bench", "starvation", "s3://bucket/0.tar", "--json"]);
    command.args(["--daemon", "embedded", "--step", "0.001", "--batch-size", "4"]);
    command.args(["--threads", "1", "--differential"]).envs(origin.environment());
    let parts = &document(&command.output().unwrap())["differential"];
    let of = |name: &str| number(parts, &format!("/{name}_seconds"));
    // Sixteen million pixels a step. On a busy machine two epochs of them differ by half.
    assert!(of("prep_stall") >= 0.01, "{parts}");
    assert!(of("prep_stall") >= of("fetch_stall").abs(), "{parts}");
    assert!(of("booked_fetch") <= 0.5 * of("prep_stall"), "{parts}");
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Bytes are reported for each of two tiers: all bytes cached there, little more, and none without
/// reads.
#[test]
fn bytes_are_reported_by_tier() {
    const MEMORY: u64 = 512 << 20;
    /// Reads of a disk are of whole sectors: a member's begin and end in some that others have,
    /// too.
    const SECTORS: u64 = 2 * 4096;
    let (origin, disk) = (Origin::with_shards(SHARDS, SAMPLES, &SIZES), Daemon::disk());
    let rest = format!(
        "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n\
         [[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '64MiB'\n{}\
         [[dataset]]\nname = 'one'\nmatch = 's3://bucket/0.tar'\ntiers = ['nvme']\n\
         [[dataset]]\nname = 'other'\nmatch = 's3://bucket/*.tar'\ntiers = ['ram']\n",
        disk.path().join("cache"),
        origin.rule(),
    );
    let installation = Installation::new(ACTOR, disk.path(), MEMORY, &rest);
    let daemon = installation.start();
    let payload = |shards: std::ops::Range<u64>| -> u64 {
        let samples = shards.flat_map(|n| (0..SAMPLES).map(move |i| (n, i)));
        samples.map(|(n, i)| (image(n, i, &SIZES).len() + label(n, i).len()) as u64).sum()
    };
    let played = |urls: &str| -> Value {
        let mut command = installation.forebay(&["bench", "starvation", urls, "--raw", "--json"]);
        command.args(["--step", "0.001", "--batch-size", "4"]).envs(origin.environment());
        let report = document(&command.output().unwrap());
        let warm = report["epochs"][1].clone();
        assert_eq!(warm["temperature"], "warm", "{warm}");
        warm
    };
    let stored = |shards: std::ops::Range<u64>| -> u64 {
        shards.map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).sum()
    };
    let warm = played("s3://bucket/{0..3}.tar");
    let read = |name: &str| warm["by_tier"][name].as_u64().unwrap();
    // What lies between members is read with them.
    assert!((payload(1..4)..=stored(1..4)).contains(&read("ram")), "{warm}");
    let most = stored(0..1) + SAMPLES * SECTORS;
    assert!((payload(0..1)..=most).contains(&read("nvme")), "{warm}");
    assert_eq!(warm["delivered_bytes"], payload(0..4));
    let of_memory = read("ram");
    // What is not asked of a tier is not told of it, and the rest is the same to the byte.
    let warm = played("s3://bucket/{1..3}.tar");
    assert_eq!(warm["by_tier"], serde_json::json!({ "nvme": 0, "ram": of_memory }));
    daemon.stop();
}

/// Shards are told as they were named, so that the hash of what was asked is the same wherever they
/// lie.
#[test]
fn equal_configurations_have_equal_hashes() {
    let origin = Origin::with_shards(1, 4 * SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let run = |folder: &tempfile::TempDir, more: &[&str]| {
        std::fs::write(folder.path().join("0.tar"), origin.bytes("0.tar")).unwrap();
        let mut command = home.forebay(&["bench", "starvation", "./[0-9].tar", "--raw"]);
        command.args(["--daemon", "embedded", "--step", "0.001", "--batch-size", "8", "--json"]);
        let report = document(&command.args(more).current_dir(folder.path()).output().unwrap());
        assert_eq!(report["configuration"]["urls"], serde_json::json!(["./[0-9].tar"]));
        assert_eq!(report["configuration"]["shards"], 1);
        report["configuration_sha256"].clone()
    };
    let one = run(&folders[0], &[]);
    assert_eq!(one, run(&folders[1], &[]));
    assert_ne!(one, run(&folders[1], &["--prefetch", "5"]));
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// The number of accelerators a node feeds comes from a longer trial; an unconfirmed number is not
/// reported.
#[test]
fn find_most_finds_the_accelerators_a_node_feeds() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let more = ["--batch-size", "8", "--find-most", "--trial", "1", "--json"];
    let report = document(&starvation(&home, &origin, &more));
    let held = &report["held"];
    let trials = held["trials"].as_array().unwrap();
    assert!(trials.len() >= 3 && trials[0]["speed"].is_null(), "{held}");
    for trial in trials {
        let rate = number(trial, "/samples") / number(trial, "/seconds");
        assert!((number(trial, "/samples_per_second") - rate).abs() < 1e-6 * rate, "{trial}");
        assert_eq!(trial["fetched_bytes"], 0);
    }
    let longer = trials.iter().filter(|trial| number(trial, "/seconds") >= 3.0);
    let told = longer.rev().find(|trial| trial["speed"] == held["speed"]).unwrap();
    assert_eq!(held["au_ideal"], told["au_ideal"]);
    // One accelerator takes 8 samples a millisecond.
    let fed = number(told, "/samples_per_second") / 8000.0;
    match held["accelerators"].as_f64() {
        Some(accelerators) => {
            assert!((accelerators - fed).abs() < 1e-9, "{held}");
            assert!(number(held, "/au_ideal") >= 0.9, "{held}");
        }
        None => assert!(number(held, "/au_ideal") < 0.9, "{held}"),
    }
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// A page stands alone, whatever the shards are called, and holds its own document.
#[test]
fn html_report_is_complete_and_self_contained() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let odd = "<script>alert(1)<.tar";
    origin.put(odd, &origin.bytes("0.tar"));
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let mut command = home.forebay(&["bench", "starvation", "--daemon", "embedded", "--raw"]);
    let command =
        command.args(["--step", "0.001", "--batch-size", "4", "--find-most", "--trial", "1"]);
    let url = format!("s3://bucket/{odd}");
    let output = command.args(["--html", page.to_str().unwrap(), &url]);
    said(&output.envs(origin.environment()).output().unwrap());
    let html = std::fs::read_to_string(&page).unwrap();
    // Causes, two timelines, the search.
    assert_eq!(html.matches("<svg").count(), 4);
    // No address but the name of SVG's language.
    let elsewhere: Vec<_> = html.match_indices("http").map(|(at, _)| &html[at..at + 26]).collect();
    assert!(elsewhere.iter().all(|url| *url == "http://www.w3.org/2000/svg"), "{elsewhere:?}");
    assert_eq!(html.matches("<script").count() - html.matches("<script>alert").count(), 1);
    let (_, raw) = html.split_once(r#"id="report">"#).unwrap();
    let (raw, _) = raw.split_once("</script>").unwrap();
    let raw: Value = serde_json::from_str(raw).unwrap();
    assert_eq!(raw["configuration"]["urls"], serde_json::json!([url]));
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Two runs side by side, as their documents say; what is none is refused.
#[test]
fn runs_are_compared() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, batch: &str| {
        let output = starvation(&home, &origin, &["--batch-size", batch, "--json"]);
        let file = folder.path().join(name);
        std::fs::write(&file, said(&output)).unwrap();
        file
    };
    let (one, other) = (run("one.json", "8"), run("other.json", "4"));
    let compare = |one: &std::path::Path, other: &std::path::Path, more: &[&str]| {
        let files = [one.to_str().unwrap(), other.to_str().unwrap()];
        home.forebay(&["bench", "compare"]).args(files).args(more).output().unwrap()
    };
    let same = document(&compare(&one, &one, &["--json"]));
    assert_eq!(same["differ"], serde_json::json!([]));
    let changes = same["changes"].as_array().unwrap();
    assert!(changes.len() >= 16 && changes.iter().all(|change| change["is_better"].is_null()));
    let differ = document(&compare(&one, &other, &["--json"]))["differ"].clone();
    assert_eq!((&differ[0][1], &differ[0][2]), (&8.into(), &4.into()), "batch sizes: {differ}");
    assert!(said(&compare(&one, &other, &[])).lines().next().unwrap().contains("8 and 4"));
    std::fs::write(&one, "{}").unwrap();
    let output = compare(&one, &other, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--json"));
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// A workload of one's own says what it is.
#[test]
fn custom_profile_needs_its_figures() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let output = starvation(&home, &origin, &["--profile", "custom"]);
    assert_misused(&output, "--batch-size");
    for wrong in [&["--accelerators", "0"][..], &["--find-most", "--trial", "0"], &["--trial", "3"]]
    {
        assert_misused(&starvation(&home, &origin, wrong), "error");
    }
    let more = ["--profile", "custom", "--batch-size", "8", "--epochs", "1", "--json"];
    assert_eq!(document(&starvation(&home, &origin, &more))["profile"], "custom");
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Options that cannot work are rejected before anything is played.
#[test]
fn mistakes_are_reported_before_measuring() {
    let home = UserHome::new(ACTOR);
    let folder = tempfile::tempdir().unwrap();
    let shard = folder.path().join("0.tar");
    std::fs::write(&shard, [0; 1024]).unwrap();
    let run = |more: &[&str]| {
        let shard = shard.to_str().unwrap();
        let command = ["bench", "starvation", shard, "--daemon", "embedded"];
        let output = home.forebay(&command).args(more).output().unwrap();
        assert!(output.stdout.is_empty() && home.daemons().is_empty(), "{more:?}");
        output
    };
    assert_misused(&run(&["--differential", "--epochs", "1"]), "--epochs 2");
    for (flag, value) in [
        ("--threads", "3"),
        ("--prefetch", "5"),
        ("--window", "2"),
        ("--steps", "9"),
        ("--manifest", "m.json"),
    ] {
        let output = run(&["--rivals", "all", flag, value]);
        assert_misused(&output, flag);
        assert_misused(&output, "--rivals");
    }
    let several = ["--rivals", "all", "--accelerators", "2", "--manifest", "m.json"];
    assert_misused(&run(&several), "--accelerators");
    assert_misused(&run(&["--rivals", "spdl", "--rival-python", "dali=/x"]), "dali");
    assert_misused(&run(&["--rivals", "spdl", "--step", "0"]), "--step");
    for flag in ["--html", "--trace"] {
        let output = run(&[flag, "/no/such/folder/file"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("/no/such/folder/file"), "{error}");
    }
    let page = folder.path().join("page.html");
    // What fails later finds no file that the check left.
    let nowhere =
        ["bench", "starvation", shard.to_str().unwrap(), "--daemon", "unix:/no/such.sock"];
    let output = home.forebay(&nowhere).arg("--html").arg(&page).output().unwrap();
    assert!(output.status.code() == Some(3) && !page.exists());
}

/// Writes an executable that takes the place of an interpreter.
fn interpreter(folder: &std::path::Path, script: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("python");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// The contest is asked for what the command line says; one that fails, or has no other loader in
/// it, takes nothing away of what was measured before.
#[test]
fn failed_contest_keeps_the_report() {
    let origin = Origin::with_shards(1, 4 * SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let folder = tempfile::tempdir().unwrap();
    let (shard, page) = (folder.path().join("0.tar"), folder.path().join("page.html"));
    std::fs::write(&shard, origin.bytes("0.tar")).unwrap();
    let (asked, actor) = (folder.path().join("asked.json"), std::path::Path::new(ACTOR));
    let run = |script: &str| {
        let script = format!("cat > {}\n{script}", asked.to_str().unwrap());
        let python = interpreter(folder.path(), &script);
        let mut command = home.forebay(&["bench", "starvation", "--daemon", "embedded"]);
        let command = command.args(["--raw", "--step", "0.001", "--batch-size", "8", "--json"]);
        let command = command.args(["--rivals", "spdl", "--python", python.to_str().unwrap()]);
        command.arg("--html").arg(&page).arg(&shard).output().unwrap()
    };
    let absent = r#"{"contenders": [{"name": "forebay"}], "absent": [{"name": "spdl", "why": "is not here"}]}"#;
    let failed = r#"{"contenders": [{"name": "forebay"}], "failed": [{"name": "spdl", "doing": "sweeping", "why": "was killed"}]}"#;
    for (script, says, contest) in [
        ("echo its reason >&2; exit 1".to_owned(), "its reason", None),
        (format!("echo '{absent}'"), "is not here", Some("spdl: is not here")),
        (format!("echo '{failed}'"), "was killed", Some("spdl (sweeping): was killed")),
        (
            format!("echo '{failed}'; echo its reason >&2; exit 1"),
            "its reason",
            Some("spdl (sweeping)"),
        ),
    ] {
        let _ = std::fs::remove_file(&page);
        let output = run(&script);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(says), "{error}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["epochs"].as_array().unwrap().iter().for_each(assert_sound);
        assert_eq!(report.get("contest").is_some(), contest.is_some(), "{report}");
        let html = std::fs::read_to_string(&page).unwrap();
        assert!(html.contains("id=\"report\"") && html.contains(contest.unwrap_or_default()));
        let asked: Value = serde_json::from_slice(&std::fs::read(&asked).unwrap()).unwrap();
        assert_eq!(asked["au_min"], 0.9);
        // This very program starts the daemons.
        let program = std::path::Path::new(asked["forebay"].as_str().unwrap());
        assert_eq!(program.canonicalize().unwrap(), actor.canonicalize().unwrap());
    }
    eventually("no daemon is left", || home.daemons().is_empty());
}
