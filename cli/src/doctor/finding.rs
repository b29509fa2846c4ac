//! Result of one check.
//!
//! A finding that is not in order names its remedy, as a command or as a file's line; no other
//! finding does.

use std::fmt::{self, Write as _};

use bytesize::ByteSize;
use serde::Serialize;
use serde_json::{Map, Value};

/// Verdict of a check, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// Not looked at, for the reason given.
    Skipped,
    /// It works: slower than it could, or until something else happens.
    Warn,
    /// The daemon does not start, fails later, or is of no use so.
    Wrong,
}

impl Verdict {
    /// Returns the name, the same in text and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warn => "warn",
            Self::Wrong => "wrong",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    /// Subject of the check.
    pub(super) check: &'static str,
    /// Tier, if it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tier: Option<String>,
    /// Verdict.
    pub(super) verdict: Verdict,
    /// Facts, with figures; or the reason the check was skipped.
    pub(super) found: String,
    /// The command that mends it, or the file and line to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
    /// The figures, for programs.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) figures: Map<String, Value>,
}

impl Finding {
    fn new(check: &'static str, verdict: Verdict, found: String, mend: Option<String>) -> Self {
        Self { check, tier: None, verdict, found, mend, figures: Map::new() }
    }

    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, found.into(), None)
    }

    pub(super) fn skipped(check: &'static str, why: impl Into<String>) -> Self {
        Self::new(check, Verdict::Skipped, why.into(), None)
    }

    pub(super) fn warn(
        check: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self::new(check, Verdict::Warn, found.into(), Some(mend.into()))
    }

    pub(super) fn wrong(
        check: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self::new(check, Verdict::Wrong, found.into(), Some(mend.into()))
    }

    /// The same, of one tier.
    pub(super) fn of(mut self, tier: &str) -> Self {
        self.tier = Some(tier.to_owned());
        self
    }

    /// The same with a figure for programs.
    pub(super) fn figure(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.figures.insert(name.to_owned(), value.into());
        self
    }

    /// Returns the subject, and its tier.
    fn subject(&self) -> String {
        match &self.tier {
            Some(tier) => format!("{} of {tier}", self.check),
            None => self.check.to_owned(),
        }
    }
}

/// Everything that was looked at.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The release that looked.
    pub(super) release: &'static str,
    /// Findings of each verdict.
    pub(super) counts: Counts,
    /// All of them, in order.
    pub(super) checks: Vec<Finding>,
}

/// Number of findings by verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) ok: usize,
    pub(super) warn: usize,
    pub(super) wrong: usize,
    pub(super) skipped: usize,
}

impl Report {
    pub(super) fn of(checks: Vec<Finding>) -> Self {
        let mut counts = Counts::default();
        for finding in &checks {
            *match finding.verdict {
                Verdict::Ok => &mut counts.ok,
                Verdict::Warn => &mut counts.warn,
                Verdict::Wrong => &mut counts.wrong,
                Verdict::Skipped => &mut counts.skipped,
            } += 1;
        }
        Self { release: env!("CARGO_PKG_VERSION"), counts, checks }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = |finding: &Finding| finding.subject().chars().count();
        let width = self.checks.iter().map(wide).max().unwrap_or(0);
        for finding in &self.checks {
            let (verdict, subject) = (finding.verdict.name(), finding.subject());
            writeln!(f, "{verdict:<7}  {subject:<width$}  {}", finding.found)?;
            if let Some(mend) = &finding.mend {
                writeln!(f, "{:<7}  {:<width$}  fix: {mend}", "", "")?;
            }
        }
        let Counts { ok, warn, wrong, skipped } = self.counts;
        write!(f, "{ok} ok, {warn} warn, {wrong} wrong, {skipped} skipped")
    }
}

/// A size as people read it.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// `one`, or `one and two`, or `one, two and three`.
pub(super) fn listed<T: fmt::Display>(all: &[T]) -> String {
    let mut text = String::new();
    for (at, one) in all.iter().enumerate() {
        let gap = match at {
            0 => "",
            _ if at + 1 == all.len() => " and ",
            _ => ", ",
        };
        // A string takes everything.
        let _ = write!(text, "{gap}{one}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_aligned_and_counted() {
        let report = Report::of(vec![
            Finding::ok("clock", "in time"),
            Finding::warn("disk", "spins", "use another").of("nvme0").figure("n", 3),
            Finding::wrong("space", "none", "make some"),
            Finding::skipped("cgroup_cpu", "no cgroup"),
        ]);
        assert_eq!(report.counts, Counts { ok: 1, warn: 1, wrong: 1, skipped: 1 });
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ok       clock          in time");
        assert_eq!(lines[1], "warn     disk of nvme0  spins");
        assert_eq!(lines[2], "                        fix: use another");
        assert_eq!(lines[6], "1 ok, 1 warn, 1 wrong, 1 skipped");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["checks"][1]["figures"]["n"], 3);
        assert_eq!(json["checks"][0].get("mend"), None);
        assert_eq!(json["checks"][3]["verdict"], "skipped");
    }

    #[test]
    fn lists_are_joined_as_prose() {
        assert_eq!(listed::<&str>(&[]), "");
        assert_eq!(listed(&["a"]), "a");
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
    }
}
