//! Traces: what a viewer is shown is what happened, and what the report says.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_tests::{Origin, UserHome, eventually};
use serde_json::Value;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 4;
const SAMPLES: u64 = 20;
const BATCH: u64 = 8;
const BATCHES: u64 = SHARDS * SAMPLES / BATCH;

/// Resolution of a float of microseconds, in microseconds.
const GRAIN: f64 = 0.01;

/// A slice of a trace.
#[derive(Debug, Clone)]
struct Slice {
    name: String,
    cat: String,
    /// Process and thread.
    track: (u64, u64),
    start: f64,
    end: f64,
    args: Value,
}

/// An end of an arrow: its phase, when, and on which track.
type End = (String, f64, (u64, u64));

struct Trace {
    document: Value,
    slices: Vec<Slice>,
}

impl Trace {
    fn read(path: &Path) -> Self {
        let document: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let events = document["traceEvents"].as_array().unwrap();
        let slices = events.iter().filter(|event| event["ph"] == "X").map(|event| {
            let start = event["ts"].as_f64().unwrap();
            Slice {
                name: event["name"].as_str().unwrap().to_owned(),
                cat: event["cat"].as_str().unwrap().to_owned(),
                track: (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap()),
                start,
                end: start + event["dur"].as_f64().unwrap(),
                args: event["args"].clone(),
            }
        });
        let slices = slices.collect();
        Self { document, slices }
    }

    fn of(&self, cat: &str) -> Vec<&Slice> {
        self.slices.iter().filter(|slice| slice.cat == cat).collect()
    }

    /// Those of one batch.
    fn for_batch(&self, cat: &str, batch: &str) -> Vec<&Slice> {
        let mut slices = self.of(cat);
        slices.retain(|slice| slice.name == batch || slice.args["batch"] == batch);
        slices
    }

    /// Arrows of one kind by their numbers: each end's phase, time and track.
    fn arrows(&self, cat: &str) -> BTreeMap<u64, Vec<End>> {
        let mut arrows = BTreeMap::<_, Vec<End>>::new();
        for event in self.document["traceEvents"].as_array().unwrap() {
            if event["cat"] == cat && event.get("id").is_some() {
                let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
                let (ph, ts) = (event["ph"].as_str().unwrap(), event["ts"].as_f64().unwrap());
                let of = arrows.entry(event["id"].as_u64().unwrap()).or_default();
                of.push((ph.to_owned(), ts, track));
            }
        }
        arrows
    }
}

/// On each track slices are one after the other, or one in the other.
fn assert_nested(trace: &Trace) {
    let mut tracks = BTreeMap::<_, Vec<&Slice>>::new();
    for slice in &trace.slices {
        tracks.entry(slice.track).or_default().push(slice);
    }
    for slices in tracks.values_mut() {
        slices.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
        let mut open: Vec<&Slice> = Vec::new();
        for slice in slices {
            while open.last().is_some_and(|last| last.end <= slice.start + GRAIN) {
                open.pop();
            }
            if let Some(around) = open.last() {
                assert!(slice.end <= around.end + GRAIN, "{slice:?} leaves {around:?}");
            }
            open.push(slice);
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one course of events, in order")]
fn trace_follows_each_batch_and_matches_the_report() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.json");
    let output = home
        .forebay(&["bench", "starvation", "s3://bucket/{0..3}.tar", "--daemon", "embedded"])
        .args(["--raw", "--step", "0.001", "--batch-size", "8", "--json", "--trace"])
        .arg(&path)
        .envs(origin.environment())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.success() && said.contains("perfetto"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let trace = Trace::read(&path);
    assert_eq!(trace.document["otherData"]["left_out"], 0);
    assert_eq!(trace.document["otherData"]["job"], "bench starvation");
    assert_nested(&trace);

    // Every byte of every shard came once, and was kept, in this order.
    let came = trace.of("shard");
    for shard in 0..SHARDS {
        let of = |what: &str| {
            let name = format!("{what} shard {shard}");
            came.iter().filter(move |slice| slice.name == name).copied().collect::<Vec<_>>()
        };
        let bytes: u64 =
            of("fetch").iter().map(|slice| slice.args["bytes"].as_u64().unwrap()).sum();
        assert_eq!(bytes, origin.bytes(&format!("{shard}.tar")).len() as u64);
        let kept = of("keep");
        assert_eq!((kept.len(), &kept[0].args["tier"]), (1, &Value::from("cache")));
        let url = Value::from(format!("s3://bucket/{shard}.tar"));
        assert!(of("fetch").iter().chain(&kept).all(|slice| slice.args["url"] == url));
        assert!(of("fetch").iter().all(|fetch| fetch.start <= kept[0].start + GRAIN));
    }

    let (arrows, origins) = (trace.arrows("batch"), trace.arrows("origin"));
    for (_, ends) in origins.iter().chain(&arrows) {
        let phases: Vec<_> = ends.iter().map(|(phase, ..)| phase.as_str()).collect();
        assert_eq!((phases[0], phases[phases.len() - 1]), ("s", "f"), "{phases:?}");
        // Each end lies in a slice of its track.
        for (_, at, track) in ends {
            let is_there = |slice: &&Slice| {
                slice.track == *track && slice.start <= at + GRAIN && *at <= slice.end + GRAIN
            };
            assert!(trace.slices.iter().any(|slice| is_there(&slice)), "{at} {track:?}");
        }
    }
    assert!(origins.len() as u64 >= SHARDS, "{origins:?}");
    assert_eq!(arrows.len() as u64, 2 * BATCHES);

    for epoch in 0..2 {
        let mut waited = 0.0;
        let mut by_cause = BTreeMap::<String, f64>::new();
        for index in 0..BATCHES {
            let batch = format!("batch {epoch}/{index}");
            let one = |cat: &str| {
                let slices = trace.for_batch(cat, &batch);
                assert_eq!(slices.len(), 1, "{cat} of {batch}: {slices:?}");
                slices[0].clone()
            };
            // Served by the daemon, on its way, decoded, waited for, computed on: in this order, on
            // one clock.
            let whole = trace.for_batch("batch", &batch);
            let [served, ring] = whole[..] else { panic!("{batch}: {whole:?}") };
            assert_eq!((served.track.0, ring.track.0), (1, 2));
            let (decode, wait, compute) = (one("decode"), one("wait"), one("compute"));
            assert!(served.end <= ring.start + GRAIN, "{served:?} {ring:?}");
            assert!(ring.start <= decode.start + GRAIN && decode.end <= ring.end + GRAIN);
            assert!(
                (ring.end - wait.end).abs() <= GRAIN && (wait.end - compute.start).abs() <= GRAIN
            );
            assert!(compute.end - compute.start >= 1000.0, "{compute:?}");
            // Its bytes and samples.
            let count = |name: &str| served.args[name].as_u64().unwrap();
            assert_eq!(count("samples"), BATCH);
            let payload = count("tier_bytes") + count("origin_bytes");
            assert!(payload >= BATCH * SIZES.start as u64, "{payload}");
            assert!(epoch == 0 || count("origin_bytes") == 0, "{served:?}");
            // A wait is cut into its causes, all of it.
            let parts = trace.for_batch("cause", &batch);
            let sum: f64 = parts.iter().map(|part| part.end - part.start).sum();
            assert!((sum - (wait.end - wait.start)).abs() <= GRAIN * (1.0 + parts.len() as f64));
            if index > 0 {
                waited += wait.end - wait.start;
                for part in parts {
                    *by_cause.entry(part.name.clone()).or_default() += part.end - part.start;
                }
            }
        }
        // The report leaves the first step out.
        let wait = &report["epochs"][epoch]["wait"];
        let close = |us: f64, seconds: &Value| (us / 1e6 - seconds.as_f64().unwrap()).abs() < 1e-5;
        assert!(close(waited, &wait["total_seconds"]), "{waited} {wait}");
        for (cause, seconds) in wait["by_cause"].as_object().unwrap() {
            let traced = by_cause.get(cause).copied().unwrap_or_default();
            assert!(close(traced, seconds), "{cause}: {traced} {seconds}");
        }
    }
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// A job that is killed leaves a file that opens; who comes next begins it anew.
#[test]
fn trace_of_a_killed_job_is_readable() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.json");
    let begin = || {
        home.forebay(&["bench", "starvation", "s3://bucket/{0..3}.tar", "--daemon", "embedded"])
            .args([
                "--raw",
                "--step",
                "0.001",
                "--batch-size",
                "8",
                "--epochs",
                "1000000",
                "--trace",
            ])
            .arg(&path)
            .envs(origin.environment())
            .spawn()
            .unwrap()
    };
    let mut job = begin();
    let mut seen = 0;
    eventually("batches are traced", || {
        let Ok(bytes) = std::fs::read(&path) else { return false };
        // Read between two writes or in one: what is whole is told.
        let Ok(document) = serde_json::from_slice::<Value>(&bytes) else { return false };
        seen = document["traceEvents"].as_array().unwrap().len();
        seen > 200
    });
    // Another that writes there has a file of its own.
    let mut other = begin();
    let beside = directory.path().join("out-1.json");
    eventually("the other has its own", || beside.exists());
    for job in [&mut job, &mut other] {
        job.kill().unwrap();
        job.wait().unwrap();
    }
    let trace = Trace::read(&path);
    assert!(trace.document["traceEvents"].as_array().unwrap().len() >= seen);
    assert!(!trace.of("wait").is_empty());
    eventually("no daemon is left", || home.daemons().is_empty());
}
