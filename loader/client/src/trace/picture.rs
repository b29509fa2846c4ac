//! Events of batches, drawn as slices on tracks and arrows between them.
//!
//! Two processes are drawn, the daemon and the trainer, on their common clock. The daemon's tracks
//! show arriving bytes of shards, and each batch with its stages. The trainer's show each batch
//! between the stages (in transit, queued, ready), the decode thread, and the consumer, which waits
//! and computes. An arrow leads along each batch, and from the fetch of its bytes to it.
//!
//! Slices of one track nest and never overlap. Concurrent ones are drawn on lanes side by side.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use forebay_wire::message::{Came, Cause, Stage, Work};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Followed, Handed, Heading};
use crate::waits::cut;

/// The drawn processes: names, not the kernel's numbers, so that one that is started again goes on
/// in its place.
const DAEMON: u32 = 1;
const TRAINER: u32 = 2;

/// Tracks of their own.
const CONSUMER: u32 = 1;
const DECODE: u32 = 2;

/// Lanes of one kind, at most; whatever is beyond is drawn over the one that is free soonest.
const LANES: usize = 256;

/// Pieces of shards that arrows may come from: as many as batches soon use, of a few dozen bytes
/// each.
const REMEMBERED: usize = 16_384;

/// Arrows into one batch, at most: a batch that is mixed of a hundred shards would show nothing
/// else.
const ARROWS: usize = 16;

/// One line of the Trace Event Format. Times are microseconds since the trace's begin.
#[derive(Debug, Serialize)]
pub(super) struct Event<'a> {
    ph: &'static str,
    name: Cow<'a, str>,
    cat: &'static str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// An arrow's end binds to the slice around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

/// Receiver of events.
type Put<'a> = &'a mut dyn FnMut(&Event<'_>);

/// A track, and a stretch of time on it.
#[derive(Debug, Clone, Copy)]
struct Spot {
    pid: u32,
    tid: u32,
    start_ns: u64,
    end_ns: u64,
}

impl Spot {
    /// A moment in it, for an arrow: its last, or its only one.
    fn last(self) -> u64 {
        self.end_ns.saturating_sub(1).max(self.start_ns)
    }
}

/// Tracks side by side for what goes on at once.
#[derive(Debug)]
struct Lanes {
    pid: u32,
    first: u32,
    name: &'static str,
    /// Until when each is taken.
    taken_ns: Vec<u64>,
}

/// Bytes that came, for arrows to come from.
#[derive(Debug)]
struct Fetched {
    shard: u32,
    from: u64,
    until: u64,
    spot: Spot,
}

/// Part of the drawn picture that later events need.
#[derive(Debug)]
pub(super) struct Picture {
    begin_ns: u64,
    /// Tracks whose names are to be told before anything else.
    unnamed: Vec<(u32, Option<u32>, String)>,
    came: Lanes,
    served: Lanes,
    ring: Lanes,
    fetched: VecDeque<Fetched>,
    /// Tiers that shards were kept on.
    tiers: HashMap<u32, String>,
    arrows: u64,
    /// The batch that the consumer has, and since when.
    has: Option<(String, u64, u64)>,
}

impl Picture {
    pub(super) fn new(heading: &Heading) -> Self {
        let lanes = |pid, first, name| Lanes { pid, first, name, taken_ns: Vec::new() };
        let unnamed = vec![
            (DAEMON, None, "daemon".to_owned()),
            (TRAINER, None, format!("trainer {} ({})", heading.pid, heading.job)),
            (TRAINER, Some(CONSUMER), "consumer".to_owned()),
            (TRAINER, Some(DECODE), "decode".to_owned()),
        ];
        Self {
            begin_ns: heading.begin_ns,
            unnamed,
            came: lanes(DAEMON, 1000, "shards"),
            served: lanes(DAEMON, 2000, "batches"),
            ring: lanes(TRAINER, 3000, "ring"),
            fetched: VecDeque::new(),
            tiers: HashMap::new(),
            arrows: 0,
            has: None,
        }
    }

    /// Something came in of a shard.
    pub(super) fn came(&mut self, came: &Came, url: Option<&str>, put: Put<'_>) {
        let Came { shard, work, start_ns, end_ns, .. } = came;
        let spot = self.came.take(*start_ns, *end_ns, &mut self.unnamed);
        let (name, args) = match work {
            Work::Fetched { from, until } => {
                if self.fetched.len() == REMEMBERED {
                    self.fetched.pop_front();
                }
                let (shard, from, until) = (*shard, *from, *until);
                self.fetched.push_back(Fetched { shard, from, until, spot });
                let args = json!({
                    "shard": shard, "url": url, "from": from, "bytes": until.saturating_sub(from),
                });
                (format!("fetch shard {shard}"), args)
            }
            Work::Kept { tier } => {
                // As many as the job has shards.
                self.tiers.insert(*shard, tier.clone());
                (format!("keep shard {shard}"), json!({ "shard": shard, "url": url, "tier": tier }))
            }
        };
        self.slice("shard", name, spot, args, put);
    }

    /// The consumer asks for a batch: what it had, it computed on until now.
    pub(super) fn asked(&mut self, asked_ns: u64, put: Put<'_>) {
        let Some((name, id, since_ns)) = self.has.take() else { return };
        let spot = consumer(since_ns, asked_ns);
        self.slice("compute", "compute".into(), spot, json!({ "batch": name }), put);
        self.arrow("f", "batch", id, spot, since_ns, put);
    }

    /// The consumer got a batch.
    pub(super) fn handed(&mut self, batch: &Followed, handed: &Handed, put: Put<'_>) {
        let Followed { epoch, run, index, decode, arrived_ns, .. } = batch;
        let name = format!("batch {epoch}/{index}");
        self.arrows += 1;
        let id = self.arrows;
        let served = self.serve(batch, &name, put);
        self.origins(batch, served, put);
        self.arrow("s", "batch", id, served, served.start_ns, put);

        // Between the stages: on its way from the daemon, queued for the decoder, ready for the
        // consumer.
        let sent_ns = served.end_ns.min(*arrived_ns);
        let ring = self.ring.take(sent_ns, handed.wait.end, &mut self.unnamed);
        self.slice("batch", name.clone(), ring, json!({ "run": run }), put);
        let between = [
            ("on its way", sent_ns, *arrived_ns),
            ("queued", *arrived_ns, decode.start_ns),
            ("ready", decode.end_ns, handed.wait.end),
        ];
        for (what, start_ns, end_ns) in between {
            let spot = Spot { start_ns, end_ns: end_ns.max(start_ns), ..ring };
            self.slice("ring", what.into(), spot, json!({ "batch": name }), put);
        }
        self.arrow("t", "batch", id, ring, ring.start_ns, put);
        let spot =
            Spot { pid: TRAINER, tid: DECODE, start_ns: decode.start_ns, end_ns: decode.end_ns };
        self.slice(
            decode.cause.name(),
            decode.cause.name().into(),
            spot,
            json!({ "batch": name }),
            put,
        );
        self.arrow("t", "batch", id, spot, spot.start_ns, put);

        for Range { start, end } in batch.brought.iter().cloned() {
            let part = Spot { start_ns: start, end_ns: end, ..spot };
            self.slice("h2d", "h2d".into(), part, json!({ "batch": name }), put);
        }

        let wait = consumer(handed.wait.start, handed.wait.end);
        self.slice("wait", "wait".into(), wait, json!({ "batch": name }), put);
        for Stage { cause, start_ns, end_ns } in handed.parts.iter().copied() {
            let spot = consumer(start_ns, end_ns);
            self.slice("cause", cause.name().into(), spot, json!({ "batch": name }), put);
        }
        self.arrow("t", "batch", id, wait, wait.last(), put);
        self.has = Some((name, id, handed.wait.end));
    }

    /// The daemon's part of a batch: from its first stage to its last.
    fn serve(&mut self, batch: &Followed, name: &str, put: Put<'_>) -> Spot {
        let starts = batch.stages.iter().map(|stage| stage.start_ns);
        let ends = batch.stages.iter().map(|stage| stage.end_ns);
        // One of empty samples needs no work.
        let start_ns = starts.min().unwrap_or(batch.arrived_ns);
        let end_ns = ends.max().unwrap_or(batch.arrived_ns).max(start_ns);
        let spot = self.served.take(start_ns, end_ns, &mut self.unnamed);
        let tiers: Vec<_> =
            batch.shards.iter().filter_map(|(shard, ..)| self.tiers.get(shard)).collect();
        let mut args = json!({
            "samples": batch.samples,
            "tier_bytes": batch.bytes.tier,
            "origin_bytes": batch.bytes.origin,
            "shards": batch.shards.iter().map(|(shard, ..)| *shard).collect::<Vec<_>>(),
        });
        if let Some(tier) = tiers.first() {
            args["tier"] = json!(tier);
        }
        self.slice("batch", name.to_owned(), spot, args, put);
        let worked = cut(start_ns..end_ns, &batch.stages, &[]);
        // Time outside all stages is the wait for a slot, which is no work.
        for Stage { cause, start_ns, end_ns } in
            worked.into_iter().filter(|stage| stage.cause != Cause::RingEmpty)
        {
            let part = Spot { start_ns, end_ns, ..spot };
            self.slice("stage", cause.name().into(), part, json!({ "batch": name }), put);
        }
        spot
    }

    /// Arrows from what brought the bytes of a batch.
    fn origins(&mut self, batch: &Followed, served: Spot, put: Put<'_>) {
        let is_of = |fetched: &Fetched| {
            batch.shards.iter().any(|(shard, first, last)| {
                *shard == fetched.shard && fetched.from <= *last && *first < fetched.until
            })
        };
        let from: Vec<_> = self.fetched.iter().filter(|fetched| is_of(fetched)).collect();
        let from: Vec<_> = from.iter().rev().take(ARROWS).map(|fetched| fetched.spot).collect();
        for spot in from {
            self.arrows += 1;
            let id = self.arrows;
            self.arrow("s", "origin", id, spot, spot.start_ns, put);
            self.arrow("f", "origin", id, served, served.last(), put);
        }
    }

    fn slice(&mut self, cat: &'static str, name: String, spot: Spot, args: Value, put: Put<'_>) {
        self.name_tracks(put);
        let Spot { pid, tid, start_ns, end_ns } = spot;
        let (ts, end) = (self.us(start_ns), self.us(end_ns));
        let dur = Some((end - ts).max(0.0));
        put(&Event {
            ph: "X",
            name: name.into(),
            cat,
            ts,
            dur,
            pid,
            tid,
            id: None,
            bp: None,
            args,
        });
    }

    fn arrow(
        &mut self,
        ph: &'static str,
        cat: &'static str,
        id: u64,
        spot: Spot,
        at_ns: u64,
        put: Put<'_>,
    ) {
        let (ts, bp) = (self.us(at_ns), Some("e"));
        let Spot { pid, tid, .. } = spot;
        let (name, args) = (Cow::Borrowed(cat), Value::Null);
        put(&Event { ph, name, cat, ts, dur: None, pid, tid, id: Some(id), bp, args });
    }

    fn name_tracks(&mut self, put: Put<'_>) {
        for (pid, track, name) in self.unnamed.drain(..) {
            let what = if track.is_some() { "thread_name" } else { "process_name" };
            let (tid, args) = (track.unwrap_or_default(), json!({ "name": name }));
            put(&Event {
                ph: "M",
                name: what.into(),
                cat: "__metadata",
                ts: 0.0,
                dur: None,
                pid,
                tid,
                id: None,
                bp: None,
                args,
            });
        }
    }

    /// Microseconds since the trace's begin; what began earlier begins with it.
    fn us(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.begin_ns) as f64 / 1e3
    }
}

impl Lanes {
    /// A lane that is free in that time; a new one is named first.
    fn take(
        &mut self,
        start_ns: u64,
        end_ns: u64,
        unnamed: &mut Vec<(u32, Option<u32>, String)>,
    ) -> Spot {
        let free = self.taken_ns.iter().position(|taken| *taken <= start_ns);
        let lane = match free {
            Some(lane) => lane,
            None if self.taken_ns.len() < LANES => {
                self.taken_ns.push(0);
                self.taken_ns.len() - 1
            }
            None => (0..LANES).min_by_key(|lane| self.taken_ns[*lane]).unwrap_or_default(),
        };
        let tid = self.first + u32::try_from(lane).expect("lanes are counted in u32");
        if self.taken_ns[lane] == 0 {
            unnamed.push((self.pid, Some(tid), format!("{} {}", self.name, lane + 1)));
        }
        self.taken_ns[lane] = end_ns.max(start_ns).max(1);
        Spot { pid: self.pid, tid, start_ns, end_ns: end_ns.max(start_ns) }
    }
}

fn consumer(start_ns: u64, end_ns: u64) -> Spot {
    Spot { pid: TRAINER, tid: CONSUMER, start_ns, end_ns: end_ns.max(start_ns) }
}
