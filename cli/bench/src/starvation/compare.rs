//! Two runs side by side: what changed from the one to the other, and whether they are of a kind.
//!
//! A ratio of runs that differ in more than one thing says so, and what has nothing to stand beside
//! is named.

mod kind;
mod text;

use forebay_error::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::Value;

use crate::contest;
use crate::spread::Spread;

/// A change of at most this share of the first figure is none: runs differ by as much.
const SAME_SHARE: f64 = 0.01;

/// The same of how many accelerators are fed: a search may end 2 % above what it asks for, and so
/// may the next.
const SAME_FED: f64 = 0.03;

/// Half of the last digit of a number of two: contests of earlier releases told no more of how many
/// are fed.
const ROUNDED: f64 = 0.005;

/// Name of that figure.
const FED: &str = "accelerators fed";

/// Below this many seconds nothing is told of a wait: a thread's waking takes as long on a host
/// with other work.
const SAME_WAIT: f64 = 1e-4;

/// Threshold of a change, beside [`SAME_SHARE`].
#[derive(Debug, Clone, Copy)]
enum Floor {
    /// So much of the figure's own unit.
    Of(f64),
    /// So much for each step of the epoch.
    PerStep(f64),
    /// So much divided by the epoch's samples.
    OverSamples(f64),
}

/// A figure of an epoch: its name, where it stands in the document, whether more of it is better,
/// and what is no change of it.
const FIGURES: [(&str, &str, bool, Floor); 12] = [
    // Half a point.
    ("AU_ideal", "/au_ideal", true, Floor::Of(0.005)),
    ("samples/s", "/samples_per_second", true, Floor::Of(0.0)),
    ("bytes/s", "/bytes_per_second", true, Floor::Of(0.0)),
    // The kernel counts CPU time in hundredths of a second, of trainer and daemon each.
    ("CPU ms/sample", "/cpu_ms_per_sample", false, Floor::OverSamples(20.0)),
    ("first batch, s", "/first_batch_seconds", false, Floor::Of(10.0 * SAME_WAIT)),
    ("waited, s", "/wait/total_seconds", false, Floor::PerStep(SAME_WAIT)),
    ("wait p50, s", "/wait/p50_seconds", false, Floor::Of(SAME_WAIT)),
    ("wait p95, s", "/wait/p95_seconds", false, Floor::Of(SAME_WAIT)),
    ("wait p99, s", "/wait/p99_seconds", false, Floor::Of(SAME_WAIT)),
    ("longest wait, s", "/wait/max_seconds", false, Floor::Of(SAME_WAIT)),
    ("stalls", "/wait/stalls", false, Floor::PerStep(SAME_SHARE)),
    ("fetched, bytes", "/fetched_bytes", false, Floor::Of(0.0)),
];

/// The same of a cold step, taken apart by difference.
const PARTS: [(&str, &str); 6] = [
    ("synthetic step, s", "/synthetic_step_seconds"),
    ("cached step, s", "/cached_step_seconds"),
    ("cold step, s", "/cold_step_seconds"),
    ("prep stall, s", "/prep_stall_seconds"),
    ("fetch stall, s", "/fetch_stall_seconds"),
    ("booked fetch, s", "/booked_fetch_seconds"),
];

/// Changes between two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Properties that differ but should not, with both values; for lists the first differing
    /// entries, or their number.
    pub differ: Vec<(String, Value, Value)>,
    /// Figures that only one of the runs has, and the run.
    pub alone: Vec<String>,
    /// The releases.
    pub releases: (Value, Value),
    /// Figures, epoch by epoch.
    pub changes: Vec<Change>,
}

/// A figure, twice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// Subject: an epoch, a loader, or the whole run.
    pub of: String,
    /// Figure.
    pub figure: &'static str,
    /// In the first run.
    pub before: f64,
    /// In the second.
    pub after: f64,
    /// The second over the first; `None` where the first is 0.
    pub ratio: Option<f64>,
    /// True if the second is better; `None` if they are equal, or differ by less than noise.
    pub is_better: Option<bool>,
}

impl Comparison {
    /// Compares two documents of `forebay bench starvation --json`.
    ///
    /// # Errors
    /// `Invalid` for a document that is none.
    pub fn of(before: &Value, after: &Value) -> Result<Self> {
        let (ones, others) = (epochs(before, "first")?, epochs(after, "second")?);
        let mut compared = Self {
            differ: kind::differ(before, after),
            alone: Vec::new(),
            releases: (pick(before, "/release"), pick(after, "/release")),
            changes: Vec::new(),
        };
        for at in 0..ones.len().max(others.len()) {
            compared.epoch(ones.get(at), others.get(at));
        }
        compared.differential(&before["differential"], &after["differential"]);
        compared.held(before, after);
        compared.contest(&before["contest"], &after["contest"]);
        Ok(compared)
    }

    fn epoch(&mut self, one: Option<&Value>, other: Option<&Value>) {
        let kind = |epoch: &Value| pick(epoch, "/temperature").as_str().unwrap_or("?").to_owned();
        let named =
            |epoch: &Value, kinds: &str| format!("epoch {} ({kinds})", pick(epoch, "/epoch"));
        let (one, other) = match (one, other) {
            (Some(one), Some(other)) => (one, other),
            (Some(epoch), None) => return self.only(true, &named(epoch, &kind(epoch))),
            (None, Some(epoch)) => return self.only(false, &named(epoch, &kind(epoch))),
            (None, None) => return,
        };
        let kinds = match (kind(one), kind(other)) {
            (before, after) if before == after => after,
            // No like stands beside like here.
            (before, after) => format!("{before}, then {after}"),
        };
        let of = named(other, &kinds);
        let count = |path: &str| {
            let of = |epoch: &Value| pick(epoch, path).as_f64().unwrap_or_default();
            (of(one), of(other))
        };
        let (steps, samples) = (count("/wait/count"), count("/samples"));
        for (figure, path, more, floor) in FIGURES {
            let values = (pick(one, path).as_f64(), pick(other, path).as_f64());
            let floor = match floor {
                Floor::Of(floor) => floor,
                Floor::PerStep(floor) => floor * steps.0.max(steps.1),
                Floor::OverSamples(floor) => floor / samples.0.min(samples.1).max(1.0),
            };
            self.figure(&of, (figure, more), values, floor);
        }
    }

    /// A figure that both runs have, or that has nothing to stand beside.
    fn figure(
        &mut self,
        of: &str,
        named: (&'static str, bool),
        values: (Option<f64>, Option<f64>),
        floor: f64,
    ) {
        match values {
            (Some(before), Some(after)) => {
                self.changes.push(Change::of(of, named, (before, after), floor));
            }
            (None, None) => {}
            (before, _) => self.only(before.is_some(), &format!("{of}: {}", named.0)),
        }
    }

    fn differential(&mut self, before: &Value, after: &Value) {
        const OF: &str = "a cold step, by difference";
        match (before.is_object(), after.is_object()) {
            (true, true) => {
                for (figure, path) in PARTS {
                    let values = (pick(before, path).as_f64(), pick(after, path).as_f64());
                    self.figure(OF, (figure, false), values, SAME_WAIT);
                }
            }
            (false, false) => {}
            (is_first, _) => self.only(is_first, OF),
        }
    }

    fn held(&mut self, before: &Value, after: &Value) {
        let found =
            |run: &Value| run["held"].is_object().then(|| pick(run, "/held/accelerators").as_f64());
        match (found(before), found(after)) {
            (Some(Some(before)), Some(Some(after))) => {
                let floor = SAME_FED * before;
                self.changes.push(Change::of("run", (FED, true), (before, after), floor));
            }
            (None, None) => {}
            (before, after) => {
                let told = |fed: Option<Option<f64>>| match fed {
                    Some(Some(fed)) => format!("{fed:.2}"),
                    Some(None) => "not confirmed".to_owned(),
                    None => "not asked".to_owned(),
                };
                self.alone.push(format!("{FED}: {}, then {}", told(before), told(after)));
            }
        }
    }

    /// Contenders of a name are compared, where both runs had other loaders play.
    fn contest(&mut self, before: &Value, after: &Value) {
        let (ones, others) = match [before, after].map(|run| run["contenders"].as_array()) {
            [Some(ones), Some(others)] => (ones, others),
            [None, None] => return,
            [ones, _] => return self.only(ones.is_some(), "other loaders"),
        };
        for one in ones {
            match others.iter().find(|other| other["name"] == one["name"]) {
                Some(other) => self.contender(one, other),
                None => self.only(true, &loader(one)),
            }
        }
        let is_new = |other: &&Value| ones.iter().all(|one| one["name"] != other["name"]);
        for other in others.iter().filter(is_new) {
            self.only(false, &loader(other));
        }
    }

    fn contender(&mut self, one: &Value, other: &Value) {
        let of = loader(other);
        // Rounds tell by how much they differ.
        let range = |spread: Option<Spread>| spread.map_or(0.0, |one| one.highest - one.lowest);
        let median = |spread: Option<Spread>| spread.map(|one| one.median);
        let rounds = |path: &'static str| move |one: &Value| contest::spread(one, path);
        let (rate, au) = (rounds("samples_per_second"), rounds("au_ideal"));
        let cost = contest::cpu_ms_per_sample;
        let figures = [
            ("samples/s", true, rate(one), rate(other)),
            ("AU_ideal", true, au(one), au(other)),
            ("CPU ms/sample", false, cost(one), cost(other)),
        ];
        for (figure, more, one, other) in figures {
            let floor = f64::max(range(one), range(other));
            self.figure(&of, (figure, more), (median(one), median(other)), floor);
        }
        let (before, after) = (contest::fed(one), contest::fed(other));
        self.figure(&of, (FED, true), (before, after), fed_floor(before, after));
    }

    fn only(&mut self, is_first: bool, what: &str) {
        let run = if is_first { "first" } else { "second" };
        self.alone.push(format!("{what}: only in the {run} run"));
    }
}

impl Change {
    fn of(
        of: &str,
        (figure, more): (&'static str, bool),
        (before, after): (f64, f64),
        floor: f64,
    ) -> Self {
        let ratio = (before != 0.0).then(|| after / before);
        let is_change = (after - before).abs() > floor.max(SAME_SHARE * before.abs());
        let is_better = is_change.then_some((after > before) == more);
        Self { of: of.to_owned(), figure, before, after, ratio, is_better }
    }
}

/// Returns the largest insignificant difference in accelerators fed, with the rounding of both
/// runs.
fn fed_floor(before: Option<f64>, after: Option<f64>) -> f64 {
    let is_rounded = |fed: &f64| ((fed * 100.0).round() / 100.0 - fed).abs() < f64::EPSILON;
    let rounded = [before, after].into_iter().flatten().filter(is_rounded).count();
    SAME_FED * before.unwrap_or_default() + ROUNDED * rounded as f64
}

fn pick(document: &Value, path: &str) -> Value {
    document.pointer(path).cloned().unwrap_or_default()
}

fn loader(contender: &Value) -> String {
    pick(contender, "/name").as_str().unwrap_or("?").to_owned()
}

fn epochs<'a>(document: &'a Value, which: &str) -> Result<&'a Vec<Value>> {
    document["epochs"].as_array().ok_or_else(|| {
        Error::new(ErrorKind::Invalid, "the file is not a report of a starvation benchmark")
            .at("document", which)
            .advise("write both with: forebay bench starvation … --json > report.json")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(au: f64, wait: f64) -> Value {
        json!({
            "release": "1", "profile": "p", "batch_size": 8, "step_seconds": 0.1,
            "configuration": { "urls": ["a", "b"], "threads": 2 }, "machine": { "cpu": "x" },
            "epochs": [{ "epoch": 0, "temperature": "warm", "au_ideal": au, "samples": 800, "fetched_bytes": 0,
                         "wait": { "count": 100, "total_seconds": wait } }],
        })
    }

    #[test]
    fn changes_are_marked_better_or_worse() {
        let compared = Comparison::of(&run(0.5, 4.0), &run(0.75, 5.0)).unwrap();
        assert!(compared.differ.is_empty());
        let of = |figure| {
            let change = compared.changes.iter().find(|change| change.figure == figure).unwrap();
            (change.ratio, change.is_better)
        };
        assert_eq!(of("AU_ideal"), (Some(1.5), Some(true)));
        assert_eq!(of("waited, s"), (Some(1.25), Some(false)));
        assert_eq!(of("fetched, bytes"), (None, None));
        // A figure that neither document has is not invented.
        assert_eq!(compared.changes.len(), 3);
        let text = compared.to_string();
        assert!(text.contains("epoch 0 (warm)") && text.contains("worse"), "{text}");
    }

    #[test]
    fn runs_of_different_kinds_are_marked() {
        let mut other = run(0.5, 4.0);
        other["batch_size"] = json!(16);
        let compared = Comparison::of(&run(0.5, 4.0), &other).unwrap();
        assert_eq!(compared.differ, [("batch size".to_owned(), json!(8), json!(16))]);
        assert!(compared.to_string().starts_with("different: batch size 8 and 16"));
        other["epochs"][0]["temperature"] = json!("cold");
        let compared = Comparison::of(&run(0.5, 4.0), &other).unwrap();
        assert_eq!(compared.changes[0].of, "epoch 0 (warm, then cold)");
        let error = Comparison::of(&run(0.5, 4.0), &json!({})).unwrap_err();
        assert!(error.to_string().contains("second"), "{error}");
    }
    /// Both values of a setting are listed; of many shards, the first that differ.
    #[test]
    fn differing_settings_are_listed() {
        let mut other = run(0.5, 4.0);
        other["configuration"]["threads"] = json!(8);
        other["configuration"]["urls"] = json!(["a", "c"]);
        let differ = Comparison::of(&run(0.5, 4.0), &other).unwrap().differ;
        let named = ["threads", "the first of urls that differ,"].map(str::to_owned);
        let [threads, urls] = named;
        assert_eq!(differ, [(threads, json!(2), json!(8)), (urls, json!("b"), json!("c"))]);
        other["configuration"]["urls"] = json!(["a"]);
        let differ = Comparison::of(&run(0.5, 4.0), &other).unwrap().differ;
        assert_eq!(differ[1], ("number of urls".to_owned(), json!(2), json!(1)));
    }

    /// Nothing is dropped silently.
    #[test]
    fn parts_missing_in_one_run_are_listed() {
        let mut more = run(0.5, 4.0);
        let mut second = more["epochs"][0].clone();
        second["epoch"] = json!(1);
        more["epochs"].as_array_mut().unwrap().push(second);
        more["held"] = json!({ "accelerators": 1.5 });
        let mut one = run(0.5, 4.0);
        one["held"] = json!({ "accelerators": null });
        let compared = Comparison::of(&one, &more).unwrap();
        let alone = [
            "epoch 1 (warm): only in the second run",
            "accelerators fed: not confirmed, then 1.50",
        ];
        assert_eq!(compared.alone, alone);
        assert!(compared.to_string().contains("not compared: epoch 1"));
        let compared = Comparison::of(&more, &one).unwrap();
        assert_eq!(compared.alone[0], "epoch 1 (warm): only in the first run");
    }

    /// 18 microseconds and 30 are both no wait; 1 ms and 2 are not the same.
    #[test]
    fn differences_within_noise_are_no_change() {
        let with = |p50: f64, max: f64, total: f64| {
            let mut run = run(0.9, total);
            run["epochs"][0]["wait"]["p50_seconds"] = json!(p50);
            run["epochs"][0]["wait"]["max_seconds"] = json!(max);
            run
        };
        let compared =
            Comparison::of(&with(18e-6, 1e-3, 0.0018), &with(30e-6, 2e-3, 0.0030)).unwrap();
        let of = |figure| {
            let change = compared.changes.iter().find(|change| change.figure == figure).unwrap();
            change.is_better
        };
        assert_eq!((of("wait p50, s"), of("waited, s")), (None, None));
        assert_eq!(of("longest wait, s"), Some(false));
        assert!(compared.to_string().contains("the same"));
        let compared = Comparison::of(&run(0.900, 1.0), &run(0.904, 1.02)).unwrap();
        let better: Vec<_> = compared.changes.iter().map(|change| change.is_better).collect();
        assert_eq!(better, [None, Some(false), None]);
        // Two ticks of the clock are 0.025 ms each over 800 samples.
        let cpu = |ms: f64| {
            let mut run = run(0.9, 1.0);
            run["epochs"][0]["cpu_ms_per_sample"] = json!(ms);
            run
        };
        let of = |ms| Comparison::of(&cpu(1.0), &cpu(ms)).unwrap().changes[1].is_better;
        assert_eq!((of(1.02), of(1.03)), (None, Some(false)));
    }

    /// A change within the spread of rounds is none.
    #[test]
    fn contests_are_compared_loader_by_loader() {
        let with = |names: &[&str], rates: [f64; 2]| {
            let rounds = rates.map(|rate| {
                json!({ "samples_per_second": rate, "au_ideal": 0.9, "cpu_seconds": 1.0, "samples": rate })
            });
            let one = |name: &&str| json!({ "name": name, "rounds": rounds });
            let mut run = run(0.5, 4.0);
            run["contest"]["contenders"] = names.iter().map(one).collect();
            run
        };
        let of = |before: &Value, after: &Value| {
            let compared = Comparison::of(before, after).unwrap();
            let rate =
                compared.changes.iter().find(|one| one.of == "torch" && one.figure == "samples/s");
            (rate.unwrap().is_better, compared.alone)
        };
        let (before, after) =
            (with(&["torch", "dali"], [90.0, 110.0]), with(&["torch"], [95.0, 120.0]));
        assert_eq!(of(&before, &after), (None, vec!["dali: only in the first run".to_owned()]));
        let faster = with(&["torch", "spdl"], [190.0, 210.0]);
        assert_eq!(
            of(&after, &faster),
            (Some(true), vec!["spdl: only in the second run".to_owned()])
        );
    }

    /// Differential figures of both runs are compared; those of one run are listed.
    #[test]
    fn differential_figures_are_compared_or_listed() {
        let apart = |fetch: f64| {
            let mut run = run(0.5, 4.0);
            run["differential"] =
                json!({ "fetch_stall_seconds": fetch, "prep_stall_seconds": 0.01 });
            run
        };
        let compared = Comparison::of(&apart(0.5), &apart(0.25)).unwrap();
        let of = |figure| {
            let change = compared.changes.iter().find(|change| change.figure == figure).unwrap();
            (change.of.as_str(), change.is_better)
        };
        assert_eq!(of("fetch stall, s"), ("a cold step, by difference", Some(true)));
        assert_eq!(of("prep stall, s").1, None);
        assert!(compared.alone.is_empty());
        let compared = Comparison::of(&apart(0.5), &run(0.5, 4.0)).unwrap();
        assert_eq!(compared.alone, ["a cold step, by difference: only in the first run"]);
        let mut played = run(0.5, 4.0);
        played["contest"]["contenders"] = json!([{ "name": "spdl" }]);
        let compared = Comparison::of(&run(0.5, 4.0), &played).unwrap();
        assert_eq!(compared.alone, ["other loaders: only in the second run"]);
        let mut more = run(0.5, 4.0);
        more["epochs"][0]["wait"]["stalls"] = json!(3);
        let compared = Comparison::of(&run(0.5, 4.0), &more).unwrap();
        assert_eq!(compared.alone, ["epoch 0 (warm): stalls: only in the second run"]);
    }

    /// 0.13 may have been 0.1349; figures in full must differ by 3 %.
    #[test]
    fn rounding_error_is_no_change() {
        let with = |fed: f64| {
            let mut run = run(0.5, 4.0);
            let one = json!({ "name": "spdl", "sustained": { "rate_over_nominal": fed } });
            run["contest"]["contenders"] = json!([one]);
            run
        };
        let better = |before: f64, after: f64| {
            let compared = Comparison::of(&with(before), &with(after)).unwrap();
            compared.changes.iter().find(|change| change.figure == FED).unwrap().is_better
        };
        assert_eq!(better(0.13, 0.137_4), None);
        assert_eq!(better(0.130_12, 0.137_4), Some(true));
        assert_eq!(better(2.31, 2.3149), None);
        assert_eq!(better(2.3149, 2.24), Some(false));
    }
}
