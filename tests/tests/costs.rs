//! What jobs cost: on whose bill what is fetched comes, and that it stays there when the job is gone.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_client::{Address, Loader};
use forebay_tests::{Daemon, Installation, Origin, config, eventually, job, play, run};
use forebay_wire::message::Open;
use serde_json::Value;

const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 3;
const SAMPLES: u64 = 40;
const MEMORY: u64 = 512 << 20;

const RULES: &str = "[[dataset]]\nname = 'photos'\nmatch = 's3://bucket/[01].tar'\n\
    [prices]\ncurrency = 'EUR'\negress_per_gib = 1024.0\nper_1000_requests = 1000\ngpu_hour = 3600.0\n";

/// Plays two epochs of these shards as a job of this name; seconds waited.
fn train(installation: &Installation, origin: &Origin, name: &str) -> f64 {
    let open = Open { job: name.to_owned(), ..job(origin, Origin::urls(SHARDS)) };
    let loader = Loader::open(config(Address::Unix(installation.socket()), open)).unwrap();
    for epoch in 0..2 {
        play(&loader, epoch, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }
    loader.stats().wait.total_seconds
}

fn costs(installation: &Installation) -> Value {
    let ended = run(installation.forebay(&["cost", "--json"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

#[test]
fn who_asked_first_pays_and_who_is_gone_is_not_forgotten() {
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
        // What its object is, and its bytes: one question for each shard at least, and never one a batch.
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
    let table = run(installation.forebay(&["cost", "--csv"])).out;
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 1 + lines.len(), "{table}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    let column = |name: &str| rows[0].iter().position(|head| *head == name).unwrap();
    let sum: u64 =
        rows[1..].iter().map(|row| row[column("origin_bytes")].parse::<u64>().unwrap()).sum();
    assert_eq!((sum, rows[1][column("currency")]), (all, "EUR"));
    let text = run(installation.forebay(&["cost"])).out;
    assert!(text.contains("first, data set photos") && text.contains(" EUR"), "{text}");

    // Prices change while it runs; amounts stay.
    installation.configure(&format!("{tier}{}", RULES.replace("1024.0", "2048.0")));
    let applied = run(installation.forebay(&["policy", "apply"]));
    assert_eq!(applied.code, 0, "{applied:?}");
    let again = costs(&installation);
    let egress = |report: &Value| report["total"]["cost"]["egress"].as_f64().unwrap();
    assert!((egress(&again) - 2.0 * egress(&report)).abs() < 1e-9, "{again}");
    daemon.stop();
}
