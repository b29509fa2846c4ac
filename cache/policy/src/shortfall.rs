//! Shortfall of a node whose jobs wait: cache, or link.
//!
//! The rule is the fluid bound. A byte read in each epoch by jobs of so many bytes an epoch and so
//! many bytes a second is read `Σ rate / epoch` times a second; caching it saves the link as much.
//! The best cache of a size holds the most frequently read bytes; the link must deliver the rest.
//! Jobs of the same data that happen to read it side by side need less, so this is an upper bound
//! of the shortfall.

/// Addition that would let every job read without waiting: one or the other.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct Remedy {
    /// Bytes of cache that are missing; none where no cache is large enough.
    pub cache: Option<u64>,
    /// Bytes a second that the link lacks.
    pub bandwidth: Option<f64>,
}

/// Bytes that are read alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mass {
    /// Number of bytes.
    pub bytes: u64,
    /// Reads of each byte per second.
    pub frequency: f64,
}

/// Returns the shortfall of a cache of `capacity` bytes and a link of `bandwidth` bytes a second
/// for these reads; none if they suffice.
#[must_use]
pub fn shortfall(masses: &[Mass], capacity: u64, bandwidth: f64) -> Option<Remedy> {
    let mut masses = masses.to_vec();
    masses.sort_by(|a, b| b.frequency.total_cmp(&a.frequency));
    let mut left = capacity;
    for mass in &mut masses {
        let cached = mass.bytes.min(left);
        (mass.bytes, left) = (mass.bytes - cached, left - cached);
    }
    let flow = |mass: &Mass| mass.bytes as f64 * mass.frequency;
    let mut lacks = masses.iter().map(flow).sum::<f64>() - bandwidth;
    if lacks <= 0.0 {
        return None;
    }
    let missing = lacks;
    let mut cache = 0;
    for mass in masses.iter().filter(|mass| mass.bytes > 0 && mass.frequency > 0.0) {
        let share = (lacks / flow(mass)).min(1.0);
        cache += (mass.bytes as f64 * share).ceil() as u64;
        lacks -= flow(mass) * share;
        if share < 1.0 {
            break;
        }
    }
    Some(Remedy { cache: Some(cache), bandwidth: Some(missing) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shortfall_of_one_job_matches_the_bound() {
        // 1000 bytes an epoch at 100 a second, half of them cached, over a link of 20 a second: the
        // rest needs 50.
        let masses = [Mass { bytes: 1000, frequency: 0.1 }];
        let remedy = shortfall(&masses, 500, 20.0).unwrap();
        assert_eq!(remedy.bandwidth, Some(30.0));
        assert_eq!(remedy.cache, Some(300));
        assert_eq!(shortfall(&masses, 500, 50.0), None);
        assert_eq!(shortfall(&masses, 1000, 0.0), None, "all of it is cached");
        assert_eq!(shortfall(&[], 0, 0.0), None, "nobody reads");
    }

    #[test]
    fn most_frequently_read_data_is_cached_first() {
        let masses = [Mass { bytes: 100, frequency: 1.0 }, Mass { bytes: 100, frequency: 5.0 }];
        // The second is cached; the first needs 100 a second.
        let remedy = shortfall(&masses, 100, 40.0).unwrap();
        assert_eq!((remedy.bandwidth, remedy.cache), (Some(60.0), Some(60)));
    }

    proptest! {
        /// Either remedy is enough, and no more than enough.
        #[test]
        fn either_remedy_is_just_enough(
            masses in prop::collection::vec((1..1000_u64, 1..50_u32), 0..6),
            capacity in 0..3000_u64,
            bandwidth in 0.0..5000.0_f64,
        ) {
            let masses: Vec<_> = masses
                .into_iter()
                .map(|(bytes, tenths)| Mass { bytes, frequency: f64::from(tenths) / 10.0 })
                .collect();
            if let Some(remedy) = shortfall(&masses, capacity, bandwidth) {
                let (cache, link) = (remedy.cache.unwrap(), remedy.bandwidth.unwrap());
                // Sums of floats differ in their last digits.
                prop_assert_eq!(shortfall(&masses, capacity + cache, bandwidth + 1e-6), None);
                prop_assert_eq!(shortfall(&masses, capacity, bandwidth + link + 1e-6), None);
                prop_assert!(shortfall(&masses, capacity, bandwidth + link * 0.99 - 1e-6).is_some());
                // One byte more than the exact share of each mass may be cached.
                let less = cache.saturating_sub(1 + masses.len() as u64);
                prop_assert!(cache <= 7 || shortfall(&masses, capacity + less, bandwidth - 1e-6).is_some());
            }
        }
    }
}
