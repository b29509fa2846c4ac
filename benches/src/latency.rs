//! Latency: how long a batch, or a sample, takes that is asked for at a given rate.
//!
//! Its rule: the load is open. Requests are due at times that are fixed beforehand, and each is timed from when it was due, not
//! from when there was somebody to make it; so what a slow one holds up counts as well, which else would go unseen
//! (coordinated omission).

use std::fmt;
use std::time::{Duration, Instant};

use forebay_client::{Loader, LoaderConfig};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Begin, Picked};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::durations::Durations;
use crate::growth::duration;
use crate::machine::Machine;
use crate::playing;
use crate::spread::Spread;

/// Of what the loader brings at most, the rate that is offered unless another is asked for: a loader at its limit
/// only shows its queue.
const OFFERED_SHARE: f64 = 0.5;

/// What is asked for, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Batches a second; half of what an epoch brings if not given.
    pub batches_per_second: Option<f64>,
    /// Single samples a second; half of what is brought one after the other if not given.
    pub samples_per_second: Option<f64>,
    /// Requests of each kind.
    pub requests: u64,
    /// Starts that are timed, warm and, if asked for, cold.
    pub rounds: u32,
    /// Whether there are cold starts, for which the cache gives up the shards.
    pub cold: bool,
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What it was measured on.
    pub machine: Machine,
    /// Samples of a batch.
    pub batch_size: u32,
    /// Batches of an epoch, in its order, a few ready ahead.
    pub batch: Distribution,
    /// Single samples from anywhere, of which none is ready ahead.
    pub sample: Distribution,
    /// Seconds from opening a loader to its first batch.
    pub first_batch: FirstBatch,
}

/// Seconds from opening a loader to its first batch.
#[derive(Debug, Clone, Serialize)]
pub struct FirstBatch {
    /// The cache had given up the shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_seconds: Option<Spread>,
    /// They were here.
    pub warm_seconds: Spread,
}

/// How long requests took from when they were due.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Distribution {
    /// Requests.
    pub count: u64,
    /// Requests that fell due in a second.
    pub offered_per_second: f64,
    /// Requests that were answered in a second; less than offered where the loader does not keep up.
    pub answered_per_second: f64,
    /// Half took less.
    pub p50_seconds: f64,
    /// 95 % took less.
    pub p95_seconds: f64,
    /// 99 % took less.
    pub p99_seconds: f64,
    /// 99.9 % took less.
    pub p999_seconds: f64,
    /// The longest.
    pub max_seconds: f64,
}

/// Measures with loaders that `config` makes.
///
/// # Errors
/// What a loader failed with; `Invalid` for an epoch without a full batch.
pub fn run(
    offer: &Offer,
    machine: Machine,
    config: impl Fn() -> LoaderConfig,
    progress: &ProgressBar,
) -> Result<Report> {
    let first = config();
    let (address, urls) = (first.session.address.clone(), first.session.open.urls.clone());
    let batch_size = first.session.open.order.batch_size;
    let (counts, seed) = (first.session.open.counts.clone(), first.session.open.order.seed);
    progress.set_message("an epoch, so that all is here");
    let loader = Loader::open(first)?;
    playing::play(&loader, 0, None, progress)?;
    let begin = Instant::now();
    let epoch = playing::play(&loader, 1, None, progress)?;
    let capacity = epoch.batches as f64 / begin.elapsed().as_secs_f64();
    let counts = match (counts, loader.learnt()) {
        (Some(counts), _) => counts,
        (None, Some(learnt)) => learnt.to_vec(),
        (None, None) => return Err(too_short()),
    };
    if epoch.batches == 0 {
        return Err(too_short());
    }
    progress.set_message("batches");
    let rate = offer.batches_per_second.unwrap_or(capacity * OFFERED_SHARE);
    let batch = batches(&loader, rate, offer.requests, progress)?;
    progress.set_message("single samples");
    let sample = samples(&loader, offer, &counts, seed, progress)?;
    drop(loader);
    progress.set_message("first batches");
    let start = || {
        let begin = Instant::now();
        let loader = Loader::open(config())?;
        playing::play(&loader, 0, Some(1), progress)?;
        Ok::<_, Error>(begin.elapsed().as_secs_f64())
    };
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..offer.rounds {
        warm.push(start()?);
    }
    if offer.cold {
        for _ in 0..offer.rounds {
            playing::evict(&address, &urls)?;
            cold.push(start()?);
        }
    }
    let cold_seconds = offer.cold.then(|| Spread::of(cold));
    let first_batch = FirstBatch { cold_seconds, warm_seconds: Spread::of(warm) };
    Ok(Report { machine, batch_size, batch, sample, first_batch })
}

/// Batches of one epoch after another, each due at its time.
fn batches(
    loader: &Loader,
    rate: f64,
    requests: u64,
    progress: &ProgressBar,
) -> Result<Distribution> {
    let mut epoch = 2;
    loader.start(Begin::at(epoch, 0))?;
    open_loop(rate, requests, |_| {
        loop {
            if let Some(batch) = playing::next(loader)? {
                progress.inc(batch.keys.len() as u64);
                return Ok(());
            }
            epoch += 1;
            loader.start(Begin::at(epoch, 0))?;
        }
    })
}

/// Samples from all over the data set, each due at its time.
fn samples(
    loader: &Loader,
    offer: &Offer,
    counts: &[u64],
    seed: u64,
    progress: &ProgressBar,
) -> Result<Distribution> {
    let total: u64 = counts.iter().sum();
    let mut dice = Dice(seed | 1);
    let mut one = |_: u64| {
        let mut at = dice.roll() % total.max(1);
        let position = at;
        for (shard, count) in (0..).zip(counts) {
            if at < *count {
                loader.pick(vec![Picked { position, shard, ordinal: at }])?;
                break;
            }
            at -= count;
        }
        while let Some(batch) = playing::next(loader)? {
            progress.inc(batch.keys.len() as u64);
        }
        Ok(())
    };
    let rate = match offer.samples_per_second {
        Some(rate) => rate,
        None => {
            // One after the other, as fast as they come.
            let tries = offer.requests.clamp(1, 100);
            let begin = Instant::now();
            (0..tries).try_for_each(&mut one)?;
            OFFERED_SHARE * tries as f64 / begin.elapsed().as_secs_f64()
        }
    };
    open_loop(rate, offer.requests, one)
}

/// Makes `requests` requests, of which `rate` fall due in a second.
fn open_loop(
    rate: f64,
    requests: u64,
    mut request: impl FnMut(u64) -> Result<()>,
) -> Result<Distribution> {
    let mut latencies = Durations::default();
    let begin = Instant::now();
    for number in 0..requests {
        let due = begin + Duration::from_secs_f64(number as f64 / rate);
        wait_until(due);
        request(number)?;
        latencies.record(due.elapsed());
    }
    let wall = begin.elapsed().as_secs_f64();
    Ok(Distribution {
        count: latencies.count(),
        offered_per_second: rate,
        answered_per_second: requests as f64 / wall,
        p50_seconds: latencies.at(0.5),
        p95_seconds: latencies.at(0.95),
        p99_seconds: latencies.at(0.99),
        p999_seconds: latencies.at(0.999),
        max_seconds: latencies.at(1.0),
    })
}

/// A request falls due by time passing, by nothing else.
#[allow(clippy::disallowed_methods, reason = "a request that is due waits for no condition")]
fn wait_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

fn too_short() -> Error {
    Error::new(ErrorKind::Invalid, "an epoch has not one full batch")
        .advise("lower --batch-size, or name more shards")
}

/// Numbers that look random and are the same in every run (xorshift; never 0).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} requests, {:.1} a second due, {:.1} answered",
            self.count, self.offered_per_second, self.answered_per_second
        )?;
        writeln!(
            f,
            "  p50 {}  p95 {}  p99 {}  p99.9 {}  max {}",
            duration(self.p50_seconds),
            duration(self.p95_seconds),
            duration(self.p99_seconds),
            duration(self.p999_seconds),
            duration(self.max_seconds),
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.machine)?;
        write!(f, "batches of {}: {}", self.batch_size, self.batch)?;
        write!(f, "single samples: {}", self.sample)?;
        let first = |spread: &Spread| {
            let Spread { median, lowest, highest } = *spread;
            format!("{} ({} to {})", duration(median), duration(lowest), duration(highest))
        };
        write!(f, "first batch: warm {}", first(&self.first_batch.warm_seconds))?;
        if let Some(cold) = &self.first_batch.cold_seconds {
            write!(f, ", cold {}", first(cold))?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request that is slow makes all wait that fall due meanwhile, and they say so.
    #[test]
    fn what_a_slow_request_holds_up_counts() {
        const SLOW: Duration = Duration::from_millis(300);
        let request = |number| {
            if number == 0 {
                wait_until(Instant::now() + SLOW);
            }
            Ok(())
        };
        let found = open_loop(1000.0, 300, request).unwrap();
        assert_eq!((found.count, found.offered_per_second), (300, 1000.0));
        // A closed loop would have told of one slow request and 299 that took nothing.
        assert!(found.p50_seconds > 0.1, "{found:?}");
        assert!(found.max_seconds >= 0.3 && found.p50_seconds < found.p95_seconds, "{found:?}");
    }

    #[test]
    fn a_request_that_fails_ends_it() {
        let fails = |_| Err(Error::new(ErrorKind::Closed, "no matter"));
        assert!(open_loop(1e6, 5, fails).is_err());
    }
}
