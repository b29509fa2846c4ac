//! Many durations, of which quantiles are wanted.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Durations beyond an hour are recorded as one: there the digits do not matter.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Significant digits.
const DIGITS: u8 = 3;

/// Durations to three digits.
#[derive(Debug, Clone)]
pub(crate) struct Durations(Histogram<u64>);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("constant, valid bounds"))
    }
}

impl Durations {
    pub(crate) fn record(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanoseconds.max(1));
    }

    pub(crate) fn add(&mut self, others: &Self) {
        self.0.add(&others.0).expect("histograms of the same bounds");
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Seconds that such a share of them did not exceed; 0 of none.
    pub(crate) fn at(&self, quantile: f64) -> f64 {
        if self.0.is_empty() {
            return 0.0;
        }
        Duration::from_nanos(self.0.value_at_quantile(quantile)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_cover_all_recorded_durations() {
        let mut durations = Durations::default();
        assert_eq!((durations.count(), durations.at(1.0)), (0, 0.0));
        (1..=100).for_each(|ms| durations.record(Duration::from_millis(ms)));
        let mut others = Durations::default();
        others.record(Duration::from_secs(3600 * 24));
        durations.add(&others);
        assert_eq!(durations.count(), 101);
        let near = |quantile, seconds: f64| (durations.at(quantile) / seconds - 1.0).abs() < 2e-3;
        assert!(near(0.5, 0.051) && near(0.95, 0.096) && near(1.0, 3600.0));
    }
}
