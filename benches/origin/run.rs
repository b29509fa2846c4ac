//! One fetch or batch, and what it took.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_engine::session::{Event, Session};
use forebay_source::Options;
use forebay_store::{Store, Urgency};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::tier;

/// Cost of a fetch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    pub(crate) seconds: f64,
    /// CPU seconds of the client alone.
    pub(crate) cpu: f64,
}

/// Interval between checks for a commit.
pub(crate) const LOOK: Duration = Duration::from_millis(1);

/// Seconds of CPU that this process and the children it has waited for used so far.
pub(crate) fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The command may hold anything; what follows its last parenthesis is numbers.
    let numbers = stat.rsplit_once(')').unwrap().1;
    // utime, stime, cutime and cstime (proc(5)).
    let ticks: u64 = numbers
        .split_whitespace()
        .skip(11)
        .take(4)
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Runs it, and tells what it took.
pub(crate) fn timed(fetch: impl FnOnce()) -> Took {
    let (begin, before) = (Instant::now(), cpu());
    fetch();
    Took { seconds: begin.elapsed().as_secs_f64(), cpu: cpu() - before }
}

/// A store that has just been opened, as of a daemon that has just started.
pub(crate) struct Fresh {
    pub(crate) runtime: Runtime,
    pub(crate) store: Store,
    _folder: tempfile::TempDir,
}

impl Fresh {
    pub(crate) fn open(directory: &Path) -> Self {
        let folder =
            tempfile::Builder::new().prefix("origin-bench-").tempdir_in(directory).unwrap();
        let runtime = Runtime::new().unwrap();
        let store = runtime.block_on(async {
            let store = tier::open(&folder.path().join("cache")).await;
            store.scanned().await.unwrap();
            store
        });
        Self { runtime, store, _folder: folder }
    }

    /// From nothing to a committed shard.
    pub(crate) fn fetch(&self, url: &str, options: &Options) {
        let before = self.store.counters().fills;
        self.runtime.block_on(async {
            let lease = self.store.shard(url, options, Urgency::Needed).await.unwrap();
            lease.wait(u64::MAX).await.unwrap();
            drop(lease);
            let mut looks = tokio::time::interval(LOOK);
            while self.store.counters().fills == before {
                looks.tick().await;
            }
        });
    }
}

/// Returns the bytes of a session's next batch, and releases its slot; none at the end of the
/// epoch.
pub(crate) async fn next_batch(
    session: &mut Session,
    events: &mut mpsc::Receiver<Event>,
) -> Option<u64> {
    loop {
        match events.recv().await.unwrap() {
            Event::Slab { .. }
            | Event::Memory { .. }
            | Event::Learnt { .. }
            | Event::Locate { .. }
            | Event::Acknowledged { .. } => {}
            Event::Batch { batch, .. } => {
                assert_eq!(batch.errors, []);
                let samples = batch.samples.iter().flat_map(|sample| &sample.members);
                let bytes = samples.flatten().map(|member| member.len).sum();
                session.release(batch.slab, batch.slot);
                return Some(bytes);
            }
            Event::End(end) => {
                assert_eq!(end.errors, []);
                return None;
            }
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
}
