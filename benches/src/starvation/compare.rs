//! Two runs side by side: what changed from the one to the other, and whether they are of a kind.
//!
//! Its rule: a ratio of runs that differ in more than one thing says so.

use std::fmt;

use forebay_error::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::Value;

/// A figure of an epoch: its name, where it stands in the document, and whether more of it is better.
const FIGURES: [(&str, &str, bool); 9] = [
    ("AU_ideal", "/au_ideal", true),
    ("samples/s", "/samples_per_second", true),
    ("bytes/s", "/bytes_per_second", true),
    ("CPU ms/sample", "/cpu_ms_per_sample", false),
    ("first batch, s", "/first_batch_seconds", false),
    ("waited, s", "/wait/total_seconds", false),
    ("wait p50, s", "/wait/p50_seconds", false),
    ("wait p99, s", "/wait/p99_seconds", false),
    ("fetched, bytes", "/fetched_bytes", false),
];

/// What has to be the same for a ratio to mean anything: its name, and where it stands.
const KIND: [(&str, &str); 5] = [
    ("workload", "/profile"),
    ("batch size", "/batch_size"),
    ("step", "/step_seconds"),
    ("configuration", "/configuration_sha256"),
    ("processor", "/machine/cpu"),
];

/// What changed between two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// What the runs differ in that they should have in common, with both values.
    pub differ: Vec<(&'static str, Value, Value)>,
    /// The releases.
    pub releases: (Value, Value),
    /// Figures, epoch by epoch.
    pub changes: Vec<Change>,
}

/// A figure, twice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// Of which epoch, or of the whole run.
    pub of: String,
    /// What it is.
    pub figure: &'static str,
    /// In the first run.
    pub before: f64,
    /// In the second.
    pub after: f64,
    /// The second over the first; `None` where the first is 0.
    pub ratio: Option<f64>,
    /// Whether the second is the better one; `None` if they are the same.
    pub is_better: Option<bool>,
}

impl Comparison {
    /// Compares two documents of `forebay bench starvation --json`.
    ///
    /// # Errors
    /// `Invalid` for a document that is none.
    pub fn of(before: &Value, after: &Value) -> Result<Self> {
        let (epochs, others) = (epochs(before, "first")?, epochs(after, "second")?);
        let pick =
            |document: &Value, path: &str| document.pointer(path).cloned().unwrap_or_default();
        let differ = KIND.iter().filter_map(|(name, path)| {
            let values = (pick(before, path), pick(after, path));
            (values.0 != values.1).then_some((*name, values.0, values.1))
        });
        let differ: Vec<_> = differ.collect();
        let mut changes = Vec::new();
        for (one, other) in epochs.iter().zip(others) {
            let kind = |epoch| pick(epoch, "/temperature").as_str().unwrap_or("?").to_owned();
            let kinds = match (kind(one), kind(other)) {
                (before, after) if before == after => after,
                // No like stands beside like here.
                (before, after) => format!("{before}, then {after}"),
            };
            let of = format!("epoch {} ({kinds})", pick(other, "/epoch"));
            let figures = FIGURES.iter().filter_map(|(figure, path, more)| {
                Change::of(&of, (figure, *more), (&pick(one, path), &pick(other, path)))
            });
            changes.extend(figures);
        }
        let held = (&pick(before, "/held/accelerators"), &pick(after, "/held/accelerators"));
        changes.extend(Change::of("run", ("accelerators fed", true), held));
        let releases = (pick(before, "/release"), pick(after, "/release"));
        Ok(Self { differ, releases, changes })
    }
}

impl Change {
    fn of(
        of: &str,
        (figure, more): (&'static str, bool),
        (before, after): (&Value, &Value),
    ) -> Option<Self> {
        let (before, after) = (before.as_f64()?, after.as_f64()?);
        let ratio = (before != 0.0).then(|| after / before);
        #[allow(clippy::float_cmp, reason = "figures that are the same to the bit did not change")]
        let is_better = (before != after).then_some((after > before) == more);
        Some(Self { of: of.to_owned(), figure, before, after, ratio, is_better })
    }
}

fn epochs<'a>(document: &'a Value, which: &str) -> Result<&'a Vec<Value>> {
    document["epochs"].as_array().ok_or_else(|| {
        Error::new(ErrorKind::Invalid, "this is no report of a starvation benchmark")
            .at("document", which)
            .advise("write both with: forebay bench starvation … --json > report.json")
    })
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, before, after) in &self.differ {
            writeln!(f, "not alike: {name} {before} and {after}")?;
        }
        let mut of = "";
        for change in &self.changes {
            if change.of != of {
                of = &change.of;
                writeln!(f, "\n{of:24}{:>14}{:>14}{:>9}", "before", "after", "ratio")?;
            }
            write!(
                f,
                "  {:22}{:>14}{:>14}",
                change.figure,
                figure(change.before),
                figure(change.after)
            )?;
            match change.ratio {
                Some(ratio) => write!(f, "{ratio:>9.3}")?,
                None => write!(f, "{:>9}", "-")?,
            }
            match change.is_better {
                Some(true) => writeln!(f, "  better")?,
                Some(false) => writeln!(f, "  worse")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

/// Four digits that count, whatever the size.
fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        medium if medium >= 1.0 => format!("{value:.3}"),
        _ => format!("{value:.5}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(au: f64, wait: f64) -> Value {
        json!({
            "release": "1", "profile": "p", "batch_size": 8, "step_seconds": 0.1,
            "configuration_sha256": "c", "machine": { "cpu": "x" },
            "epochs": [{ "epoch": 0, "temperature": "warm", "au_ideal": au, "fetched_bytes": 0,
                         "wait": { "total_seconds": wait } }],
        })
    }

    #[test]
    fn better_is_what_a_user_calls_better() {
        let compared = Comparison::of(&run(0.5, 4.0), &run(0.75, 5.0)).unwrap();
        assert!(compared.differ.is_empty());
        let of = |figure| {
            let change = compared.changes.iter().find(|change| change.figure == figure).unwrap();
            (change.ratio, change.is_better)
        };
        assert_eq!(of("AU_ideal"), (Some(1.5), Some(true)));
        assert_eq!(of("waited, s"), (Some(1.25), Some(false)));
        assert_eq!(of("fetched, bytes"), (None, None));
        // What neither document has is not made up.
        assert_eq!(compared.changes.len(), 3);
        let text = compared.to_string();
        assert!(text.contains("epoch 0 (warm)") && text.contains("worse"), "{text}");
    }

    #[test]
    fn runs_that_differ_in_kind_say_so() {
        let mut other = run(0.5, 4.0);
        other["batch_size"] = json!(16);
        let compared = Comparison::of(&run(0.5, 4.0), &other).unwrap();
        assert_eq!(compared.differ, [("batch size", json!(8), json!(16))]);
        assert!(compared.to_string().starts_with("not alike: batch size 8 and 16"));
        other["epochs"][0]["temperature"] = json!("cold");
        let compared = Comparison::of(&run(0.5, 4.0), &other).unwrap();
        assert_eq!(compared.changes[0].of, "epoch 0 (warm, then cold)");
        let error = Comparison::of(&run(0.5, 4.0), &json!({})).unwrap_err();
        assert!(error.to_string().contains("second"), "{error}");
    }
}
