//! A file read where it is, against the same shard on a tier of the same disk.
//!
//! Both are one job's epochs through the same engine, in turns, each after one that is
//! not counted: by then the file has its index, and the tier its copy. Either is read by O_DIRECT,
//! in an order of the job's own.

use std::path::Path;
use std::time::Instant;

use forebay_engine::session::{Event, Host, Preface, Session, SlabMemory};
use forebay_store::{Cache, Dataset, Evict, Store};
use forebay_wire::message::{Begin, Open, Order};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::contest::spread;
use crate::run::next_batch;
use crate::{BUCKET, Bench, KEY, tier};

/// Samples of a batch, and batches under way: as a loader of images has them.
const BATCH: u32 = 64;
const PREFETCH: u32 = 4;

/// Memory for the slabs of both jobs, twice what their batches of photos take.
const SLABS: usize = 256 << 20;

/// Epochs of either in a round: a rate over less than a second measures starts and ends.
const EPOCHS: u64 = 4;

/// A job on one shard.
struct Job {
    session: Session,
    events: mpsc::Receiver<Event>,
    run: u64,
}

impl Job {
    fn open(number: u64, store: &Store, shard: &Path) -> Self {
        let urls = vec![shard.display().to_string()];
        let open = Open::new("place", urls, Order::shuffled(1, 1, BATCH));
        let open = Open { prefetch: PREFETCH, ..open };
        let host = Host { store: store.clone(), slabs: SlabMemory::new(SLABS) };
        let (session, events) = Session::open(number, open, Preface::default(), host).unwrap();
        Self { session, events, run: 0 }
    }

    /// Plays an epoch; with the bytes of its samples.
    async fn play(&mut self) -> u64 {
        self.run += 1;
        self.session.start(self.run, Begin::at(self.run, 0));
        let mut bytes = 0;
        while let Some(batch) = next_batch(&mut self.session, &mut self.events).await {
            bytes += batch.bytes;
        }
        bytes
    }

    /// GB/s of some epochs.
    async fn rate(&mut self) -> f64 {
        let (begin, mut bytes) = (Instant::now(), 0);
        for _ in 0..EPOCHS {
            bytes += self.play().await;
        }
        bytes as f64 / begin.elapsed().as_secs_f64() / 1e9
    }
}

/// Measures a job's rate under either placement.
pub(crate) fn place(bench: &Bench) -> Value {
    let root = bench.root.path().canonicalize().unwrap();
    let cached = root.join(BUCKET).join(KEY);
    let stays = root.join("stays").join(KEY);
    std::fs::create_dir(root.join("stays")).unwrap();
    // The same bytes at the same place of the disk, by another name.
    std::fs::hard_link(&cached, &stays).unwrap();
    let matches = format!("{}/stays/*", root.display());
    let rule = Dataset::new("stays", &matches, Evict::default()).unwrap();
    let rule = Dataset { cache: Cache::Never, ..rule };
    Runtime::new().unwrap().block_on(async {
        let store = tier::open_with(&root.join("cache"), vec![rule]).await;
        let mut jobs = [Job::open(1, &store, &cached), Job::open(2, &store, &stays)];
        for job in &mut jobs {
            job.play().await;
        }
        let mut looks = tokio::time::interval(crate::run::LOOK);
        while store.counters().fills == 0 {
            looks.tick().await;
        }
        let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for round in 0..bench.rounds {
            let mut now = [0.0; 2];
            for turn in [round % 2, (round + 1) % 2] {
                now[turn] = jobs[turn].rate().await;
                rates[turn].push(now[turn]);
            }
            println!("  tier {:6.3} GB/s  in place {:6.3} GB/s", now[0], now[1]);
            ratios.push(now[1] / now[0]);
        }
        assert_eq!(store.counters().fills, 1, "the file was cached");
        let ratio = spread(ratios);
        println!("  in place of the tier, median of {}: {:.2}", bench.rounds, ratio[0]);
        let [tier, in_place] = rates;
        json!({
            "tier_gb_per_second": tier, "in_place_gb_per_second": in_place, "ratio": ratio,
            "bytes": bench.bytes, "batch": BATCH, "prefetch": PREFETCH,
        })
    })
}
