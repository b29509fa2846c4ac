//! Cold epochs over the link that `delay_line.py` makes: the first batch over many lanes, and all
//! of an epoch.
//!
//! A job as a user has it, on shards of which nothing is here, through the engine. Time runs from
//! its start, and is compared with the time in which the link carries the same bytes.

use std::time::Instant;

use forebay_benches::MEMBER;
use forebay_engine::session::{Event, Host, Preface, Session, SlabMemory};
use forebay_wire::message::{Begin, Open, Order};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::contest::spread;
use crate::far::{Link, far_end};
use crate::near::more;
use crate::run::{Fresh, Taken, next_batch};
use crate::{BUCKET, Bench};

/// Samples of a batch, and batches under way: as a loader of images has them.
const BATCH: u32 = 256;
const PREFETCH: u32 = 4;

/// Lanes: few, and as many as are dealt to unless asked otherwise.
pub(crate) const LANES: [u32; 2] = [8, 96];

/// Shards of a lane, as the default number of lanes leaves at least.
const SHARDS_PER_LANE: u32 = 4;

/// Shards of a whole epoch.
const EPOCH_SHARDS: usize = 8;

/// Shards mixed at once, unless asked otherwise.
const WINDOW: u32 = 64;

/// Batches after which the link is looked at once more: some seconds of it, whatever came first.
const MORE: u64 = 32;

/// Memory for slabs: twice what the batches take.
const SLABS: usize = 2 * (PREFETCH as usize + 1) * BATCH as usize * MEMBER;

/// Time allowed for a first batch beside that of its bytes and of two round trips: opening the
/// store's connections, and the first bytes of TCP's slow start.
const BESIDE_SECONDS: f64 = 0.3;

/// Round trips of a first batch: one connects, one asks.
const ROUND_TRIPS: f64 = 2.0;

/// Result of a cold start.
struct Start {
    /// Until the first batch, the batch, and the bytes that the link had carried by then.
    seconds: f64,
    first: Taken,
    carried: u64,
    /// The share of the link's time that was used until more of them were there.
    use_of_link: f64,
}

/// Cold first batches.
pub(crate) fn batch(bench: &Bench) -> Value {
    let link = far_end(bench);
    let mut told = serde_json::Map::new();
    for &lanes in &bench.lanes {
        let names = more(bench, (lanes * SHARDS_PER_LANE) as usize);
        let starts: Vec<_> = (0..bench.rounds).map(|_| cold(bench, &link, lanes, &names)).collect();
        told.insert(format!("lanes_{lanes}"), table(&link, lanes, &starts));
    }
    told.insert("rtt_seconds".into(), link.rtt.into());
    told.insert("link_gb_per_second".into(), (link.carries() / 1e9).into());
    Value::Object(told)
}

fn table(link: &Link, lanes: u32, starts: &[Start]) -> Value {
    let all = |of: fn(&Start) -> f64| starts.iter().map(of).collect::<Vec<_>>();
    let (seconds, used) = (all(|start| start.seconds), all(|start| start.use_of_link));
    let [middle, low, high] = spread(seconds.clone());
    let bytes = spread(all(|start| start.first.bytes as f64))[0];
    let reach = spread(all(|start| start.first.reach as f64))[0];
    let carried = spread(all(|start| start.carried as f64));
    let [alone, least] = [bytes, reach].map(|bytes| bytes / link.carries());
    let [bound, bound_of_reach] =
        [alone, least].map(|seconds| seconds + ROUND_TRIPS * link.rtt + BESIDE_SECONDS);
    println!(
        "  {lanes} lanes: first batch {middle:.3} s ({low:.3}..{high:.3}), with {ROUND_TRIPS} round trips and {BESIDE_SECONDS} s its bytes take {bound:.3} s, its shards up to its last samples ({:.2} times its bytes) {bound_of_reach:.3} s; the link carried {:.2} times its bytes, then {:.2} of what it can",
        reach / bytes,
        carried[0] / bytes,
        spread(used.clone())[0],
    );
    json!({
        "first_batch_seconds": seconds, "batch_bytes": bytes, "bytes_alone_seconds": alone,
        "bound_seconds": bound, "ratio": middle / bound, "reach_bytes": reach,
        "bound_of_reach_seconds": bound_of_reach, "ratio_of_reach": middle / bound_of_reach,
        "carried_bytes": all(|start| start.carried as f64), "use_of_link": used,
    })
}

/// A job on shards of which nothing is here.
struct Job {
    fresh: Fresh,
    session: Session,
    events: mpsc::Receiver<Event>,
    begin: Instant,
}

impl Job {
    fn begin(bench: &Bench, link: &Link, order: Order, names: &[String]) -> Self {
        let url = |name: &String| format!("{}/{BUCKET}/{name}", link.nginx.http());
        let urls: Vec<_> = names.iter().map(url).collect();
        let fresh = Fresh::open(&bench.directory);
        let samples = bench.bytes / (MEMBER.next_multiple_of(512) + 512) as u64;
        let counts = Some(vec![samples; urls.len()]);
        let open = Open { counts, prefetch: PREFETCH, ..Open::new("batch", urls, order) };
        let host = Host { store: fresh.store.clone(), slabs: SlabMemory::new(SLABS) };
        let (session, events, begin) = fresh.runtime.block_on(async {
            let (mut session, events) = Session::open(1, open, Preface::default(), host).unwrap();
            let begin = Instant::now();
            session.start(1, Begin::at(0, 0));
            (session, events, begin)
        });
        Self { fresh, session, events, begin }
    }

    fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Bytes that the link carried for it.
    fn carried(&self) -> u64 {
        self.fresh.store.links().iter().map(|link| link.bytes).sum()
    }

    /// Returns the next batch; none at the end of the epoch.
    fn next(&mut self) -> Option<Taken> {
        self.fresh.runtime.block_on(next_batch(&mut self.session, &mut self.events))
    }
}

/// One cold start.
fn cold(bench: &Bench, link: &Link, lanes: u32, names: &[String]) -> Start {
    let order = Order { lanes: Some(lanes), ..Order::shuffled(WINDOW, 1, BATCH) };
    let mut job = Job::begin(bench, link, order, names);
    let first = job.next().unwrap();
    let (seconds, carried) = (job.seconds(), job.carried());
    for _ in 1..MORE {
        job.next().unwrap();
    }
    let use_of_link = job.carried() as f64 / job.seconds() / link.carries();
    Start { seconds, first, carried, use_of_link }
}

/// Result of a cold epoch.
struct Epoch {
    /// The share of the link's time in which it could have carried the shards.
    use_of_link: f64,
    carried: u64,
    /// Seconds after the last byte had come, and the samples' bytes taken in them.
    rest: (f64, u64),
}

/// Cold epochs of a few shards, whose every byte the link carries once: shuffled over all of them,
/// and in their order. The later the samples of a shuffle are drawn, the more of them are left to
/// be read from the tier when the last byte has come.
pub(crate) fn epoch(bench: &Bench) -> Value {
    let link = far_end(bench);
    let names = more(bench, EPOCH_SHARDS);
    let orders =
        [("shuffled", Order::shuffled(WINDOW, 1, BATCH)), ("in_order", Order::of_list(BATCH))];
    let mut told = json!({
        "shards": EPOCH_SHARDS, "shard_bytes": bench.bytes, "rtt_seconds": link.rtt,
        "link_gb_per_second": link.carries() / 1e9,
    });
    for (name, order) in orders {
        let play = |_| whole(bench, &link, order.clone(), &names);
        let epochs: Vec<_> = (0..bench.rounds).map(play).collect();
        let all = |of: fn(&Epoch) -> f64| epochs.iter().map(of).collect::<Vec<_>>();
        let [middle, low, high] = spread(all(|epoch| epoch.use_of_link));
        let rest = [all(|epoch| epoch.rest.0), all(|epoch| epoch.rest.1 as f64)].map(spread);
        println!(
            "  {EPOCH_SHARDS} shards of {} MiB, {name}: {middle:.3} of the link ({low:.3}..{high:.3}); after the last byte {:.2} s for {:.0} MB of samples",
            bench.bytes >> 20,
            rest[0][0],
            rest[1][0] / 1e6,
        );
        told[name] = json!({
            "use_of_link": all(|epoch| epoch.use_of_link),
            "carried_bytes": all(|epoch| epoch.carried as f64),
            "rest_seconds": all(|epoch| epoch.rest.0), "rest_bytes": all(|epoch| epoch.rest.1 as f64),
        });
    }
    told
}

/// One cold epoch.
fn whole(bench: &Bench, link: &Link, order: Order, names: &[String]) -> Epoch {
    let mut job = Job::begin(bench, link, order, names);
    let (mut taken, mut carried, mut arrival) = (0, 0, (0.0, 0));
    while let Some(batch) = job.next() {
        taken += batch.bytes;
        let by_now = job.carried();
        if by_now != carried {
            (carried, arrival) = (by_now, (job.seconds(), taken));
        }
    }
    let seconds = job.seconds();
    let bytes = bench.bytes * names.len() as u64;
    let use_of_link = bytes as f64 / seconds / link.carries();
    Epoch { use_of_link, carried, rest: (seconds - arrival.0, taken - arrival.1) }
}
