//! Growth of a figure with a size.
//!
//! A figure that costs a·nᵇ for n things lies on a straight line of slope b where both axes are
//! logarithmic. The reported exponent is the slope of least squares through the upper half of the
//! points,
//! ```text
//! b = Σ (xᵢ − x̄)(yᵢ − ȳ) ÷ Σ (xᵢ − x̄)²     x = ln size, y = ln figure
//! ```
//! because constants hide the growth in the lower half. 0: it does not grow; 1: as the size does;
//! below 1 doubling the size costs less than double.

use std::fmt;

use serde::Serialize;

/// A figure at several sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Growth {
    /// Measured figure.
    pub name: String,
    /// Varied quantity.
    pub size: &'static str,
    /// Unit of the figure.
    pub unit: Unit,
    /// In the order of sizes.
    pub points: Vec<Point>,
    /// Slope of the upper half; none for fewer than two sizes.
    pub exponent: Option<f64>,
}

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Time.
    Seconds,
}

/// A figure at one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Size.
    pub size: u64,
    /// The figure; a median where there were several rounds.
    pub value: f64,
}

impl Growth {
    /// A figure in seconds at these sizes, which ascend.
    #[must_use]
    pub fn in_seconds(name: impl Into<String>, size: &'static str, points: Vec<Point>) -> Self {
        let exponent = exponent(&points);
        Self { name: name.into(), size, unit: Unit::Seconds, points, exponent }
    }
}

/// The exponent of the upper half of these points; of fewer than two, or where one is not positive,
/// there is none.
#[must_use]
pub fn exponent(points: &[Point]) -> Option<f64> {
    // The middle one of an odd number belongs to both halves; two are needed for a slope.
    let upper = &points[(points.len() / 2).min(points.len().saturating_sub(2))..];
    if upper.len() < 2 || upper.iter().any(|point| point.size == 0 || point.value <= 0.0) {
        return None;
    }
    let logs: Vec<(f64, f64)> =
        upper.iter().map(|point| ((point.size as f64).ln(), point.value.ln())).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / logs.len() as f64;
    let (x, y) = (mean(|log| log.0), mean(|log| log.1));
    let spread: f64 = logs.iter().map(|log| (log.0 - x).powi(2)).sum();
    let along: f64 = logs.iter().map(|log| (log.0 - x) * (log.1 - y)).sum();
    (spread > 0.0).then(|| along / spread)
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exponent = self.exponent.map_or("-".to_owned(), |exponent| format!("{exponent:.2}"));
        writeln!(f, "{} (exponent {exponent})", self.name)?;
        for Point { size, value } in &self.points {
            writeln!(f, "  {size:>12} {:<8} {:>12}", self.size, duration(*value))?;
        }
        Ok(())
    }
}

/// Seconds, in the unit that leaves three digits before the point at most.
pub(crate) fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-6 => (s * 1e9, "ns"),
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: impl Fn(f64) -> f64) -> Vec<Point> {
        let sizes = (0..7).map(|power| 10_u64.pow(power));
        sizes.map(|size| Point { size, value: of(size as f64) }).collect()
    }

    #[test]
    fn exponents_match_known_functions() {
        let near = |of: &[Point], expected: f64| {
            let found = exponent(of).unwrap();
            assert!((found - expected).abs() <= 0.05, "{found} for {expected}");
        };
        near(&points(|n| 3e-9 * n), 1.0);
        // A constant hides it below, and not above.
        near(&points(|n| 50.0 + 0.5 * n), 1.0);
        near(&points(|_| 0.3), 0.0);
        near(&points(f64::sqrt), 0.5);
        near(&points(|n| n * n / 7.0), 2.0);
        assert!(exponent(&points(|n| n * (1.0 + n.ln()))).unwrap() < 1.2);
    }

    #[test]
    fn exponent_uses_the_upper_half_of_sizes() {
        let mut all = points(|n| n);
        all[0].value = 1e6;
        all[1].value = 1e6;
        assert!((exponent(&all).unwrap() - 1.0).abs() < 1e-9);
        let even = &all[1..];
        assert!((exponent(even).unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn exponent_needs_two_sizes() {
        assert_eq!(exponent(&[]), None);
        assert_eq!(exponent(&points(|n| n)[..1]), None);
        assert!(exponent(&points(|n| n)[..2]).is_some());
        assert_eq!(exponent(&points(|_| 0.0)), None);
        let twice = [Point { size: 5, value: 1.0 }; 2];
        assert_eq!(exponent(&twice), None);
    }

    #[test]
    fn a_growth_shows_its_sizes_and_its_exponent() {
        let growth = Growth::in_seconds("opening", "shards", points(|n| n * 1e-6));
        let text = growth.to_string();
        assert!(text.contains("opening (exponent 1.00)"), "{text}");
        assert!(text.contains("1000000 shards") && text.contains("1.0 ms"), "{text}");
    }
}
