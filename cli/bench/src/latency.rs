//! Latency: how long a batch, or a sample, takes that is asked for at a given rate.
//!
//! The load is open. Requests are due at times that are fixed beforehand, and each is timed from
//! when it was due, not from when there was somebody to make it; so what a slow one holds up counts
//! as well, which else would go unseen (coordinated omission).

use std::fmt;
use std::time::{Duration, Instant};

use forebay_client::{Loader, LoaderConfig};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Begin, Picked};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::dice::Dice;
use crate::durations::Durations;
use crate::fetches::Fetches;
use crate::growth::duration;
use crate::interrupt::wait_until;
use crate::machine::Machine;
use crate::playing;
use crate::spread::Spread;

/// Share of the loader's highest rate that is offered by default: a loader at its limit only shows
/// its queue.
const OFFERED_SHARE: f64 = 0.5;

/// Request rate and number of requests.
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
    /// True for cold starts, for which the cache evicts the shards.
    pub cold: bool,
}

/// Results; a measurement that was not reached is absent.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Machine of the measurement.
    pub machine: Machine,
    /// Samples of a batch.
    pub batch_size: u32,
    /// Batches in an epoch's order, a few ready ahead. None of them begins an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<Distribution>,
    /// Single samples from anywhere, of which none is ready ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Distribution>,
    /// Seconds from opening a loader to its first batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_batch: Option<FirstBatch>,
}

/// Seconds from opening a loader to its first batch.
#[derive(Debug, Clone, Serialize)]
pub struct FirstBatch {
    /// The cache had evicted the shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_seconds: Option<Spread>,
    /// They were here.
    pub warm_seconds: Spread,
    /// Each start after its shards were evicted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cold: Vec<Start>,
    /// Each of the others.
    pub warm: Vec<Start>,
}

/// One loader, opened for its first batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Start {
    /// Until its first batch.
    pub seconds: f64,
    /// Bytes the daemon fetched for it, those of shards completed after that batch included.
    pub fetched_bytes: u64,
}

/// Duration of requests from their due time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Distribution {
    /// Requests.
    pub count: u64,
    /// Requests that fell due in a second.
    pub offered_per_second: f64,
    /// As many requests as fell due behind the first, in the time from then until the last was
    /// answered. It is never above what was offered, and falls the further below the longer the
    /// queue gets; nothing of a single request.
    pub answered_per_second: Option<f64>,
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

impl Report {
    /// Nothing but what it is measured on.
    #[must_use]
    pub fn on(machine: Machine, batch_size: u32) -> Self {
        Self { machine, batch_size, batch: None, sample: None, first_batch: None }
    }

    /// Returns true if nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.is_none() && self.sample.is_none() && self.first_batch.is_none()
    }

    /// Measures with loaders that `config` makes. What was found before something failed stays.
    ///
    /// # Errors
    /// The loader's error; `Invalid` for an epoch without a full batch; `Unavailable` for a
    /// cold start that fetched nothing.
    pub fn measure(
        &mut self,
        offer: &Offer,
        config: impl Fn() -> LoaderConfig,
        progress: &ProgressBar,
    ) -> Result<()> {
        let first = config();
        let (known, seed) = (first.session.open.counts.clone(), first.session.open.order.seed);
        progress.set_message("an epoch, so that all is here");
        let loader = Loader::open(first)?;
        playing::play(&loader, 0, None, progress)?;
        let begin = Instant::now();
        let epoch = playing::play(&loader, 1, None, progress)?;
        let capacity = epoch.batches as f64 / begin.elapsed().as_secs_f64();
        let counts =
            known.or_else(|| loader.learnt().map(<[u64]>::to_vec)).ok_or_else(too_short)?;
        if epoch.batches == 0 {
            return Err(too_short());
        }
        progress.set_message("single samples");
        self.sample = Some(samples(&loader, offer, &counts, seed, progress)?);
        drop(loader);
        progress.set_message("batches");
        let rate = offer.batches_per_second.unwrap_or(capacity * OFFERED_SHARE);
        self.batch = Some(batches(config(), counts, (rate, offer.requests), progress)?);
        progress.set_message("first batches");
        let (mut warm, mut cold) = (Vec::new(), Vec::new());
        let ended = starts(offer, &config, (&mut warm, &mut cold), progress);
        let seconds = |starts: &[Start]| Spread::of(starts.iter().map(|start| start.seconds));
        self.first_batch = (!warm.is_empty()).then(|| FirstBatch {
            cold_seconds: (!cold.is_empty()).then(|| seconds(&cold)),
            warm_seconds: seconds(&warm),
            cold,
            warm,
        });
        ended
    }
}

/// Opens loaders for their first batch, as often as asked.
fn starts(
    offer: &Offer,
    config: &impl Fn() -> LoaderConfig,
    (warm, cold): (&mut Vec<Start>, &mut Vec<Start>),
    progress: &ProgressBar,
) -> Result<()> {
    let first = config();
    let (address, urls) = (first.session.address, first.session.open.urls);
    let start = |before: Fetches| {
        let begin = Instant::now();
        let loader = Loader::open(config())?;
        playing::play(&loader, 0, Some(1), progress)?;
        let seconds = begin.elapsed().as_secs_f64();
        drop(loader);
        let fetched_bytes = Fetches::settled(&address)?.since(before)?;
        Ok::<_, Error>(Start { seconds, fetched_bytes })
    };
    for _ in 0..offer.rounds {
        warm.push(start(Fetches::settled(&address)?)?);
    }
    for _ in 0..if offer.cold { offer.rounds } else { 0 } {
        let found = start(playing::evict(&address, &urls)?)?;
        if found.fetched_bytes == 0 {
            let what = "a cold start fetched nothing: its shards were cached somewhere";
            return Err(Error::new(ErrorKind::Unavailable, what)
                .advise("check if other jobs read these shards, or omit --cold"));
        }
        cold.push(found);
    }
    Ok(())
}

/// Batches of one long epoch, each due at its time: none is the first of an epoch, for which the
/// pipeline would have to fill.
fn batches(
    mut config: LoaderConfig,
    counts: Vec<u64>,
    (rate, requests): (f64, u64),
    progress: &ProgressBar,
) -> Result<Distribution> {
    let batch_size = u64::from(config.session.open.order.batch_size);
    let samples = counts.iter().sum::<u64>().max(1);
    // One more is taken before the first falls due.
    let times = (requests.saturating_add(1)).saturating_mul(batch_size).div_ceil(samples);
    playing::repeat(&mut config, counts, times as f64);
    let loader = Loader::open(config)?;
    loader.start(Begin::at(0, 0))?;
    let take = || {
        let batch = playing::next(&loader)?.ok_or_else(too_short)?;
        progress.inc(batch.keys.len() as u64);
        Ok(())
    };
    take()?;
    open_loop(rate, requests, |_| take())
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
    let mut dice = Dice::new(seed | 1);
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
        wait_until(due)?;
        request(number)?;
        latencies.record(due.elapsed());
    }
    let wall = begin.elapsed().as_secs_f64();
    Ok(Distribution {
        count: latencies.count(),
        offered_per_second: rate,
        // So many intervals lie between so many requests.
        answered_per_second: (requests > 1).then(|| (requests - 1) as f64 / wall),
        p50_seconds: latencies.at(0.5),
        p95_seconds: latencies.at(0.95),
        p99_seconds: latencies.at(0.99),
        p999_seconds: latencies.at(0.999),
        max_seconds: latencies.at(1.0),
    })
}

fn too_short() -> Error {
    Error::new(ErrorKind::Invalid, "an epoch has no full batch")
        .advise("lower --batch-size, or name more shards")
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests, {:.1} a second due", self.count, self.offered_per_second)?;
        if let Some(answered) = self.answered_per_second {
            write!(f, ", {answered:.1} answered")?;
        }
        writeln!(f)?;
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
        if let Some(batch) = &self.batch {
            write!(f, "batches of {}: {batch}", self.batch_size)?;
        }
        if let Some(sample) = &self.sample {
            write!(f, "single samples: {sample}")?;
        }
        let Some(first_batch) = &self.first_batch else { return Ok(()) };
        let first = |spread: &Spread| {
            let Spread { median, lowest, highest } = *spread;
            format!("{} ({} to {})", duration(median), duration(lowest), duration(highest))
        };
        write!(f, "first batch: warm {}", first(&first_batch.warm_seconds))?;
        if let Some(cold) = &first_batch.cold_seconds {
            let fetched = first_batch.cold.iter().map(|start| start.fetched_bytes as f64);
            let fetched = Spread::of(fetched).median / 1e9;
            write!(f, ", cold {}, which fetched {fetched:.3} GB", first(cold))?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow request delays all requests that fall due meanwhile.
    #[test]
    fn delay_behind_a_slow_request_counts() {
        const SLOW: Duration = Duration::from_millis(300);
        let request = |number| {
            if number == 0 {
                wait_until(Instant::now() + SLOW)?;
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
    fn failed_request_ends_the_measurement() {
        let fails = |_| Err(Error::new(ErrorKind::Closed, "no matter"));
        assert!(open_loop(1e6, 5, fails).is_err());
    }

    /// Three requests are due within two intervals; an answer one interval late lowers the rate.
    #[test]
    fn loader_one_interval_late_does_not_keep_up() {
        const INTERVAL: Duration = Duration::from_millis(40);
        let request = |number| match number {
            2 => wait_until(Instant::now() + INTERVAL),
            _ => Ok(()),
        };
        let found = open_loop(25.0, 3, request).unwrap();
        assert!(found.answered_per_second.unwrap() <= 25.0 * 2.0 / 3.0, "{found:?}");
        assert!(found.to_string().contains("answered"), "{found}");
        let one = open_loop(25.0, 1, |_| Ok(())).unwrap();
        assert_eq!(one.answered_per_second, None);
    }
}
