//! Costs of jobs: the bill of each fetch, which stays after the job has ended.

use std::collections::BTreeMap;

use forebay_client::{Address, Loader};
use forebay_testkit::shard;
use forebay_tests::{
    Daemon, Installation, Origin, config, daemon_status, eventually, job, job_with, play, run,
};
use forebay_wire::message::Open;
use serde_json::Value;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 3;
const SAMPLES: u64 = 40;
const MEMORY: u64 = 512 << 20;

const RULES: &str = "[[dataset]]\nname = 'photos'\nmatch = 's3://bucket/[01].tar'\n\
    [prices]\ncurrency = 'EUR'\negress_per_gib = 1024.0\nper_1000_requests = 1000\ngpu_hour = 3600.0\n";

/// Plays two epochs of these shards as a job of this name; seconds waited.
fn train(installation: &Installation, origin: &Origin, name: &str) -> f64 {
    train_on(installation, job(origin, Origin::urls(SHARDS)), name)
}

fn train_on(installation: &Installation, open: Open, name: &str) -> f64 {
    let open = Open { job: name.to_owned(), ..open };
    let loader = Loader::open(config(Address::Unix(installation.socket()), open)).unwrap();
    for epoch in 0..2 {
        play(&loader, epoch, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }
    loader.stats().wait.total_seconds
}

/// The only line of this job for bytes.
fn bytes_of(report: &Value, job: &str) -> Option<Value> {
    let lines = report["lines"].as_array().unwrap().iter();
    let mut of = lines.filter(|line| line["job"] == job && line["dataset"].is_string());
    let line = of.next().cloned();
    assert!(of.next().is_none(), "{report}");
    line
}

/// Returns the daemon's counts of its cache, once nothing is in flight.
fn settled(installation: &Installation) -> Value {
    let mut cache = Value::Null;
    eventually("nothing is under way", || {
        cache = daemon_status(&installation.socket()).unwrap()["cache"].clone();
        let count = |what: &str| cache[what].as_u64().unwrap();
        count("misses") == count("fills") + count("failed_fills") + count("through")
    });
    cache
}

fn costs(installation: &Installation) -> Value {
    let ended = run(installation.forebay(&["cost", "--json"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one course of events, in order")]
fn fetch_is_charged_to_the_first_job_even_after_its_end() {
    let (origin, disk) = (Origin::with_shards(SHARDS, SAMPLES, &SIZES), Daemon::disk());
    let tier = format!(
        "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n{}",
        disk.path().join("cache"),
        origin.rule(),
    );
    let installation = Installation::new(ACTOR, disk.path(), MEMORY, &format!("{tier}{RULES}"));
    let daemon = installation.start();
    let before = costs(&installation);
    assert_eq!(before["lines"].as_array().unwrap().len(), 0, "{before}");

    let waited = train(&installation, &origin, "first");
    train(&installation, &origin, "second");
    eventually("both are gone", || run(installation.forebay(&["job", "ls"])).out.trim().is_empty());
    let report = costs(&installation);
    let lines = report["lines"].as_array().unwrap();
    let of = |job: &str, dataset: Value| {
        let mut of = lines.iter().filter(|line| line["job"] == job && line["dataset"] == dataset);
        let line = of.next().cloned();
        assert!(of.next().is_none(), "one line each: {report}");
        line
    };
    let bytes = |shard: u64| origin.bytes(&format!("{shard}.tar")).len() as u64;
    for (dataset, shards) in [("photos", vec![0, 1]), ("(rest)", vec![2])] {
        let line = of("first", dataset.into()).unwrap_or_else(|| panic!("{dataset}: {report}"));
        let stored: u64 = shards.iter().map(|shard| bytes(*shard)).sum();
        assert_eq!(line["origin_bytes"], stored, "{line}");
        assert_eq!(line["written_bytes"], stored, "{line}");
        // What its object is, and its bytes: one question for each shard at least, and never one a
        // batch.
        let requests = line["requests"].as_u64().unwrap();
        let shards = shards.len() as u64;
        assert!((shards..=4 * shards).contains(&requests), "{line}");
        let cost = &line["cost"];
        let close = |value: &Value, right: f64| (value.as_f64().unwrap() - right).abs() < 1e-9;
        assert!(close(&cost["egress"], stored as f64 / f64::from(1 << 20)), "{line}");
        assert!(close(&cost["requests"], requests as f64), "{line}");
        assert!(cost.get("written").is_none(), "what has no price is not told: {line}");
        // What was there already cost the second nothing.
        assert!(of("second", dataset.into()).is_none(), "{report}");
    }
    for name in ["first", "second"] {
        let line = of(name, Value::Null).unwrap_or_else(|| panic!("{name}: {report}"));
        let lost = line["gpu_seconds_lost"].as_f64().unwrap();
        let causes = line["gpu_seconds_lost_by_cause"].as_object().unwrap();
        let sum: f64 = causes.values().map(|seconds| seconds.as_f64().unwrap()).sum();
        assert!((lost - sum).abs() < 1e-6 && line["trainers"] == 1, "{line}");
        assert!((line["cost"]["gpu"].as_f64().unwrap() - lost).abs() < 1e-9, "an hour has 3600 s");
        assert!(name == "second" || (lost - waited).abs() < 1e-6, "{line} {waited}");
    }
    let all: u64 = (0..SHARDS).map(bytes).sum();
    assert_eq!(report["total"]["origin_bytes"], all);
    assert_eq!(report["endurance"][0]["written_bytes"], all);

    // The same as a table, and as text.
    let by = |whom: &str| run(installation.forebay(&["cost", "--csv", "--by", whom])).out;
    assert_eq!((by("job").lines().count(), by("tenant").lines().count()), (1 + 2, 1 + 1));
    assert_eq!(report["by_job"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["by_tenant"][0]["origin_bytes"], all, "{report}");
    let tiers = by("tier");
    let worn: Vec<&str> = tiers.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(worn[..3], ["nvme", &all.to_string(), &(1_u64 << 30).to_string()], "{tiers}");
    let told = run(installation.forebay(&["cost", "--by", "tier"])).out;
    assert!(told.contains("nvme") && told.lines().count() == 1, "{told}");
    let table = run(installation.forebay(&["cost", "--csv"])).out;
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 1 + lines.len(), "{table}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    let column = |name: &str| rows[0].iter().position(|head| *head == name).unwrap();
    let sum: u64 =
        rows[1..].iter().map(|row| row[column("origin_bytes")].parse::<u64>().unwrap()).sum();
    assert_eq!((sum, rows[1][column("currency")]), (all, "EUR"));
    let text = run(installation.forebay(&["cost"])).out;
    assert!(text.lines().any(|line| line.contains("first") && line.contains("photos")), "{text}");
    assert!(text.contains(" EUR"), "{text}");

    // Prices change while it runs; amounts stay.
    installation.configure(&format!("{tier}{}", RULES.replace("1024.0", "2048.0")));
    let applied = run(installation.forebay(&["config", "apply"]));
    assert_eq!(applied.code, 0, "{applied:?}");
    let again = costs(&installation);
    let egress = |report: &Value| report["total"]["cost"]["egress"].as_f64().unwrap();
    assert!((egress(&again) - 2.0 * egress(&report)).abs() < 1e-9, "{again}");
    daemon.stop();
}

/// A write to a disk costs its share of that disk's life.
#[test]
fn disk_wear_is_priced() {
    let (origin, disk) = (Origin::with_shards(SHARDS, SAMPLES, &SIZES), Daemon::disk());
    let rest = format!(
        "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n{}[prices]\nper_tib_written = 1048576.0\n",
        disk.path().join("cache"),
        origin.rule(),
    );
    let installation = Installation::new(ACTOR, disk.path(), MEMORY, &rest);
    let daemon = installation.start();
    train(&installation, &origin, "first");
    let cache = settled(&installation);
    let stored: u64 = (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).sum();
    assert_eq!(cache["written_bytes"], stored, "{cache}");
    let report = costs(&installation);
    let line = bytes_of(&report, "first").unwrap();
    assert_eq!(line["written_bytes"], stored, "{line}");
    // One for each MiB.
    for cost in [&line["cost"], &report["total"]["cost"]] {
        let written = cost["written"].as_f64().unwrap();
        assert!((written - stored as f64 / f64::from(1 << 20)).abs() < 1e-9, "{report}");
    }
    daemon.stop();
}

/// A tier in memory is no disk: what comes to it wears nothing, and costs nobody anything.
#[test]
fn shards_in_memory_wear_no_disk() {
    let (origin, disk) = (Origin::with_shards(SHARDS, SAMPLES, &SIZES), Daemon::disk());
    let rest = format!(
        "[[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '64MiB'\n{}[prices]\nper_tib_written = 1e6\n",
        origin.rule(),
    );
    let installation = Installation::new(ACTOR, disk.path(), MEMORY, &rest);
    let daemon = installation.start();
    train(&installation, &origin, "first");
    let (cache, report) = (settled(&installation), costs(&installation));
    let stored: u64 = (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).sum();
    assert_eq!(cache["written_bytes"], stored, "that came to the tier: {cache}");
    let line = bytes_of(&report, "first").unwrap();
    assert_eq!((&line["origin_bytes"], &line["written_bytes"]), (&stored.into(), &0.into()));
    assert_eq!(line["cost"]["written"], 0.0, "{line}");
    assert!(report["endurance"].as_array().unwrap().is_empty(), "{report}");
    daemon.stop();
}

/// A shard that no tier keeps is fetched for each reader, and on each reader's bill.
#[test]
fn read_through_is_charged_to_the_reader() {
    let (origin, disk) = (Origin::with_shards(SHARDS, SAMPLES, &SIZES), Daemon::disk());
    let data = disk.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let files = (0..SHARDS).map(|n| {
        let path = data.join(format!("{n}.tar"));
        std::fs::write(&path, shard(SAMPLES, n, &SIZES)).unwrap();
        path.display().to_string()
    });
    let files = job_with(BTreeMap::new(), files.collect());
    let rest = format!(
        "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n{}\
         [[dataset]]\nname = 'photos'\nmatch = '{}/**'\ncache = 'never'\n",
        disk.path().join("cache"),
        origin.rule(),
        data.display(),
    );
    let installation = Installation::new(ACTOR, disk.path(), MEMORY, &rest);
    let daemon = installation.start();
    // Those that are never cached, and those that no tier takes.
    let disabled = run(installation.forebay(&["tier", "disable", "nvme"]));
    assert_eq!(disabled.code, 0, "{disabled:?}");
    let kinds = [("file_bytes", files), ("origin_bytes", job(&origin, Origin::urls(SHARDS)))];
    for (bytes, open) in kinds {
        let (first, second) = (format!("first {bytes}"), format!("second {bytes}"));
        train_on(&installation, open.clone(), &first);
        eventually("it left", || run(installation.forebay(&["job", "ls"])).out.trim().is_empty());
        let before = bytes_of(&costs(&installation), &first).unwrap();
        train_on(&installation, open, &second);
        let after = costs(&installation);
        assert_eq!(bytes_of(&after, &first).unwrap(), before, "it reads no more");
        let line = bytes_of(&after, &second).unwrap_or_else(|| panic!("nothing: {after}"));
        let payload = 2 * SHARDS * SAMPLES * SIZES.start as u64;
        assert!(line[bytes].as_u64().unwrap() >= payload, "{line}");
        assert_eq!(line["requests"].as_u64().unwrap() > 0, bytes == "origin_bytes", "{line}");
    }
    // None of that was a failed fetch.
    let cache = settled(&installation);
    assert_eq!((&cache["failed_fills"], &cache["through"]), (&0.into(), &SHARDS.into()), "{cache}");
    assert_eq!(cache["past"]["through"], SHARDS, "{cache}");
    daemon.stop();
}

/// Files cost nothing; bills and the status of their mount still count their bytes.
#[test]
fn bytes_read_from_files_are_reported_without_cost() {
    for by_client in [true, false] {
        let disk = Daemon::disk();
        let data = disk.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut stored = 0;
        let urls = (0..SHARDS).map(|n| {
            let (path, bytes) = (data.join(format!("{n}.tar")), shard(SAMPLES, n, &SIZES));
            std::fs::write(&path, &bytes).unwrap();
            stored += bytes.len() as u64;
            path.display().to_string()
        });
        let urls: Vec<_> = urls.collect();
        let opened = if by_client {
            String::new()
        } else {
            format!("[[source]]\nmatch = '{}/'\n", data.display())
        };
        let rest = format!(
            "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n{opened}\
             [prices]\negress_per_gib = 1024.0\nper_1000_requests = 1000\n",
            disk.path().join("cache"),
        );
        let installation = Installation::new(ACTOR, disk.path(), MEMORY, &rest);
        let daemon = installation.start();
        train_on(&installation, job_with(BTreeMap::new(), urls), "first");
        settled(&installation);
        let report = costs(&installation);
        let line = bytes_of(&report, "first").unwrap_or_else(|| panic!("nothing: {report}"));
        let told = ["file_bytes", "origin_bytes", "requests"].map(|what| line[what].as_u64());
        assert_eq!(told, [Some(stored), Some(0), Some(0)], "{line}");
        assert_eq!(line["cost"]["total"], 0.0, "{line}");
        let text = run(installation.forebay(&["cost"])).out;
        assert!(text.contains("from file systems") && !text.contains("fetched"), "{text}");

        // A file that there is none of is a failure of its mount.
        let none = job_with(BTreeMap::new(), vec![data.join("none.tar").display().to_string()]);
        let loader = Loader::open(config(Address::Unix(installation.socket()), none)).unwrap();
        assert!(play(&loader, 0, 0).is_err());
        let status = daemon_status(&installation.socket()).unwrap();
        let mounts = status["mounts"].as_array().unwrap();
        let read: Vec<_> = match by_client {
            true => vec![&status["client_files"]],
            false => mounts.iter().filter(|mount| mount["by_client"] == false).collect(),
        };
        let sum = |what: &str| read.iter().map(|one| one[what].as_u64().unwrap()).sum::<u64>();
        assert_eq!(sum("bytes"), stored, "{status}");
        assert!(sum("failures") >= 1, "{status}");
        drop(loader);
        daemon.stop();
    }
}
