//! Free ranges of a length.
//!
//! Free ranges never touch or overlap (neighbours are merged at once), so the largest free range is
//! always as large as it can be.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges, by place and by size. Best fit: the smallest range that is large enough, lowest
/// first, which keeps large ranges whole for large leases.
#[derive(Debug)]
pub(crate) struct Ranges {
    by_start: BTreeMap<usize, usize>,
    by_len: BTreeSet<(usize, usize)>,
}

impl Ranges {
    /// All of `[0, len)` is free.
    pub(crate) fn new(len: usize) -> Self {
        let mut ranges = Self { by_start: BTreeMap::new(), by_len: BTreeSet::new() };
        ranges.insert(0, len);
        ranges
    }

    /// Takes `len` bytes and returns where they start, or `None` if no range is that large.
    pub(crate) fn take(&mut self, len: usize) -> Option<usize> {
        let &(found, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, found);
        self.insert(start + len, found - len);
        Some(start)
    }

    /// Gives `[start, start + len)` back.
    pub(crate) fn give(&mut self, start: usize, len: usize) {
        let (mut from, mut until) = (start, start + len);
        if let Some((&before, &size)) = self.by_start.range(..start).next_back() {
            debug_assert!(before + size <= start, "a range was given back twice");
            if before + size == start {
                self.remove(before, size);
                from = before;
            }
        }
        if let Some((&after, &size)) = self.by_start.range(start..).next() {
            debug_assert!(until <= after, "a range was given back twice");
            if after == until {
                self.remove(after, size);
                until += size;
            }
        }
        self.insert(from, until - from);
    }

    fn insert(&mut self, start: usize, len: usize) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: usize = 64;

    /// The longest run of free cells in the model.
    fn longest(model: &[bool; LEN]) -> usize {
        model.split(|used| *used).map(<[bool]>::len).max().unwrap_or(0)
    }

    proptest! {
        /// Ranges never overlap, and room is found exactly when there is some.
        #[test]
        fn ranges_agree_with_a_bitmap(steps in prop::collection::vec((any::<bool>(), 1usize..20), 0..200)) {
            let mut ranges = Ranges::new(LEN);
            let mut model = [false; LEN];
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (take, number) in steps {
                if take {
                    match ranges.take(number) {
                        Some(start) => {
                            for used in &mut model[start..start + number] {
                                prop_assert!(!*used, "handed out twice");
                                *used = true;
                            }
                            held.push((start, number));
                        }
                        None => prop_assert!(longest(&model) < number, "refused although it fits"),
                    }
                } else if !held.is_empty() {
                    let (start, len) = held.swap_remove(number % held.len());
                    ranges.give(start, len);
                    model[start..start + len].fill(false);
                }
            }
            for (start, len) in held {
                ranges.give(start, len);
            }
            prop_assert_eq!(ranges.take(LEN), Some(0), "everything merges again");
        }
    }
}
