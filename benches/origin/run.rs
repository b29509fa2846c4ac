//! One fetch or batch, and what it took.

use std::collections::HashMap;
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

/// A batch that was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// Bytes of its members.
    pub(crate) bytes: u64,
    /// Bytes of its shards, of each from the start to the last of the batch's samples in it: what a
    /// reader of plain tars has to fetch for the batch.
    pub(crate) reach: u64,
}

/// Returns a session's next batch, and releases its slot; none at the end of the epoch.
pub(crate) async fn next_batch(
    session: &mut Session,
    events: &mut mpsc::Receiver<Event>,
) -> Option<Taken> {
    loop {
        match events.recv().await.unwrap() {
            Event::Slab { .. }
            | Event::Memory { .. }
            | Event::Learnt { .. }
            | Event::Locate { .. }
            | Event::Acknowledged { .. }
            | Event::Unrecorded { .. } => {}
            Event::Batch { batch, offsets } => {
                assert_eq!(batch.errors, []);
                let (mut bytes, mut ends) = (0, HashMap::new());
                for (sample, &offset) in batch.samples.iter().zip(&offsets) {
                    let members = sample.members.as_ref().unwrap();
                    let len: u64 = members.iter().map(|member| member.len).sum();
                    let end: &mut u64 = ends.entry(sample.url).or_default();
                    (bytes, *end) = (bytes + len, (*end).max(offset + len));
                }
                session.release(batch.slab, batch.slot);
                return Some(Taken { bytes, reach: ends.values().sum() });
            }
            Event::End(end) => {
                assert_eq!(end.errors, []);
                return None;
            }
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
}
