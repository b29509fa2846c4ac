//! Cost of parts of a shard, and of the whole.
//!
//! A request to a store costs a price, a share of the store's request rate, and a round trip; bytes
//! cost bandwidth. Both are counted in bytes here: a request costs as much as
//! [`REQUEST_BYTES`]. Rule: whoever reads parts never pays more than twice what the cheaper of the
//! two ways would have cost, however long it goes on.

/// Bytes that cost as much as one more request. A link of 10 Gbit/s moves them in the time in which
/// a store that serves 10,000 requests a second to a node serves one.
pub const REQUEST_BYTES: u64 = 128 << 10;

/// Bytes of a request of a whole shard, as fills make them.
const PART_BYTES: u64 = 1 << 20;

/// Returns the cost of reading so many bytes by so many requests, in bytes.
#[must_use]
pub fn cost(bytes: u64, requests: u64) -> u64 {
    bytes.saturating_add(requests.saturating_mul(REQUEST_BYTES))
}

/// Returns the cost of a whole shard of this length.
#[must_use]
pub fn whole(len: u64) -> u64 {
    cost(len, len.div_ceil(PART_BYTES))
}

/// Cost of the wanted parts of shards, and of the shards, as far as it is known before they are
/// read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes of the parts.
    pub bytes: u64,
    /// Requests for them.
    pub requests: u64,
    /// Bytes of the shards.
    pub whole_bytes: u64,
}

/// Parts are taken if they cost less than this share of the whole: copies of whole shards serve
/// other jobs as well, and what the parts cost is an estimate.
const WORTH: (u64, u64) = (3, 4);

/// Returns true if parts that take so much are preferred to a whole that takes so much.
#[must_use]
pub fn is_clearly_less(parts: u64, whole: u64) -> bool {
    let (share, of) = WORTH;
    parts / share < whole / of
}

impl Estimate {
    /// Returns true if a job is to read parts of its shards.
    #[must_use]
    pub fn takes_parts(&self) -> bool {
        let (parts, whole) = (cost(self.bytes, self.requests), whole(self.whole_bytes));
        self.whole_bytes > 0 && is_clearly_less(parts, whole)
    }

    /// Returns the reason for the choice, a sentence for people.
    #[must_use]
    pub fn why(&self) -> String {
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / (whole.max(1)) as f64;
        let bytes = percent(self.bytes, self.whole_bytes);
        let requests = percent(self.requests, self.whole_bytes.div_ceil(PART_BYTES));
        let cost = percent(cost(self.bytes, self.requests), whole(self.whole_bytes));
        let chosen = if self.takes_parts() { "excerpts" } else { "whole shards" };
        format!(
            "{chosen}: what it wants is {bytes:.1} % of the bytes of its shards, in {requests:.1} % \
             of the requests, at {cost:.1} % of the cost"
        )
    }
}

/// Cost that reads of parts of a shard have had so far.
///
/// The cost of future reads is unknown, as in the ski-rental problem. A shard is fetched as a
/// whole once its parts have cost as much.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent(u64);

impl Spent {
    /// Adds a read.
    pub fn add(&mut self, bytes: u64, requests: u64) {
        self.0 = self.0.saturating_add(cost(bytes, requests));
    }

    /// Returns true if a shard of this length is to be fetched as a whole, after parts for this
    /// cost.
    #[must_use]
    pub fn pays_for(self, len: u64) -> bool {
        self.0 >= whole(len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_taken_where_they_cost_clearly_less() {
        let mib = 1 << 20;
        let takes = |bytes, requests, whole_bytes| {
            let estimate = Estimate { bytes, requests, whole_bytes };
            let is_told = estimate.why().starts_with("excerpts");
            assert_eq!(estimate.takes_parts(), is_told);
            is_told
        };
        // One sample of a hundred, of 100 KiB each.
        assert!(takes(mib, 10, 100 * mib));
        // One of four members of 64 KiB, each by itself; and of 4 KiB.
        assert!(takes(64 * mib, 1024, 257 * mib));
        assert!(!takes(4 * mib, 1024, 18 * mib));
        // Labels, which lie between images that cost less than a request each.
        assert!(!takes(80 * mib, 20, 80 * mib));
        assert!(!takes(0, 0, 0));
    }

    #[test]
    fn whole_is_fetched_once_its_parts_cost_as_much() {
        let len = 100 << 20;
        let mut spent = Spent::default();
        assert!(!spent.pays_for(len));
        let reads = (1..).find(|_| {
            spent.add(100 << 10, 1);
            spent.pays_for(len)
        });
        // Of 1024 samples of 100 KiB, after 506: each costs a request for itself.
        assert_eq!(reads, Some(506));
    }

    proptest! {
        /// Parts and the whole after them cost at most twice the cheaper way, and a read more.
        #[test]
        fn cost_stays_below_twice_the_cheaper_way(
            len in 1_u64..1 << 32,
            reads in prop::collection::vec((0_u64..1 << 24, 1_u64..20), 0..400),
        ) {
            let (mut spent, mut paid, mut parts, mut largest) = (Spent::default(), 0, 0, 0);
            let mut has_whole = false;
            for (bytes, requests) in reads {
                parts += cost(bytes, requests);
                if has_whole {
                    continue;
                }
                paid += cost(bytes, requests);
                largest = largest.max(cost(bytes, requests));
                spent.add(bytes, requests);
                if spent.pays_for(len) {
                    has_whole = true;
                    paid += whole(len);
                }
            }
            prop_assert!(paid <= 2 * parts.min(whole(len)) + largest, "{paid} of {parts}");
        }
    }
}
