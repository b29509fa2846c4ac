//! A comparison as text, for terminals.

use std::fmt;

use super::Comparison;

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, before, after) in &self.differ {
            writeln!(f, "different: {name} {before} and {after}")?;
        }
        for alone in &self.alone {
            writeln!(f, "not compared: {alone}")?;
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
                None => writeln!(f, "  the same")?,
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
