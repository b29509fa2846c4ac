//! Agreement of a simulation with the decisions of the node its trace was recorded on.

use std::collections::HashMap;
use std::fmt;

use forebay_error::{Error, ErrorKind, Result};
use serde::Serialize;

use super::{Decision, Trace, simulate};
use crate::evict::Evict;
use crate::foresight::{Moment, Shard};

/// Common part of two logs of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Agreement {
    /// Shards that the node fetched.
    pub node: usize,
    /// Shards that the simulation fetched in the same time.
    pub simulation: usize,
    /// Fetches that both made.
    pub common: usize,
    /// The longest common subsequence of those.
    pub ordered: usize,
    /// Shards that the node gave up for them, those that the simulation did, and those that both
    /// did.
    pub went: [usize; 3],
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, simulation, common, ordered, went: [gone, went, both] } = self;
        write!(
            f,
            "the node fetched {node} shards, the simulation {simulation}: {common} in common, {ordered} of them in the same order; {gone} and {went} were evicted for them, {both} in common"
        )
    }
}

impl Trace {
    /// Compares the decisions of `clairvoyant` on this trace with the node's until `later` was
    /// recorded.
    pub fn agreement(&self, later: &Self) -> Result<Agreement> {
        // Numbers of shards may be given to others once no job reads them any more.
        let is_same = self.names.iter().zip(&later.names).all(|(one, other)| one == other);
        if later.at <= self.at || !is_same {
            let what = "the second trace must be a later recording of the same node and jobs";
            return Err(Error::new(ErrorKind::Invalid, what)
                .advise("record one, wait, and record the other, while the same jobs run"));
        }
        let simulated = simulate(self, Evict::Clairvoyant)?.decisions;
        let spans = later.at - self.at;
        let upto = |decision: &&Decision, until: Moment| decision.at < until;
        let simulated: Vec<_> = simulated.iter().filter(|one| upto(one, spans)).collect();
        let since = |decision: &&Decision| decision.at >= self.at;
        let node: Vec<_> = later.decisions.iter().filter(since).collect();
        let fetched = |log: &[&Decision]| log.iter().map(|one| one.fetched).collect::<Vec<_>>();
        let went = |log: &[&Decision]| {
            log.iter().flat_map(|one| one.went.iter().copied()).collect::<Vec<_>>()
        };
        let (ours, theirs) = (fetched(&node), fetched(&simulated));
        let (gone, others) = (went(&node), went(&simulated));
        Ok(Agreement {
            node: ours.len(),
            simulation: theirs.len(),
            common: common(&ours, &theirs),
            ordered: ordered(&ours, &theirs),
            went: [gone.len(), others.len(), common(&gone, &others)],
        })
    }
}

/// Returns the number of common items of two lists, in any order.
fn common(ours: &[Shard], theirs: &[Shard]) -> usize {
    let mut counts: HashMap<Shard, usize> = HashMap::new();
    ours.iter().for_each(|shard| *counts.entry(*shard).or_default() += 1);
    let is_ours = |shard: &&Shard| {
        counts.get_mut(*shard).is_some_and(|left| {
            let has = *left > 0;
            *left = left.saturating_sub(1);
            has
        })
    };
    theirs.iter().filter(is_ours).count()
}

/// The length of their longest common subsequence.
fn ordered(ours: &[Shard], theirs: &[Shard]) -> usize {
    let mut row = vec![0; theirs.len() + 1];
    for one in ours {
        let mut diagonal = 0;
        for (at, other) in theirs.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if one == other { diagonal + 1 } else { above.max(row[at]) };
            diagonal = above;
        }
    }
    row[theirs.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foresight::Use;
    use crate::simulate::{Jitter, Order, Reader};

    #[test]
    fn logs_are_compared_by_content_and_by_order() {
        assert_eq!(
            (common(&[1, 2, 2, 3], &[2, 1, 4, 2, 2]), ordered(&[1, 2, 2, 3], &[2, 1, 4, 2, 2])),
            (3, 3)
        );
        assert_eq!((common(&[], &[1]), ordered(&[], &[1])), (0, 0));
        assert_eq!((common(&[1, 2, 3], &[3, 2, 1]), ordered(&[1, 2, 3], &[3, 2, 1])), (3, 1));
    }

    /// A recorded trace: a job that has two shards here and reads two others after them.
    fn recorded() -> Trace {
        let uses = (0..4_u32).map(|shard| Use {
            shard,
            start: u64::from(shard) * 100,
            end: u64::from(shard) * 100 + 100,
        });
        Trace {
            capacity: 200,
            bandwidth: 100.0,
            shards: vec![100; 4],
            jobs: vec![Reader {
                name: "one".to_owned(),
                shards: (0..4).collect(),
                rate: 100.0,
                order: Order::Reshuffled,
                window: 1,
                epochs: 0,
                seed: 0,
                joins: 0.0,
                uses: uses.collect(),
            }],
            warm_epochs: 0,
            jitter: Jitter::default(),
            here: vec![0, 1],
            names: Vec::new(),
            at: 5_000_000,
            decisions: Vec::new(),
        }
    }

    #[test]
    fn recorded_trace_continues_from_the_nodes_state() {
        let trace = recorded();
        let report = simulate(&trace, Evict::Clairvoyant).unwrap();
        let fetched: Vec<_> = report.decisions.iter().map(|one| one.fetched).collect();
        assert_eq!(fetched, [2, 3], "what is here at the beginning is not fetched");
        assert_eq!((report.read_bytes, report.origin_bytes), (400, 200));
        // The node fetched 1, long ago, and 2 and 1 since.
        let of = |at, fetched, went: &[Shard]| Decision { at, fetched, went: went.to_vec() };
        let decisions = vec![of(1, 1, &[]), of(6_000_000, 2, &[0]), of(7_000_000, 1, &[2])];
        let later = Trace { at: 60_000_000, decisions, ..trace.clone() };
        let agreement = trace.agreement(&later).unwrap();
        assert_eq!((agreement.node, agreement.simulation), (2, 2));
        assert_eq!((agreement.common, agreement.ordered), (1, 1));
        assert_eq!(trace.agreement(&trace).unwrap_err().kind(), ErrorKind::Invalid);
        // Invalid and unknown values.
        for here in [vec![0, 1, 2], vec![4]] {
            let wrong = Trace { here, ..recorded() };
            assert_eq!(wrong.check().unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
