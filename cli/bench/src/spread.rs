//! A figure of several rounds: its median and how far rounds differed.

use serde::Serialize;

/// The middle and the ends of what rounds gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Median; for an even number of rounds the mean of the middle two.
    pub median: f64,
    /// The lowest.
    pub lowest: f64,
    /// The highest.
    pub highest: f64,
}

impl Spread {
    /// Summarizes these rounds; zeros without any.
    #[must_use]
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        let mut rounds: Vec<f64> = rounds.into_iter().collect();
        rounds.sort_by(f64::total_cmp);
        let middle = rounds.len() / 2;
        match (rounds.first(), rounds.last()) {
            (Some(&lowest), Some(&highest)) => {
                let below = if rounds.len().is_multiple_of(2) {
                    rounds[middle - 1]
                } else {
                    rounds[middle]
                };
                Self { median: f64::midpoint(below, rounds[middle]), lowest, highest }
            }
            _ => Self::default(),
        }
    }

    /// Returns the range as a share of the median.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.median > 0.0 { (self.highest - self.lowest) / self.median } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_median_lowest_and_highest() {
        let odd = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(odd, Spread { median: 2.0, lowest: 1.0, highest: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(odd.share(), 1.0);
        assert_eq!(Spread::of([]), Spread::default());
    }
}
