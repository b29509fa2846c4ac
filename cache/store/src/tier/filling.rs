//! Run of a fill on a tier, and the state of the shard at its end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, shown};
use forebay_source::Binding;

use super::Tier;
use super::begin::WearSpending;
use super::entry::ShardState;
use super::wanted::Arrival;
use crate::fill::Fill;
use crate::shard::Shard;

impl Tier {
    /// Runs a fill to its end. Makes the shard whole, or fails everyone who waits for it.
    pub(super) async fn run_fill(
        self,
        fill: Arc<Fill>,
        shard: Arc<Shard>,
        arrival: Arrival,
        spending: WearSpending,
    ) {
        let filled = match self.0.shared.begin(&fill).await {
            Ok(mut running) => {
                self.table().note_fill_start(&shard);
                let began = Instant::now();
                fill.run(&mut running).await.map(|()| began)
            }
            Err(error) => Err(error),
        };
        *shard.parts.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let unpacked = fill.accounting.unpacked.load(Ordering::Relaxed);
        if unpacked > 0 {
            // The next fill of this shard reserves its room up front.
            self.0.shared.note_unpacked(&fill.request.origin, unpacked);
        }
        drop(spending);
        match (filled, fill.destination.fault.get()) {
            (Ok(began), None) => self.finish(&fill, &shard, &arrival, began),
            (Ok(_), Some(fault)) => self.finish_without_copy(&fill, &shard, &arrival, fault),
            (Err(error), _) => self.finish_failed(&fill, &shard, &arrival, error).await,
        }
        drop(shard);
        self.0.budget.wake();
        self.0.shared.moves.notify_one();
    }

    /// The shard came, and the tier has it.
    fn finish(&self, fill: &Fill, shard: &Arc<Shard>, arrival: &Arrival, began: Instant) {
        let tally = &self.0.tally;
        let (len, resumed) = (fill.parts.len(), fill.growth.resumed());
        if let Some(allotment) = &fill.destination.allotment {
            allotment.settle(len);
        }
        // Counted under the lock: whoever sees the count finds the shard whole.
        let mut table = self.table();
        match arrival {
            Arrival::Fetch(_) => {
                self.0.shared.fetches.since(began);
                tally.resumed_bytes.add(resumed);
                tally.fills.inc();
                table.finish_fill(shard, ShardState::Whole);
            }
            Arrival::Move { uses, .. } => {
                tally.moved_in.inc();
                tally.moved_bytes.add(len);
                table.finish_move(shard, *uses);
            }
        }
        // An admin dropped the shard, or the device failed under a reader, while it arrived.
        if table.is_marked_for_removal(shard.name()) || fill.destination.fault.get().is_some() {
            drop(self.remove(&mut table, shard.name(), false));
        }
        drop(table);
        self.relieve();
    }

    /// The shard came, but the tier did not keep it.
    fn finish_without_copy(&self, fill: &Fill, shard: &Shard, arrival: &Arrival, fault: &Error) {
        if let Some(shards) = self.0.unkept.note(Instant::now()) {
            let (url, dataset) = (shown(fill.url()), self.0.shared.dataset_of(fill.url()));
            let (tenant, tier) = (fill.request.tenant.as_deref(), self.name());
            let (session, job) = fill.request.rank.asker();
            tracing::warn!(session, job, tenant, dataset, url, tier, shards, error = %fault, "failed to store shards");
        }
        match fault.kind() {
            ErrorKind::Full => self.note_full(fault),
            _ => self.note_failure(fault),
        }
        if arrival.is_fetch() {
            self.0.tally.failed_fills.inc();
            if !fill.growth.is_unpacked() {
                // Its readers go on, from the origin.
                self.0.shared.read_through(shard);
            }
        }
        drop(self.remove_open_copy(shard));
    }

    /// The shard did not come, or not all of it.
    async fn finish_failed(
        &self,
        fill: &Fill,
        shard: &Arc<Shard>,
        arrival: &Arrival,
        error: Error,
    ) {
        let (url, dataset) = (shown(fill.url()), self.0.shared.dataset_of(fill.url()));
        let tenant = fill.request.tenant.as_deref();
        let (session, job) = fill.request.rank.asker();
        tracing::warn!(session, job, tenant, dataset, url, %error, "failed to fetch a shard");
        if arrival.is_fetch() {
            self.0.tally.failed_fills.inc();
        }
        fill.parts.fail(&error);
        let goes_on = fill.keep_for_resume(&error).await;
        // A shard that failed a checksum of the whole has no byte that is certainly good. A
        // compressed shard that its tier did not keep is not there any more.
        let is_lost = fill.untrusted.get().is_some()
            || fill.growth.is_unpacked() && fill.destination.fault.get().is_some()
            || fill.request.stat.binding == Binding::Stream && !shard.outlives_its_fault();
        if error.kind() == ErrorKind::Corrupt && arrival.is_fetch() && !is_lost {
            // Samples before the fault are good. The copy stays for them while there is room:
            // without it, each batch that holds one would fetch the shard again. It has no sidecar,
            // so it ends with the process.
            self.table().finish_fill(shard, ShardState::Broken);
        } else {
            // The object may have changed: its identity is asked anew.
            self.0.shared.forget_identity(&*fill.request.source, fill.url());
            match goes_on {
                true => self.table().keep_partial(shard.name()),
                false => drop(self.remove_open_copy(shard)),
            }
        }
        // Last: a waiter that asks again on this error must not find this copy.
        fill.fail(&error);
    }

    /// Wakes the task that moves shards if the tier is above its watermark.
    fn relieve(&self) {
        if self.excess() > 0 {
            self.0.shared.moves.notify_one();
        }
    }
}
