//! Share of a stream along the positions of a mixture, as exact arithmetic on whole numbers.
//!
//! Let C(p) be the samples that a stream is due in the first p positions, as a real number. Sample
//! n is released at the last position with C ≤ n, and its deadline is the first with C ≥ n + 1.

/// Samples due as a function of the position.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pace {
    /// `part` of every `period` positions: C(p) = p · part / period.
    Even {
        /// Samples per period; above 0.
        part: u64,
        /// Positions.
        period: u64,
    },
    /// A share that changes evenly from `first` to `last` of `parts` over `len` positions:
    /// C(p) = (first · p + (last − first) · p² / 2len) / parts.
    Glide {
        /// Share at the first position.
        first: u32,
        /// Share at the end.
        last: u32,
        /// Sum of all streams' shares.
        parts: u32,
        /// Positions; at most `SAMPLES_MAX`, so that products stay below 2^127.
        len: u64,
    },
}

impl Pace {
    /// Returns ⌊C(`at`)⌋: samples whose deadline is not past `at`.
    pub(super) fn finished(self, at: u64) -> u64 {
        match self {
            Self::Even { part, period } => narrow(u128::from(at) * u128::from(part), period),
            Self::Glide { .. } => {
                let (due, unit) = (self.due(at), self.unit());
                u64::try_from(due / unit).expect("not above the positions")
            }
        }
    }

    /// Returns ⌈C(`at`)⌉: samples released before `at`.
    pub(super) fn begun(self, at: u64) -> u64 {
        match self {
            Self::Even { part, period } => {
                let due = (u128::from(at) * u128::from(part)).div_ceil(u128::from(period));
                u64::try_from(due).expect("part is not above the period")
            }
            Self::Glide { .. } => {
                let (due, unit) = (self.due(at), self.unit());
                u64::try_from((due + unit - 1) / unit).expect("not above the positions")
            }
        }
    }

    /// Returns the first position of a sample; that of the end if it is never released.
    pub(super) fn release(self, sample: u64) -> u64 {
        match self {
            Self::Even { part, period } => narrow(u128::from(sample) * u128::from(period), part),
            Self::Glide { len, .. } => {
                let most = i128::from(sample) * self.unit();
                partition(len, |at| self.due(at + 1) <= most)
            }
        }
    }

    /// Returns the position before which a sample comes; `u64::MAX` if none binds it.
    pub(super) fn deadline(self, sample: u64) -> u64 {
        match self {
            Self::Even { part, period } => {
                let end = u128::from(sample + 1) * u128::from(period);
                u64::try_from(end.div_ceil(u128::from(part))).unwrap_or(u64::MAX)
            }
            Self::Glide { len, .. } => {
                let least = i128::from(sample + 1) * self.unit();
                match self.due(len) < least {
                    true => u64::MAX,
                    false => partition(len, |at| self.due(at) < least),
                }
            }
        }
    }

    /// Returns C(`at`) of a glide in its units.
    fn due(self, at: u64) -> i128 {
        let Self::Glide { first, last, len, .. } = self else { return 0 };
        let (first, last, at) = (i128::from(first), i128::from(last), i128::from(at));
        2 * first * i128::from(len) * at + (last - first) * at * at
    }

    /// Returns the units of a sample in [`Pace::due`].
    fn unit(self) -> i128 {
        let Self::Glide { parts, len, .. } = self else { return 1 };
        2 * i128::from(parts) * i128::from(len)
    }
}

/// Returns `⌊product / by⌋`, or the largest number where that is larger.
fn narrow(product: u128, by: u64) -> u64 {
    // Most products are small, and a division of 64 bits takes a tenth of the time.
    match u64::try_from(product) {
        Ok(product) => product / by,
        Err(_) => u64::try_from(product / u128::from(by)).unwrap_or(u64::MAX),
    }
}

/// Returns the first position below `len` that is not before the boundary; `len` if all are.
fn partition(len: u64, is_before: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        match is_before(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}
