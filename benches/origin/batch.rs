//! The first batch of a cold epoch over many lanes, over the link that `delay_line.py` makes.
//!
//! A job as a user has it, on shards of which nothing is here, through the engine; time
//! runs from its start, and what it is held against is the batch's own bytes over what the link
//! carries.

use std::time::Instant;

use forebay_benches::MEMBER;
use forebay_engine::session::{Event, Host, Preface, Session, SlabMemory};
use forebay_wire::message::{Begin, Open, Order};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::contest::spread;
use crate::far::{Link, far_end};
use crate::near::more;
use crate::run::Fresh;
use crate::{BUCKET, Bench};

/// Samples of a batch, and batches under way: as a loader of images has them.
const BATCH: u32 = 256;
const PREFETCH: u32 = 4;

/// Lanes: few, and as many as are dealt to unless asked otherwise.
pub(crate) const LANES: [u32; 2] = [8, 96];

/// Shards of a lane, as the default number of lanes leaves at least.
const SHARDS_PER_LANE: u32 = 4;

/// Shards mixed at once, unless asked otherwise.
const WINDOW: u32 = 64;

/// Batches after which the link is looked at once more: some seconds of it, whatever came first.
const MORE: u64 = 32;

/// Memory for slabs: twice what the batches take.
const SLABS: usize = 2 * (PREFETCH as usize + 1) * BATCH as usize * MEMBER;

/// Time allowed for a first batch beside twice the time of its bytes.
const BESIDE_SECONDS: f64 = 1.0;

/// Result of a cold start.
struct Start {
    /// Until the first batch, its bytes, and those that the link had carried by then.
    seconds: f64,
    bytes: u64,
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
        let url = |name: &String| format!("{}/{BUCKET}/{name}", link.nginx.http());
        let urls: Vec<_> = names.iter().map(url).collect();
        let starts: Vec<_> =
            (0..bench.rounds).map(|_| cold(bench, &link, lanes, urls.clone())).collect();
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
    let bytes = starts.iter().map(|start| start.bytes).max().unwrap_or(0) as f64;
    let carried = spread(all(|start| start.carried as f64));
    let alone = bytes / link.carries();
    let bound = 2.0 * alone + BESIDE_SECONDS;
    println!(
        "  {lanes} lanes: first batch {middle:.3} s ({low:.3}..{high:.3}); its bytes alone {alone:.3} s, twice and {BESIDE_SECONDS} s: {bound:.3} s; the link carried {:.1} times its bytes, then {:.2} of what it can",
        carried[0] / bytes,
        spread(used.clone())[0],
    );
    json!({
        "first_batch_seconds": seconds, "batch_bytes": bytes, "bytes_alone_seconds": alone,
        "bound_seconds": bound, "ratio": middle / bound, "carried_bytes": all(|start| start.carried as f64),
        "use_of_link": used,
    })
}

/// One cold start.
fn cold(bench: &Bench, link: &Link, lanes: u32, urls: Vec<String>) -> Start {
    let fresh = Fresh::open(&bench.directory);
    let samples = bench.bytes / (MEMBER.next_multiple_of(512) + 512) as u64;
    let order = Order { lanes: Some(lanes), ..Order::shuffled(WINDOW, 1, BATCH) };
    let counts = Some(vec![samples; urls.len()]);
    let open = Open { counts, prefetch: PREFETCH, ..Open::new("batch", urls, order) };
    let host = Host { store: fresh.store.clone(), slabs: SlabMemory::new(SLABS) };
    fresh.runtime.block_on(async {
        let (mut session, mut events) = Session::open(1, open, Preface::default(), host).unwrap();
        let begin = Instant::now();
        session.start(1, Begin::at(0, 0));
        let carried = || fresh.store.links().iter().map(|link| link.bytes).sum::<u64>();
        let bytes = next(&mut session, &mut events).await;
        let (seconds, first) = (begin.elapsed().as_secs_f64(), carried());
        for _ in 1..MORE {
            next(&mut session, &mut events).await;
        }
        let use_of_link = carried() as f64 / begin.elapsed().as_secs_f64() / link.carries();
        Start { seconds, bytes, carried: first, use_of_link }
    })
}

/// The bytes of the next batch.
async fn next(session: &mut Session, events: &mut mpsc::Receiver<Event>) -> u64 {
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
                return bytes;
            }
            Event::End { .. } => panic!("the epoch is too short"),
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
}
