//! `forebay policy simulate`, as somebody calls it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::ACTOR;

fn simulate(arguments: &[&str]) -> Output {
    Command::new(ACTOR).args(["policy", "simulate"]).args(arguments).output().unwrap()
}

fn document(arguments: &[&str]) -> Value {
    let output = simulate(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A table of every policy, what no policy can pass, and what would help.
#[test]
fn simulation_reports_the_missing_cache_and_link() {
    let output = simulate(&[
        "--data",
        "32GiB",
        "--cache",
        "16GiB",
        "--window",
        "4",
        "--bandwidth",
        "400Mbit/s",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{text}");
    let words: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let policies = ["clairvoyant", "static", "sieve", "s3fifo", "lfu", "lru", "none", "bound"];
    assert_eq!(words[2..10], policies, "{text}");
    let has = |line: &str, all: &[&str]| all.iter().all(|one| line.contains(one));
    let figures = ["128 shards", "32.0 GiB", "16.0 GiB (50 %)", "400 Mbit/s", "1 job", "1.6"];
    assert!(has(text.lines().next().unwrap(), &figures), "{text}");
    // What more a job without waits takes.
    let more = ["clairvoyant", "+", "GiB", "Mbit/s"];
    assert!(text.lines().any(|line| has(line, &more)), "{text}");
    // What its open shards cost.
    assert!(has(text.lines().last().unwrap(), &["lanes=", "window=4", "% busy"]), "{text}");
}

/// Shards that a job mixes take cache from those that it reads later.
#[test]
fn lanes_and_window_cost_cache() {
    let node = ["--data", "64GiB", "--cache", "32GiB", "--bandwidth", "800Mbit/s"];
    let mixing = |more: &[&str]| document(&[&node, more].concat())["mixing"].clone();
    let default = mixing(&["--policy", "clairvoyant"]);
    let share = |of: &str| default[of].as_f64().unwrap();
    assert!(default["lanes"].as_u64() > Some(1) && default["window"] == 64, "{default}");
    assert!(share("busy_share") < share("unmixed_busy_share") - 0.02, "{default}");
    assert_eq!(mixing(&["--policy", "lru"]), Value::Null);
    assert_eq!(mixing(&["--lanes", "1", "--window", "1"]), Value::Null);
}

#[test]
fn two_jobs_of_the_same_data_profit_from_the_forecast() {
    let found = document(&[
        "--data",
        "64GiB",
        "--shard",
        "128MiB",
        "--cache",
        "32GiB",
        "--jobs",
        "2",
        "--policy",
        "clairvoyant,lru",
    ]);
    let hits = |at: usize| found["policies"][at]["hit_ratio"].as_f64().unwrap();
    assert_eq!(found["policies"][1]["policy"], "lru");
    assert!(hits(0) > hits(1) + 0.25, "{found}");
    assert_eq!(found["policies"][0]["busy"][1]["job"], "job 2");
    assert_eq!((&found["bound"], &found["shards"]), (&json!(1.0), &json!(512)));
}

#[test]
fn trace_is_simulated_and_plotted() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (trace, picture) = (path("trace.json"), path("picture.svg"));
    let shards: Vec<u64> = (1..=40).map(|size| size * 1_000_000).collect();
    let all: Vec<u32> = (0..40).collect();
    let written = json!({
        "capacity": 400_000_000, "bandwidth": 20e6, "shards": shards,
        "jobs": [
            {"name": "vision", "shards": all, "rate": 30e6, "epochs": 6},
            {"name": "speech", "shards": [3, 1, 4], "rate": 1e6, "epochs": 40, "order": "fixed", "joins": 10.5},
        ],
        "warm_epochs": 1,
        "jitter": {"fetch": 2.0},
    });
    std::fs::write(&trace, written.to_string()).unwrap();
    let found = document(&[&trace, "--plot", &picture]);
    let jobs: Vec<_> =
        found["policies"][0]["busy"].as_array().unwrap().iter().map(|one| &one["job"]).collect();
    assert_eq!(jobs, ["vision", "speech"]);
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(
        drawn.starts_with("<svg") && drawn.contains("clairvoyant") && drawn.ends_with("</svg>\n")
    );
}

/// The design's four nodes: the origin is read once, the rest comes from other nodes' caches.
#[test]
fn cluster_is_simulated_beside_nodes_alone() {
    let four = ["--nodes", "4", "--data", "300GiB", "--cache", "84GiB"];
    let found = document(&four);
    let of = |path: &str| {
        found.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{found}"))
    };
    let close = |path: &str, wanted: f64, within: f64| {
        assert!((of(path) - wanted).abs() <= within, "{path} of {found}");
    };
    close("/cluster/cold/origin", 1.0, 1e-9);
    close("/cluster/warm/origin", 0.0, 0.02);
    // Without guests; with them, fewer bytes come from other nodes, and some are written.
    close("/cluster/warm/records", 0.75, 0.02);
    close("/cluster/warm/peer", 0.65, 0.03);
    close("/cluster/warm/written", 0.17, 0.03);
    close("/cluster/warm/received/mean", of("/cluster/warm/peer"), 1e-9);
    close("/cluster/warm/clairvoyant/origin", 0.43, 0.05);
    close("/cluster/warm/lru/origin", 0.82, 0.05);
    close("/loss/anew", 0.26, 0.03);
    assert_eq!((&found["nodes"], &found["shards"]), (&json!(4), &json!(1200)));
    assert_eq!((&found["lanes"], &found["whole_lanes"]), (&json!(64), &json!(true)));
    assert_eq!(found, document(&four), "the same again");

    let text = String::from_utf8(simulate(&four).stdout).unwrap();
    let rows = ["cluster", "alone, clairvoyant", "alone, lru"];
    assert!(rows.iter().all(|row| text.lines().any(|line| line.starts_with(row))), "{text}");
    assert!(text.contains("64 lanes, whole ones to each rank"), "{text}");

    // Too few shards for a lane to each of 512 ranks: slices, of which nodes alone fetch all.
    let sliced = document(&["--nodes", "64", "--data", "100GiB", "--cache", "3GiB"]);
    assert_eq!(sliced["whole_lanes"], json!(false));
    let alone = sliced.pointer("/cluster/cold/lru/origin").and_then(Value::as_f64).unwrap();
    assert!((alone - 64.0).abs() < 1e-6, "{sliced}");
    // Nodes of unequal size, two of which are lost.
    let unequal =
        ["--nodes", "6", "--slots", "16,16,32", "--ranks", "4", "--lose", "2", "--lanes", "24"];
    let unequal = document(&unequal);
    let lost: Vec<_> = unequal["loss"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node.as_u64().unwrap() % 3)
        .collect();
    assert_eq!(lost, [2, 2], "the large ones: {unequal}");
}

#[test]
fn invalid_simulations_are_rejected_with_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let refused = |arguments: &[&str], code: i32, word: &str| {
        let output = simulate(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(word), "{said}");
    };
    refused(&["--shard", "1TiB"], 2, "shards");
    refused(&["--policy", "fifo"], 2, "s3fifo");
    refused(&["--epochs", "2"], 2, "epochs");
    refused(&["--cache", "100MiB"], 1, "Full");
    for (arguments, word) in [
        (&["--nodes", "0"][..], "nodes"),
        (&["--nodes", "8193"], "nodes"),
        (&["--nodes", "4", "--lose", "4"], "lose"),
        (&["--nodes", "4", "--slots", "0"], "slots"),
        (&["--nodes", "4", "--ranks", "0"], "ranks"),
        (&["--slots", "1"], "nodes"),
        (&["--lose", "1"], "nodes"),
        (&["--ranks", "1"], "nodes"),
        (&["--nodes", "4", "--jobs", "2"], "jobs"),
        (&["--nodes", "4", "--policy", "lru"], "policy"),
        (&["--nodes", "4", "trace.json"], "TRACE"),
        (&["--nodes", "4", "--shard", "1TiB"], "shards"),
        (&["--nodes", "4", "--lanes", "2000"], "lanes"),
        (&["--nodes", "8000", "--slots", "256", "--shard", "1MiB"], "hashes"),
        (&["--nodes", "4", "--epochs", "10000", "--shard", "1MiB"], "epochs"),
    ] {
        refused(arguments, 2, word);
    }
    refused(
        &["--data", "8GiB", "--window", "1", "--plot", "/nonexistent/picture.svg"],
        1,
        "/nonexistent",
    );
    refused(&["--data", "32GiB", "--cache", "1GiB"], 1, "Full");
    let path = |path: &Path| path.display().to_string();
    refused(&[&path(&trace)], 1, "trace.json");
    for (text, word) in [("{", "EOF"), ("{\"capacity\": 1, \"cap\": 2}", "cap"), ("[]", "trace")] {
        std::fs::write(&trace, text).unwrap();
        refused(&[&path(&trace)], 1, word);
    }
    let empty = json!({"capacity": 1, "bandwidth": 1.0, "shards": [], "jobs": []});
    std::fs::write(&trace, empty.to_string()).unwrap();
    refused(&[&path(&trace)], 1, "Invalid");
}
