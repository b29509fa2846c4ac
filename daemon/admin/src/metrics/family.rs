//! A family of metrics, and the samples read for it.

use forebay_api::status::Status;
use forebay_histogram::Times;

/// Labels that say whose data something is about: told to admins only.
const NAMES: [&str; 6] = ["job", "session", "tenant", "dataset", "source", "mount"];

/// Returns true if a label identifies the owner of data.
pub(super) fn names_somebody(label: &str) -> bool {
    NAMES.contains(&label)
}

/// Characters of a label that somebody else than an admin wrote.
const LABEL_MAX: usize = 128;

/// Type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A count that only grows.
    Counter,
    /// A current value.
    Gauge,
    /// Times by bucket, in seconds.
    Histogram,
}

/// Rule to merge samples where their names are hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Together {
    /// Their sum.
    Sum,
    /// The largest.
    Most,
    /// The smallest.
    Least,
    /// Nothing: without the names they say nothing.
    Untold,
}

/// A family of metrics.
#[derive(Debug)]
pub(super) struct Family {
    /// As it is queried.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: &'static [&'static str],
    pub(super) together: Together,
    /// One or two sentences for who reads a number.
    pub(super) help: &'static str,
    /// Reads the samples; each has a value for each label.
    pub(super) read: fn(&Status) -> Vec<Sample>,
}

impl Family {
    pub(super) const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        read: fn(&Status) -> Vec<Sample>,
    ) -> Self {
        Self { name, kind: Kind::Counter, labels, together: Together::Sum, help, read }
    }

    pub(super) const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        read: fn(&Status) -> Vec<Sample>,
    ) -> Self {
        Self { name, kind: Kind::Gauge, labels, together: Together::Sum, help, read }
    }

    pub(super) const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        read: fn(&Status) -> Vec<Sample>,
    ) -> Self {
        Self { name, kind: Kind::Histogram, labels, together: Together::Sum, help, read }
    }

    /// The same, where the sum says nothing.
    pub(super) const fn together(self, together: Together) -> Self {
        Self { together, ..self }
    }
}

/// One number of a family, or one histogram.
#[derive(Debug)]
pub(super) struct Sample {
    /// Values of the family's labels, in their order.
    pub(super) values: Vec<String>,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
    Times(Times),
}

impl Sample {
    pub(super) fn new<const N: usize>(labels: [&str; N], value: impl Into<Value>) -> Self {
        Self { values: labels.map(shortened).into(), value: value.into() }
    }

    /// The same, where labels are counted at run time.
    pub(super) fn of<'a>(
        labels: impl IntoIterator<Item = &'a str>,
        value: impl Into<Value>,
    ) -> Self {
        Self { values: labels.into_iter().map(shortened).collect(), value: value.into() }
    }

    /// Returns the sample of a family with exactly one.
    pub(super) fn only(value: impl Into<Value>) -> Vec<Self> {
        vec![Self::new([], value)]
    }
}

/// A label's value: what is longer says no more, and costs whoever keeps it.
fn shortened(label: &str) -> String {
    label.chars().take(LABEL_MAX).collect()
}

impl Value {
    pub(super) fn merge(&mut self, other: Self, how: Together) {
        match (self, other) {
            (Self::Times(these), Self::Times(those)) => these.add(&those),
            (Self::Whole(one), Self::Whole(other)) => {
                *one = match how {
                    Together::Sum | Together::Untold => one.saturating_add(other),
                    Together::Most => other.max(*one),
                    Together::Least => other.min(*one),
                }
            }
            (Self::Real(one), Self::Real(other)) => {
                *one = match how {
                    Together::Sum | Together::Untold => *one + other,
                    Together::Most => other.max(*one),
                    Together::Least => other.min(*one),
                }
            }
            // A family's samples are of one sort.
            _ => debug_assert!(false, "numbers and times are no family"),
        }
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<&Times> for Value {
    fn from(value: &Times) -> Self {
        Self::Times(value.clone())
    }
}
