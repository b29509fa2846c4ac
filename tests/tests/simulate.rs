//! `forebay policy simulate`, as somebody calls it.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");

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
