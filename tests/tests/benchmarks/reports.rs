//! `forebay bench throughput`, `latency` and `scale`, as a user runs them: what their reports say
//! is what happened, and what makes no sense is refused.

use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use forebay_testkit::{Fault, FaultProxy, When};
use forebay_tests::{Origin, UserHome, eventually};
use serde_json::Value;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 3;
const SAMPLES: u64 = 20;

/// Samples of an epoch in batches of 8: the last is not full, and left out.
const EPOCH: u64 = SHARDS * SAMPLES / 8 * 8;

fn bench(home: &UserHome, origin: &Origin, verb: &str, more: &[&str]) -> Output {
    home.forebay(&["bench", verb, "s3://bucket/{0..2}.tar", "--daemon", "embedded"])
        .args(more)
        .envs(origin.environment())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn document(output: &Output) -> Value {
    serde_json::from_str(&said(output)).unwrap()
}

fn number(document: &Value, pointer: &str) -> f64 {
    let number = document.pointer(pointer).and_then(Value::as_f64);
    number.unwrap_or_else(|| panic!("{pointer}: {document}"))
}

fn assert_machine(document: &Value) {
    for least in ["/machine/cores", "/machine/memory_bytes"] {
        assert!(number(document, least) >= 1.0);
    }
    for text in ["/machine/cpu", "/machine/kernel", "/machine/release"] {
        assert!(!document.pointer(text).unwrap().as_str().unwrap().is_empty(), "{text}");
    }
}

/// Asserts what holds of a median: it lies between the ends, which are those of the rounds.
fn assert_spread(figures: &Value, name: &str) {
    let rounds = figures["rounds"].as_array().unwrap();
    let all: Vec<f64> = rounds.iter().map(|round| number(round, &format!("/{name}"))).collect();
    let of = |what: &str| number(figures, &format!("/{name}/{what}"));
    let (lowest, highest) = (of("lowest"), of("highest"));
    assert!(lowest <= of("median") && of("median") <= highest, "{figures}");
    assert!(all.iter().all(|value| (lowest..=highest).contains(value)), "{figures}");
    assert!(all.contains(&lowest) && all.contains(&highest), "{figures}");
}

/// All combinations of what is listed are measured, all of an epoch counts, and cold is what was
/// fetched.
#[test]
fn throughput_counts_whole_epochs_of_each_case() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let more = ["--batch-size", "8", "--threads", "1,2", "--jobs", "1,3", "--rounds", "3"];
    let report = document(&bench(
        &home,
        &origin,
        "throughput",
        &[&more[..], &["--cold", "--json"]].concat(),
    ));
    assert_machine(&report);
    let cases = report["cases"].as_array().unwrap();
    let named = |case: &Value| {
        let number = |name: &str| case[name].as_u64().unwrap();
        assert_eq!((&case["decoded"], number("batch_size")), (&Value::Bool(false), 8));
        (number("threads"), number("jobs"))
    };
    assert_eq!(cases.iter().map(named).collect::<Vec<_>>(), [(1, 1), (1, 3), (2, 1), (2, 3)]);
    let stored: usize = (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len()).sum();
    for case in cases {
        let jobs = case["jobs"].as_u64().unwrap();
        for (how, fetched) in [("cold", stored), ("warm", 0)] {
            let figures = &case[how];
            let rounds = figures["rounds"].as_array().unwrap();
            assert_eq!(rounds.len(), 3, "{figures}");
            for round in rounds {
                assert_eq!(round["temperature"], how, "{round}");
                assert_eq!(round["fetched_bytes"], fetched, "{round}");
                assert_eq!(round["samples"], EPOCH * jobs, "{round}");
                let wall = number(round, "/wall_seconds");
                let rate = number(round, "/samples_per_second") * wall;
                assert!((rate - (EPOCH * jobs) as f64).abs() < 1e-3, "{round}");
                let payload = number(round, "/tier_bytes") + number(round, "/origin_bytes");
                assert!(payload >= (EPOCH * jobs * SIZES.start as u64) as f64, "{round}");
                assert!((number(round, "/bytes_per_second") * wall - payload).abs() < 1.0);
                assert!(number(round, "/first_batch_seconds") <= wall, "{round}");
            }
            for name in ["samples_per_second", "bytes_per_second", "cpu_ms_per_sample"] {
                assert_spread(figures, name);
            }
        }
        let warm = case["warm"]["rounds"].as_array().unwrap();
        let read = |round: &Value| -> u64 {
            round["by_tier"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
        };
        // Reads are of whole sectors, and of what lies between members.
        assert!(warm.iter().all(|round| read(round) as f64 >= number(round, "/tier_bytes")));
    }
    let text = said(&bench(&home, &origin, "throughput", &["--batch-size", "8"]));
    assert!(text.contains("warm") && !text.contains("cold"), "{text}");
    assert!(text.contains("samples/s"), "{text}");
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// As many requests as asked for, at the rate that was asked for, and percentiles that ascend.
#[test]
fn latency_offers_the_requested_load() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let more = ["--batch-size", "8", "--rate", "200", "--requests", "60", "--rounds", "2"];
    let report =
        document(&bench(&home, &origin, "latency", &[&more[..], &["--cold", "--json"]].concat()));
    assert_machine(&report);
    assert_eq!(report["batch_size"], 8);
    for what in ["batch", "sample"] {
        let found = &report[what];
        assert_eq!(found["count"], 60, "{found}");
        let of = |name: &str| number(found, &format!("/{name}"));
        let quantiles =
            ["p50", "p95", "p99", "p999", "max"].map(|name| of(&format!("{name}_seconds")));
        assert!(quantiles.is_sorted() && quantiles[0] > 0.0, "{found}");
        // None is answered before it is due.
        assert!(of("answered_per_second") <= of("offered_per_second"), "{found}");
    }
    assert_eq!(report["batch"]["offered_per_second"], 200.0);
    assert!(number(&report, "/sample/offered_per_second") > 0.0);
    for how in ["cold_seconds", "warm_seconds"] {
        assert!(number(&report, &format!("/first_batch/{how}/lowest")) > 0.0);
    }
    let more = ["--batch-size", "8", "--requests", "10", "--rounds", "1"];
    let text = said(&bench(&home, &origin, "latency", &more));
    assert!(text.contains("p99.9") && text.contains("warm"), "{text}");
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// A store's bytes come late by time passing, and by nothing else.
#[allow(clippy::disallowed_methods, reason = "a network that is slow waits for no condition")]
fn delay(by: Duration) {
    std::thread::sleep(by);
}

/// Each cold start fetches, though the shard of the one before was still on its way when its loader
/// was gone; a warm one does not.
#[test]
fn cold_starts_fetch_from_the_origin() {
    const LATE: Duration = Duration::from_millis(300);
    // Shards of many frames, of which the first batch needs few: the others come late.
    const LARGE: std::ops::Range<usize> = 300_000..300_001;
    const COME: u64 = 12 << 20;
    let origin = Origin::with_shards(SHARDS, 3 * SAMPLES, &LARGE);
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    proxy.set([
        (When::get(), Fault::Delay(LATE)),
        (When::get(), Fault::CallAt(COME, Arc::new(|| delay(LATE)))),
    ]);
    let home = UserHome::new(ACTOR);
    let output = home
        .forebay(&["bench", "latency", "s3://bucket/{0..2}.tar", "--daemon", "embedded"])
        .args(["--batch-size", "8", "--requests", "3", "--rounds", "4", "--cold", "--json"])
        .envs(origin.environment())
        .env("AWS_ENDPOINT_URL", proxy.endpoint())
        .output()
        .unwrap();
    let report = document(&output);
    let starts = |how: &str| {
        let starts = report["first_batch"][how].as_array().unwrap();
        starts.iter().map(|start| (number(start, "/seconds"), number(start, "/fetched_bytes")))
    };
    let (cold, warm): (Vec<_>, Vec<_>) = (starts("cold").collect(), starts("warm").collect());
    assert_eq!((cold.len(), warm.len()), (4, 4));
    let first = origin.bytes("0.tar").len() as f64;
    assert!(cold.iter().all(|start| start.0 >= LATE.as_secs_f64() && start.1 >= first), "{cold:?}");
    assert!(warm.iter().all(|start| start.1 == 0.0), "{warm:?}");
    for (how, starts) in [("cold_seconds", cold), ("warm_seconds", warm)] {
        let seconds = starts.iter().map(|start| start.0);
        let told = number(&report, &format!("/first_batch/{how}/highest"));
        assert_eq!(told, seconds.fold(0.0, f64::max));
    }
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Figures measured before a failure are reported, and then the failure.
#[test]
fn failure_keeps_results_measured_before() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let failed = |output: &Output, says: &str| -> Value {
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(says), "{error}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let more = ["--batch-size", "8,61", "--rounds", "1", "--json"];
    let report = failed(&bench(&home, &origin, "throughput", &more), "--batch-size");
    assert_eq!(report["cases"].as_array().unwrap().len(), 1, "{report}");
    eventually("no daemon is left", || home.daemons().is_empty());

    // The store answers until all is here, and not for the cold starts.
    let home = UserHome::new(ACTOR);
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    proxy.set([(When::get().after(SHARDS), Fault::status(404))]);
    let output = home
        .forebay(&["bench", "latency", "s3://bucket/{0..2}.tar", "--daemon", "embedded"])
        .args(["--batch-size", "8", "--requests", "3", "--rounds", "2", "--cold", "--json"])
        .envs(origin.environment())
        .env("AWS_ENDPOINT_URL", proxy.endpoint())
        .output()
        .unwrap();
    let report = failed(&output, "0.tar");
    assert_eq!((&report["batch"]["count"], &report["sample"]["count"]), (&3.into(), &3.into()));
    let first = &report["first_batch"];
    assert_eq!(first["warm"].as_array().unwrap().len(), 2, "{report}");
    assert!(first.get("cold").is_none() && first.get("cold_seconds").is_none(), "{report}");

    // No daemon starts for the jobs, which are measured last.
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("growth.svg");
    let scale = |picture: &std::path::Path| {
        let mut command = home.forebay(&["bench", "scale", "--quick", "--json", "--plot"]);
        command.arg(picture).arg("--directory").arg(folder.path()).env("FOREBAY_CAPACITY", "lots");
        command.args(["--max-samples", "1000", "--max-shards", "10", "--max-cached", "10"]);
        command.output().unwrap()
    };
    let report = failed(&scale(&picture), "FOREBAY_CAPACITY");
    assert_eq!(report["growths"].as_array().unwrap().len(), 10, "{report}");
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg"));
    // A picture that cannot be written is told before anything is measured.
    let output = scale("/no/such/growth.svg".as_ref());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{error}");
    assert!(error.contains("/no/such/growth.svg"), "{error}");
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Every figure is there at every size, with its exponent; the picture is one; and nothing is left
/// behind.
#[test]
fn scale_reports_an_exponent_for_each_growth() {
    let home = UserHome::new(ACTOR);
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("growth.svg");
    let directory = folder.path().join("work");
    std::fs::create_dir(&directory).unwrap();
    let limits =
        ["--max-samples", "10000", "--max-shards", "100", "--max-cached", "10", "--max-jobs", "3"];
    let output = home
        .forebay(&["bench", "scale", "--json"])
        .args(limits)
        .arg("--plot")
        .arg(&picture)
        .arg("--directory")
        .arg(&directory)
        .output()
        .unwrap();
    let report = document(&output);
    assert_machine(&report);
    assert!(number(&report, "/machine/storage/bytes") > 0.0);
    let growths = report["growths"].as_array().unwrap();
    let sizes = |start: &str| -> Vec<Vec<u64>> {
        let named = growths.iter().filter(|one| one["name"].as_str().unwrap().starts_with(start));
        let sizes = |one: &Value| -> Vec<u64> {
            let points = one["points"].as_array().unwrap();
            assert!(points.iter().all(|point| number(point, "/value") > 0.0), "{one}");
            assert!(one["exponent"].is_f64(), "{one}");
            points.iter().map(|point| point["size"].as_u64().unwrap()).collect()
        };
        named.map(sizes).collect()
    };
    assert_eq!(sizes("plan"), vec![vec![1000, 10_000]; 2]);
    assert_eq!(sizes("policy"), vec![vec![1, 10, 100]; 7]);
    assert_eq!(sizes("start"), [vec![1, 10]]);
    assert_eq!(sizes("jobs"), [vec![1, 2, 3]]);
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("exponent"), "{drawn}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "what was made is removed");
    assert!(home.daemons().is_empty(), "its daemon was another");
}

/// Invalid arguments are usage errors, reported before anything is measured.
#[test]
fn hostile_arguments_are_rejected() {
    let home = UserHome::new(ACTOR);
    let many = vec!["1"; 32].join(",");
    let refused = |arguments: &[&str], says: &str| {
        let output = home.forebay(&["bench"]).args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    };
    refused(&["throughput"], "<URLS>");
    refused(&["throughput", "a.tar", "--batch-size", "0"], "--batch-size");
    refused(&["throughput", "a.tar", "--threads", "1,x"], "--threads");
    refused(&["throughput", "a.tar", "--jobs", "257"], "1..=256");
    refused(&["throughput", "a.tar", "--mode", "cooked"], "raw, decoded");
    refused(&["throughput", "a.tar", "--rounds", "0"], "--rounds");
    refused(&["throughput", "a.tar", "--jobs", &many, "--threads", &many], "--threads");
    refused(&["latency", "a.tar", "--rate", "0"], "--rate");
    refused(&["latency", "a.tar", "--rate", "nan"], "--rate");
    refused(&["latency", "a.tar", "--sample-rate", "inf"], "--sample-rate");
    refused(&["latency", "a.tar", "--requests", "0"], "--requests");
    refused(&["latency"], "<URLS>");
    refused(&["scale", "--max-samples", "999"], "--max-samples");
    refused(&["scale", "--max-shards", "0"], "--max-shards");
    refused(&["scale", "--max-cached", "18446744073709551616"], "--max-cached");
    refused(&["scale", "--max-jobs", "257"], "--max-jobs");
    refused(&["scale", "data.tar"], "data.tar");
    assert!(home.daemons().is_empty());
}

/// An epoch without a full batch has no figures, and a folder that is not there no shards.
#[test]
fn unmeasurable_cases_are_rejected_with_advice() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    for verb in ["throughput", "latency"] {
        let output = bench(&home, &origin, verb, &["--batch-size", "61"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("--batch-size"), "{error}");
        assert!(output.stdout.is_empty());
        let absent = ["bench", verb, "/x.tar", "--daemon", "unix:/no/such/forebayd.sock"];
        assert_eq!(home.forebay(&absent).output().unwrap().status.code(), Some(3), "{verb}");
    }
    let nowhere = ["bench", "scale", "--quick", "--directory", "/no/such/folder"];
    let output = home.forebay(&nowhere).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    eventually("no daemon is left", || home.daemons().is_empty());
}
