//! Epochs that are played only to be timed.
//!
//! A sample that cannot be used ends a benchmark. What is timed is what was asked for.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use forebay_client::{Address, Admin, Batch, Deadline, Loader, LoaderConfig, Next};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Begin, Proportion, Stream};
use indicatif::ProgressBar;
use serde_json::json;

use crate::fetches::Fetches;
use crate::{cpu, interrupt};

/// A daemon drops the copies of a hundred thousand shards within this time.
const EVICT_TIMEOUT: Duration = Duration::from_secs(300);

/// Shards named in one request: some hundred KiB of it.
const EVICTED_AT_ONCE: usize = 1000;

/// Result of an epoch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Played {
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    /// Payload read from a tier, and copied from shards that were still arriving.
    pub(crate) tier_bytes: u64,
    pub(crate) origin_bytes: u64,
    /// From the epoch's start to its first batch.
    pub(crate) first_batch: Duration,
}

/// The next batch; `None` at the epoch's end.
pub(crate) fn next(loader: &Loader) -> Result<Option<Box<Batch>>> {
    interrupt::check()?;
    let (batch, errors) = match loader.next::<Error>(interrupt::check)? {
        Next::Batch(mut batch) => {
            let errors = std::mem::take(&mut batch.errors);
            (Some(batch), errors)
        }
        Next::End(end) => (None, end.errors),
    };
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(batch),
    }
}

/// Plays an epoch, or its first `limit` batches.
pub(crate) fn play(
    loader: &Loader,
    epoch: u64,
    limit: Option<u64>,
    progress: &ProgressBar,
) -> Result<Played> {
    let mut played = Played::default();
    let begin = Instant::now();
    loader.start(Begin::at(epoch, 0))?;
    while limit.is_none_or(|limit| played.batches < limit) {
        let Some(batch) = next(loader)? else { break };
        if played.batches == 0 {
            played.first_batch = begin.elapsed();
        }
        played.batches += 1;
        played.samples += batch.keys.len() as u64;
        played.tier_bytes += batch.tier_bytes;
        played.origin_bytes += batch.origin_bytes;
        progress.inc(batch.keys.len() as u64);
    }
    Ok(played)
}

/// Plays an epoch of each at once; with the seconds from the first one's start to the last one's
/// end.
pub(crate) fn play_together(
    loaders: &[Loader],
    epoch: u64,
    limit: Option<u64>,
    progress: &ProgressBar,
) -> Result<(Vec<Played>, f64)> {
    let together = Barrier::new(loaders.len());
    std::thread::scope(|scope| {
        let job = |loader| {
            let together = &together;
            move || {
                together.wait();
                let begin = Instant::now();
                let played = play(loader, epoch, limit, progress)?;
                Ok::<_, Error>((played, begin, Instant::now()))
            }
        };
        let jobs: Vec<_> = loaders.iter().map(|loader| scope.spawn(job(loader))).collect();
        let (mut all, mut first, mut last) = (Vec::new(), None, None);
        for job in jobs {
            let died = |_| Error::new(ErrorKind::Closed, "a job of the benchmark panicked");
            let (played, begin, end) = job.join().map_err(died)??;
            all.push(played);
            first = Some(first.map_or(begin, |first: Instant| first.min(begin)));
            last = Some(last.map_or(end, |last: Instant| last.max(end)));
        }
        let wall = last.zip(first).map_or(Duration::ZERO, |(last, first)| last - first);
        Ok((all, wall.as_secs_f64()))
    })
}

/// Seconds of CPU of this process and the daemon `pid`, with those who work for either.
pub(crate) fn cpu_seconds(daemon: u32) -> Result<f64> {
    let own = std::process::id();
    // One that this process started is counted with it.
    let daemon = if cpu::below(own).contains(&daemon) { 0.0 } else { cpu::seconds(daemon)? };
    Ok(cpu::seconds(own)? + daemon)
}

/// Makes an epoch of this loader play its shards so often, whose samples are `counts`.
pub(crate) fn repeat(config: &mut LoaderConfig, counts: Vec<u64>, times: f64) {
    let session = &mut config.session;
    session.open.counts = Some(counts);
    let shards = u32::try_from(session.open.urls.len()).unwrap_or(u32::MAX);
    session.mixture.streams = vec![Stream { shards, proportion: Proportion::Repeat(times) }];
}

/// Drops every copy of these shards, so that what follows is cold; what was fetched until then.
///
/// A shard that is on its way is dropped only once it has come, and whoever asks for it meanwhile
/// is given it: so it is done again unless nothing came since before.
pub(crate) fn evict(address: &Address, urls: &[String]) -> Result<Fetches> {
    let deadline = Deadline::after(EVICT_TIMEOUT);
    let dropped = deadline.retry(|| {
        let before = Fetches::settled(address)?;
        drop_copies(address, urls, &deadline)?;
        let after = Fetches::settled(address)?;
        Ok((before == after).then_some(after))
    })?;
    dropped.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "the daemon fetches shards while they are evicted")
            .at("seconds", EVICT_TIMEOUT.as_secs())
            .advise("end its other jobs, or measure with a daemon of its own (FOREBAY_CACHE)")
    })
}

fn drop_copies(address: &Address, urls: &[String], deadline: &Deadline) -> Result<()> {
    let admin = Admin::of(address.connect(deadline)?)?;
    urls.chunks(EVICTED_AT_ONCE).try_for_each(|urls| {
        let asked = json!({ "urls": urls });
        admin.post::<serde_json::Value>("/api/v1/evictions", &asked, deadline).map(drop)
    })
}
