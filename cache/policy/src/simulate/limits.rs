//! Highest possible utilisation of jobs, and the remedy for a lower one.

use forebay_error::Result;

use super::{Futures, Order, Trace, simulate_with};
use crate::evict::Evict;
use crate::shortfall::Remedy;

/// Utilisation that counts as never waiting.
const BUSY: f64 = 0.99;

/// Halvings until the answer is known to a thousandth.
const HALVINGS: u32 = 10;

impl Trace {
    /// Returns the upper bound on utilisation under any policy, averaged over jobs. In each epoch
    /// the link delivers at least the uncached part of a job's data; each job counts as if alone.
    #[must_use]
    pub fn bound(&self) -> f64 {
        let bounds = self.jobs.iter().map(|job| {
            let bytes: u64 = job.shards.iter().map(|shard| self.shards[*shard as usize]).sum();
            // Shards it will not draw next need not be fetched.
            let comes = match job.order {
                Order::Fixed | Order::Reshuffled => bytes.saturating_sub(self.capacity),
                Order::Drawn { .. } => 0,
            };
            if comes == 0 {
                return 1.0;
            }
            let seconds_to_read = bytes as f64 / job.rate;
            (seconds_to_read * self.bandwidth / comes as f64).min(1.0)
        });
        bounds.sum::<f64>() / (self.jobs.len() as f64).max(1.0)
    }

    /// Returns the shortfall that keeps jobs waiting under foresight; none if there is none.
    pub fn remedy(&self) -> Result<Option<Remedy>> {
        self.remedy_with(&|job| self.future(job))
    }

    /// The same for jobs whose futures somebody else makes.
    ///
    /// # Errors
    /// As [`super::simulate`].
    pub fn remedy_with(&self, futures: &Futures<'_>) -> Result<Option<Remedy>> {
        if self.is_enough(futures)? {
            return Ok(None);
        }
        let all: u64 = self.shards.iter().sum();
        let with_cache = |bytes: f64| Self { capacity: bytes.ceil() as u64, ..self.clone() };
        let cache = least((self.capacity as f64, all as f64), |bytes| {
            with_cache(bytes).is_enough(futures)
        })?;
        let demand: f64 = self.jobs.iter().map(|job| job.rate).sum();
        // Twice what all read leaves room for fetches that come in a bad order.
        let most = 2.0 * demand.max(self.bandwidth);
        let with_link = |bandwidth: f64| Self { bandwidth, ..self.clone() };
        let bandwidth =
            least((self.bandwidth, most), |bandwidth| with_link(bandwidth).is_enough(futures))?;
        Ok(Some(Remedy {
            cache: cache.map(|bytes| bytes.ceil() as u64 - self.capacity),
            bandwidth: bandwidth.map(|bandwidth| bandwidth - self.bandwidth),
        }))
    }

    fn is_enough(&self, futures: &Futures<'_>) -> Result<bool> {
        let report = simulate_with(self, Evict::Clairvoyant, futures)?;
        Ok(report.busy.iter().all(|(_, busy)| *busy >= BUSY))
    }
}

/// The least value between two that is enough, where the first is not; none if the second is not,
/// either.
fn least((from, most): (f64, f64), is_enough: impl Fn(f64) -> Result<bool>) -> Result<Option<f64>> {
    if most <= from || !is_enough(most)? {
        return Ok(None);
    }
    let (mut short, mut enough) = (from, most);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(short, enough);
        if is_enough(middle)? {
            enough = middle;
        } else {
            short = middle;
        }
    }
    Ok(Some(enough))
}
