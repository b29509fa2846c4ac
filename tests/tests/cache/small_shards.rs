//! Small shards that are read often come from memory that no fill needs.

use std::sync::{Arc, Mutex};

use forebay_store::{FRAME_BYTES, PART_BYTES};
use forebay_testkit::shard;
use forebay_tests::{BareStore, BareStoreConfig, Daemon};
use forebay_uring::{Attempt, AttemptKind, Fate, Faults};

/// Reads of short pieces of a small shard before it is read whole.
const SHORT_READS: usize = 31;

/// Lengths of all reads of the device.
#[derive(Default)]
struct Reads(Mutex<Vec<usize>>);

impl Reads {
    /// Returns the lengths since the last call.
    fn take(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Faults for Reads {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        if attempt.kind == AttemptKind::Read {
            self.0.lock().unwrap().push(attempt.len);
        }
        Fate::Pass
    }

    fn landed(&self, _attempt: &Attempt<'_>, _is_ok: bool) {}
}

/// A cached shard of samples of so many bytes, of which none was read.
struct Bench {
    bare: BareStore,
    reads: Arc<Reads>,
    url: String,
    len: usize,
    _folders: [tempfile::TempDir; 2],
}

impl Bench {
    fn new(samples: u64, bytes: usize) -> Self {
        let (origin, cache) = (Daemon::disk(), Daemon::disk());
        let path = origin.path().join("0.tar");
        let tar = shard(samples, 0, &(bytes..bytes + 1));
        std::fs::write(&path, &tar).unwrap();
        let reads = Arc::new(Reads::default());
        let mut config = BareStoreConfig::new(cache.path().to_owned(), 1 << 30);
        config.faults = Some(reads.clone());
        let (bare, url) = (config.open(), format!("file://{}", path.display()));
        let bench = Self { bare, reads, url, len: tar.len(), _folders: [origin, cache] };
        bench.bare.runtime.block_on(async {
            let options = forebay_source::Options::default();
            let urgency = forebay_store::Urgency::Needed;
            let shard = bench.bare.store.shard(&bench.url, &options, urgency).await.unwrap();
            shard.settled().await.unwrap();
        });
        bench.reads.take();
        bench
    }

    fn read(&self) -> Vec<Vec<u8>> {
        self.bare.read_all(&self.url).unwrap()
    }
}

#[test]
fn small_shard_is_read_once_more_as_a_whole() {
    let bench = Bench::new(300, 200);
    let content = bench.read();
    assert!(content.len() > SHORT_READS);
    let reads = bench.reads.take();
    assert_eq!(reads.len(), SHORT_READS + 1, "{reads:?}");
    assert!(reads[SHORT_READS] >= bench.len, "{reads:?}");
    assert!(bench.bare.frames.reclaimable() >= bench.len);
    assert_eq!(bench.read(), content);
    assert!(bench.reads.take().is_empty(), "all of it is in memory");
    // Whoever needs the memory gets it, and the device is read again.
    let all = bench.bare.runtime.block_on(bench.bare.frames.lease(FRAME_BYTES)).unwrap();
    assert_eq!(bench.bare.frames.reclaimable(), 0);
    drop(all);
    assert_eq!(bench.read(), content);
    assert_eq!(bench.reads.take().len(), SHORT_READS + 1);
    bench.bare.end();
    // One that is larger than a frame.
    let bench = Bench::new(100, 64 << 10);
    assert!(bench.len > PART_BYTES);
    let members = bench.read().len();
    assert_eq!(bench.reads.take().len(), members);
    bench.bare.end();
}
