//! Look at a job's shards when a run begins, so that a change during the run is noticed.

use std::sync::Arc;

use futures::StreamExt;
use tokio::task::JoinSet;

use super::JobData;

/// Shards looked at concurrently: enough to hide a network file system's latency, and few enough
/// that the job's own reads come through.
const LOOKS: usize = 8;

/// Largest number of shards looked at ahead. Each rank of each node looks, and a metadata server
/// takes some ten thousand looks a second. Shards of a longer list are looked at when they are
/// opened.
const LOOKED_AT_MAX: usize = 4096;

/// Begins a run, and looks at the job's shards until the result is dropped.
pub(super) fn begin_run(job: &Arc<JobData>) -> JoinSet<()> {
    job.store.begin_run(false);
    look(job)
}

/// Looks at the job's shards until the result is dropped.
pub(super) fn look(job: &Arc<JobData>) -> JoinSet<()> {
    let mut looking = JoinSet::new();
    if job.spec.urls.len() <= LOOKED_AT_MAX {
        let job = job.clone();
        looking.spawn(async move {
            let looks = futures::stream::iter(&job.spec.urls)
                .for_each_concurrent(LOOKS, |url| job.store.look_at(url, &job.origin));
            looks.await;
        });
    }
    looking
}
