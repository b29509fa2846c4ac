//! Batches by tokens: the rule that cuts an order of samples into bins, and the samples' lengths.

use serde::{Deserialize, Serialize};

/// Cut of an order into bins. A bin is a batch of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinRule {
    /// Tokens of a bin, at most; a longer sample is a bin of its own.
    pub budget: u32,
    /// Samples of the order that are composed together.
    pub lookahead: u32,
    /// True if rows lie one after the other, so that a bin has the sum of their lengths; false if
    /// they are padded, so that it has their number times the width.
    pub is_packed: bool,
    /// Widths of padded bins, ascending; none for the longest row of each.
    pub buckets: Vec<u32>,
}

/// Batches by tokens of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binning {
    /// The rule.
    pub rule: BinRule,
    /// Tokens of each sample that the job reads, shard after shard.
    pub lengths: Vec<u32>,
}
