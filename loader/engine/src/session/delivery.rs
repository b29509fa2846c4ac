//! Runs of a job: batches, in order, to its trainer.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Batch, Begin, Picked};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::assembly::{Assembly, SamplePlace};
use super::gather::{Gatherer, Stages};
use super::leased::Leased;
use super::producer::{Outcome, Producer};
use super::slots::Hold;
use super::{Event, JobData, look};
use crate::plan;

/// Delivers batches in order; several are read while the next one is located.
pub(super) async fn play(
    job: Arc<JobData>,
    run: u64,
    begin: Begin,
    events: &mpsc::Sender<Event>,
) -> Result<Outcome> {
    if begin.step == 0 {
        return Err(Error::new(ErrorKind::Invalid, "the stride of a run's batches is 0")
            .advise("give at least 1"));
    }
    let depth = job.spec.prefetch as usize;
    job.verdicts.begin();
    if begin.base > 0 || begin.batch > 0 {
        job.patience.begun();
    }
    let producer = Producer::new(job.clone(), run, begin)?;
    let (outcome, after) = (producer.outcome(), producer.after());
    let located = futures::stream::try_unfold(producer, |mut producer| async move {
        let next = producer.next().await?;
        Ok::<_, Error>(next.map(|assembly| (assembly, producer)))
    });
    let handed = |index| job.outlook.handed(&job, begin.epoch, after(index));
    deliver(&job, located.boxed(), depth, events, handed).await?;
    let outcome = outcome.get().expect("a finished producer has an outcome").clone();
    Ok(settled(&job, outcome).await)
}

/// Delivers batches of shards from a shared queue.
pub(super) async fn share(
    job: Arc<JobData>,
    leased: Leased,
    events: &mpsc::Sender<Event>,
) -> Result<Outcome> {
    let depth = job.spec.prefetch as usize;
    job.verdicts.begin();
    let _looking = look::begin_run(&job);
    let outcome = leased.outcome();
    let located = futures::stream::try_unfold(leased, |mut leased| async move {
        let next = leased.next().await?;
        Ok::<_, Error>(next.map(|assembly| (assembly, leased)))
    });
    deliver(&job, located.boxed(), depth, events, |_| {}).await?;
    let outcome = outcome.get().expect("a finished run has an outcome").clone();
    Ok(settled(&job, outcome).await)
}

/// Delivers chosen samples as one batch.
pub(super) async fn pick(
    job: Arc<JobData>,
    run: u64,
    samples: &[Picked],
    events: &mpsc::Sender<Event>,
) -> Result<Outcome> {
    let invalid = |what: &str| Err(Error::new(ErrorKind::Invalid, what));
    if samples.is_empty() || samples.len() > plan::BATCH_MAX as usize {
        return invalid("a batch needs 1 to 1048576 samples");
    }
    if samples.iter().any(|sample| sample.shard >= job.joins.planned()) {
        return invalid("the job does not have this shard");
    }
    job.verdicts.begin();
    let place = |sample: &Picked| SamplePlace {
        position: sample.position,
        valid: true,
        shard: sample.shard,
        ordinal: sample.ordinal,
    };
    let places: Vec<_> = samples.iter().map(place).collect();
    let mut gatherer = Gatherer::new(job.clone(), run);
    let gathered = async { gatherer.gather(0, &places, Vec::new(), Stages::begin()).await };
    deliver(&job, futures::stream::once(gathered).boxed(), 1, events, |_| {}).await?;
    let outcome =
        Outcome { batches: 1, samples: samples.len() as u64, errors: Vec::new(), counts: None };
    Ok(settled(&job, outcome).await)
}

/// Reads several batches at once and delivers them in order; `handed` is called with the number of
/// each delivered batch.
async fn deliver(
    job: &Arc<JobData>,
    gathered: BoxStream<'_, Result<Assembly>>,
    depth: usize,
    events: &mpsc::Sender<Event>,
    handed: impl Fn(u64),
) -> Result<()> {
    let mut ready = gathered.map_ok(read_aside).try_buffered(depth).boxed();
    while let Some((mut batch, offsets, hold)) = ready.try_next().await? {
        let gone = |_| Error::new(ErrorKind::Closed, "the trainer is gone");
        // No await between lending and sending: a run that ended in between would leave a slot that
        // nobody returns.
        let place = events.reserve().await.map_err(gone)?;
        batch.errors.extend(job.wrong_shards(batch.index));
        job.slots.lend(&batch, hold);
        job.patience.begun();
        let index = batch.index;
        place.send(Event::Batch { batch: Box::new(batch), offsets });
        handed(index);
    }
    Ok(())
}

/// Reads a batch in a task of its own, so that copies and checksums of several use as many cores.
fn read_aside(assembly: Assembly) -> impl Future<Output = Result<(Batch, Vec<u64>, Hold)>> {
    // The task ends when its future is dropped.
    let mut reading = JoinSet::new();
    reading.spawn(assembly.read());
    async move {
        match reading.join_next().await {
            Some(Ok(read)) => read,
            Some(Err(ended)) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
            _ => Err(Error::new(ErrorKind::Closed, "the daemon is stopping")),
        }
    }
}

/// Waits, after all samples are delivered, until it is known that they are right.
async fn settled(job: &Arc<JobData>, mut outcome: Outcome) -> Outcome {
    if job.patience.bound(job.verdicts.settled()).await.is_none() {
        let (name, shards) = (&job.spec.job, job.verdicts.pending());
        tracing::warn!(
            session = job.store.session(),
            job = name,
            tenant = job.store.tenant(),
            shards,
            "a run ends before all of its samples are verified"
        );
    }
    outcome.errors.extend(job.wrong_shards(u64::MAX));
    outcome
}
