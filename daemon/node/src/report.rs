//! Reports of a node: its status, and what its jobs cost.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_api::costs::{CostLine, CostReport, Whose};
use forebay_api::status::{Cache, Memory, Status};
use forebay_store::{Counters, TierReport};
use forebay_uring::Arena;
use forebay_wire::message::Cause;

use crate::Node;
use crate::cluster::Cluster;
use crate::costs::Waits;
use crate::gpus::Viewer;
use crate::sessions::RegisteredSession;

/// The state of `node` now, for whom of what GPUs did is told since such a viewer looked before.
pub async fn status(node: &Node, viewer: Viewer) -> Status {
    let (sessions, waited_ns) = {
        let sessions = node.sessions.lock().await;
        // While none can leave: each is here, or among those that are gone.
        let waited_ns = node.costs.waited_ns(sessions.iter().map(|session| session.waited().1));
        (sessions.clone(), waited_ns)
    };
    let jobs: Vec<_> = sessions.iter().map(RegisteredSession::describe).collect();
    // The only part that may take a moment.
    let gpus = node.gpus.look(viewer, &jobs).await;
    // Read once: the whole is what its parts are.
    let (tiers, past) = (node.store.tiers(), node.store.past());
    let sum = |sum: Counters, tier: &TierReport| sum + tier.counters;
    Status {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: node.started.elapsed().as_secs_f64(),
        configuration: node.configuration().await,
        cache: Cache {
            counters: tiers.iter().fold(past.into(), sum),
            holdings: node.store.holdings(),
            past,
            past_tiers: node.store.past_tiers(),
        },
        tiers,
        sources: node.store.links(),
        mounts: node.readers.report(),
        client_files: node.readers.opened_by_clients(),
        fills: node.store.fills(),
        foresight: node.store.forecast(),
        frames: frames(&node.frames),
        slab_bytes: node.slabs.used(),
        slab_limit_bytes: node.slabs.limit(),
        cluster: node.cluster.as_ref().map(Cluster::report),
        checkpoints: node.checkpoints.report(),
        jobs,
        gpus,
        warm_ups: node.warm_ups.describe(),
        audit: node.audit.report(),
        bills: node.store.bills(),
        shard_waits: node.store.waits(),
        shard_fetches: node.store.fetches(),
        waited_ns,
    }
}

fn frames(frames: &Arena) -> Memory {
    let copies_bytes = frames.reclaimable();
    Memory {
        bytes: frames.capacity(),
        // Copies may have come or gone since.
        in_use_bytes: frames.in_use().saturating_sub(copies_bytes),
        copies_bytes,
        pages: frames.region().pages(),
    }
}

/// Returns the costs of the node's jobs so far.
pub async fn costs(node: &Node) -> CostReport {
    let mut waited = BTreeMap::new();
    // A job that ends meanwhile is counted once: here or among the ended ones.
    let sessions = node.sessions.lock().await;
    waited.clone_from(&node.costs.lock());
    for session in sessions.iter() {
        let (whose, more) = session.waited();
        waited.entry(whose).or_default().add(&more);
    }
    let fetched = node.store.bills().into_iter().map(|(charged, billed)| CostLine {
        job: charged.job.to_string(),
        tenant: charged.tenant.map(|tenant| tenant.to_string()),
        dataset: Some(charged.dataset.to_string()),
        requests: billed.requests,
        origin_bytes: billed.origin_bytes,
        file_bytes: billed.file_bytes,
        written_bytes: billed.written_bytes,
        ..CostLine::default()
    });
    let lines = fetched.chain(waited.into_iter().map(|(whose, waited)| of_waits(whose, &waited)));
    let uptime = node.started.elapsed();
    CostReport::new(uptime, node.prices(), lines.collect(), &node.store.tiers())
}

/// A line of what a job waited.
fn of_waits((job, tenant): Whose, waited: &Waits) -> CostLine {
    let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
    let by_cause = Cause::ALL.into_iter().map(|cause| (cause, waited.ns[cause as usize]));
    CostLine {
        job,
        tenant,
        trainers: waited.trainers,
        gpu_seconds_lost: seconds(waited.ns.iter().fold(0, |sum, ns| sum.saturating_add(*ns))),
        gpu_seconds_lost_by_cause: by_cause
            .map(|(cause, ns)| (cause.name().to_owned(), seconds(ns)))
            .collect(),
        ..CostLine::default()
    }
}
