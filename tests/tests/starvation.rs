//! `forebay bench starvation`, as a user runs it: what its report says is what happened.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::process::Output;

use forebay_tests::{Household, Origin, eventually};
use serde_json::Value;

const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 4;
const SAMPLES: u64 = 20;
const BATCH: u64 = 8;

/// Full batches of an epoch.
const BATCHES: u64 = SHARDS * SAMPLES / BATCH;

/// Runs the benchmark on raw samples, whose steps compute next to nothing.
fn starvation(household: &Household, origin: &Origin, more: &[&str]) -> Output {
    household
        .forebay(&["bench", "starvation", "s3://bucket/{0..3}.tar", "--daemon", "embedded"])
        .args(["--raw", "--step", "0.001"])
        .args(more)
        .envs(origin.environment())
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
    let wall = number(epoch, "/wall_seconds");
    assert!(total <= wall, "{total} {wall}");
    let ideal = steps as f64 * 0.001 / wall;
    assert!((number(epoch, "/au_ideal") - ideal).abs() < 1e-9, "{epoch}");
    let payload = number(epoch, "/tier_bytes") + number(epoch, "/origin_bytes");
    let least = (steps * BATCH) as f64 * SIZES.start as f64;
    assert!(payload >= least, "{payload} {least}");
    assert!((number(epoch, "/bytes_per_second") * wall - payload).abs() < 1.0, "{epoch}");
}

/// A cache that was empty is cold once, whether or not bytes came by way of the tier.
#[test]
fn a_report_tells_cold_from_warm_and_adds_up() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let household = Household::new(ACTOR);
    let report = said(&starvation(&household, &origin, &["--batch-size", "8", "--json"]));
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
    eventually("no daemon is left", || household.daemons().is_empty());
    let more = ["--batch-size", "8", "--epochs", "1"];
    let text = said(&starvation(&household, &origin, &more));
    assert!(text.contains("epoch 0 (warm)"), "{text}");

    // A shard that is new makes an epoch that fetches some of its bytes.
    let bytes = origin.bytes("3.tar");
    origin.put("3.tar", &[bytes, vec![0; 10_240]].concat());
    eventually("no daemon is left", || household.daemons().is_empty());
    let text = said(&starvation(&household, &origin, &more));
    assert!(text.contains("epoch 0 (mixed)"), "{text}");
    eventually("no daemon is left", || household.daemons().is_empty());
}

/// The first step is not counted; an epoch that has no other has no figures.
#[test]
fn an_epoch_of_a_single_batch_is_refused_with_advice() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let household = Household::new(ACTOR);
    for batch in ["80", "81"] {
        let output = starvation(&household, &origin, &["--batch-size", batch]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("--batch-size"), "{error}");
        assert!(output.stdout.is_empty());
    }
    eventually("no daemon is left", || household.daemons().is_empty());
}
