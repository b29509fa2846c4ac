//! The figures that were promised, on the clock of the simulation.

use super::*;
use crate::foresight::{Epoch, Epochs, Use};

/// Bytes of a shard, and bytes a second that a job reads: so a shard is a second's worth.
const SHARD: u64 = 1_000_000;

fn reader(name: &str, shards: u32, seed: u64) -> Reader {
    Reader {
        name: name.to_owned(),
        shards: (0..shards).collect(),
        rate: SHARD as f64,
        order: Order::Reshuffled,
        window: 1,
        epochs: 8,
        seed,
        joins: 0.0,
        uses: Vec::new(),
    }
}

/// `shards` equal shards, of which a share of `cached` fits, over a link that brings `bandwidth`
/// shards while one job reads one.
fn trace(shards: u32, cached: f64, bandwidth: f64, jobs: Vec<Reader>) -> Trace {
    Trace {
        capacity: (cached * f64::from(shards)).round() as u64 * SHARD,
        bandwidth: bandwidth * SHARD as f64,
        shards: vec![SHARD; shards as usize],
        jobs,
        warm_epochs: 2,
        jitter: Jitter::default(),
        here: Vec::new(),
        names: Vec::new(),
        at: 0,
        decisions: Vec::new(),
    }
}

const CACHED: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];
const BANDWIDTH: [f64; 5] = [0.2, 0.4, 0.55, 0.8, 1.2];

/// Upper bound for any policy: a cache with a share c reads 1 − c from a link that delivers b of
/// all reads.
fn bound(cached: f64, bandwidth: f64) -> f64 {
    (bandwidth / (1.0 - cached)).min(1.0)
}

#[test]
fn one_job_reaches_the_bound_with_fewest_fetches() {
    for cached in CACHED {
        for bandwidth in BANDWIDTH {
            let trace = trace(400, cached, bandwidth, vec![reader("a", 400, 1)]);
            let report = simulate(&trace, Evict::Clairvoyant).unwrap();
            let (busy, least) = (report.busy_share(), 1.0 - cached);
            assert!(busy >= bound(cached, bandwidth) - 0.02, "{cached} {bandwidth}: busy {busy}");
            let fetched = 1.0 - report.hit_ratio;
            assert!(fetched <= 1.02 * least, "{cached} {bandwidth}: {fetched} of {least}");
        }
    }
}

#[test]
fn jitter_of_steps_and_fetches_costs_little() {
    for cached in CACHED {
        for bandwidth in BANDWIDTH {
            let mut trace = trace(400, cached, bandwidth, vec![reader("a", 400, 1)]);
            trace.jitter = Jitter { step: 1.3, fetch: 3.0, seed: 9 };
            let busy = simulate(&trace, Evict::Clairvoyant).unwrap().busy_share();
            assert!(busy >= bound(cached, bandwidth) - 0.05, "{cached} {bandwidth}: busy {busy}");
        }
    }
}

/// The share of what is read that every evict has in the cache.
fn hits(trace: &Trace) -> Vec<(Evict, f64)> {
    Evict::ALL.into_iter().map(|evict| (evict, simulate(trace, evict).unwrap().hit_ratio)).collect()
}

/// By how much foresight beats the best of the others.
fn margin(trace: &Trace) -> (f64, f64) {
    let hits = hits(trace);
    let best = hits[1..].iter().map(|(_, hits)| *hits).fold(0.0, f64::max);
    (hits[0].1, hits[0].1 - best)
}

/// Results of an independent simulation of Belady's rule without costs: two jobs and four over the
/// same data.
#[test]
fn clairvoyant_beats_other_policies_on_shared_data() {
    let jobs = |count: u64| (0..count).map(|seed| reader(&format!("{seed}"), 1000, seed)).collect();
    let (two, ahead) = margin(&trace(1000, 0.5, 2.4, jobs(2)));
    assert!(two >= 0.71 && ahead >= 0.2, "{two}, by {ahead}");
    let (four, ahead) = margin(&trace(1000, 0.5, 4.8, jobs(4)));
    assert!(four >= 0.75 && ahead >= 0.25, "{four}, by {ahead}");
}

#[test]
fn clairvoyant_beats_other_policies_on_random_subsets() {
    let job = Reader { order: Order::Drawn { one_in: 8 }, epochs: 100, ..reader("a", 1000, 1) };
    let mut trace = trace(1000, 0.125, 1.2, vec![job]);
    trace.warm_epochs = 10;
    let (hits, ahead) = margin(&trace);
    assert!(hits >= 0.39 && ahead >= 0.25, "{hits}, by {ahead}");
}

#[test]
fn hit_ratios_of_one_job_match_known_values() {
    let hits = hits(&trace(1000, 0.5, 1.2, vec![reader("a", 1000, 1)]));
    for (name, expected) in [("clairvoyant", 0.5), ("lru", 0.156), ("static", 0.5)] {
        let (_, seen) = hits.iter().find(|(evict, _)| evict.name() == name).unwrap();
        assert!((seen - expected).abs() < 0.03, "{name}: {seen}");
    }
}

/// A job that reads twice as fast gets twice as much; all wait for the same share of their time.
#[test]
fn slow_link_is_shared_by_need() {
    let jobs = [1.0, 0.5, 0.25].into_iter().enumerate().map(|(seed, pace)| Reader {
        rate: pace * SHARD as f64,
        epochs: (16.0 * pace) as u64,
        ..reader(&format!("{pace}"), 300, seed as u64)
    });
    let report = simulate(&trace(300, 0.3, 0.6, jobs.collect()), Evict::Clairvoyant).unwrap();
    let busy: Vec<f64> = report.busy.iter().map(|(_, busy)| *busy).collect();
    assert!(busy.iter().all(|one| (one - report.busy_share()).abs() < 0.1), "{busy:?}");
    assert!(report.busy_share() < 0.95, "the link is not too slow");
}

#[test]
fn jobs_joining_at_different_times_stay_busy() {
    let jobs = [0.0, 500.0, 1100.0].into_iter().enumerate().map(|(seed, joins)| Reader {
        joins,
        epochs: 4 + seed as u64,
        ..reader(&format!("{joins}"), 300, seed as u64)
    });
    let report = simulate(&trace(300, 0.5, 1.5, jobs.collect()), Evict::Clairvoyant).unwrap();
    assert!(report.busy_share() > 0.97, "{:?}", report.busy);
}

#[test]
fn cache_must_hold_an_open_window() {
    let job = Reader { window: 16, ..reader("a", 320, 1) };
    let trace = trace(320, 0.5, 1.2, vec![job.clone()]);
    let report = simulate(&trace, Evict::Clairvoyant).unwrap();
    assert!(report.hit_ratio > 0.45, "{}", report.hit_ratio);
    // A cache of no more than one window is one that every policy can do with.
    let least = Trace { capacity: 16 * SHARD, ..trace.clone() };
    for evict in Evict::ALL {
        assert!(simulate(&least, evict).is_ok(), "{}", evict.name());
    }
    let small = Trace { capacity: 15 * SHARD, ..trace };
    assert_eq!(simulate(&small, Evict::Clairvoyant).unwrap_err().kind(), ErrorKind::Full);
}

/// Fetches of Belady's rule, which knows the whole of a job's reading: nothing is fetched before
/// its window opens, and what is needed furthest away goes. Of equal shards, no choice needs fewer.
fn belady(trace: &Trace) -> usize {
    let mut future = trace.future(0);
    let uses: Vec<Use> = (0..).map_while(|index| future.at(index)).collect();
    let windows: Vec<&[Use]> = uses.chunk_by(|one, other| one.start == other.start).collect();
    // Next read of each shard after each window.
    let mut next = vec![vec![usize::MAX; trace.shards.len()]; windows.len() + 1];
    for at in (0..windows.len()).rev() {
        next[at] = next[at + 1].clone();
        windows[at].iter().for_each(|one| next[at][one.shard as usize] = at);
    }
    let (room, mut here, mut fetches) = ((trace.capacity / SHARD) as usize, Vec::new(), 0);
    for (at, window) in windows.iter().enumerate() {
        let open: Vec<Shard> = window.iter().map(|one| one.shard).collect();
        for shard in &open {
            if !here.contains(shard) {
                fetches += 1;
                here.push(*shard);
            }
        }
        here.sort_by_key(
            |shard| if open.contains(shard) { 0 } else { next[at + 1][*shard as usize] },
        );
        here.truncate(room);
    }
    fetches
}

/// Windows of equal shards fetch at most a fiftieth more than Belady's rule, and one window an
/// epoch, which is fetched before it opens.
#[test]
fn windows_of_equal_shards_fetch_close_to_the_optimum() {
    for window in [1, 4, 16] {
        for cached in [0.25, 0.5, 0.75] {
            for bandwidth in [0.2, 0.8] {
                let job = Reader { window, ..reader("a", 320, 1) };
                let epochs = job.epochs as usize;
                let trace = trace(320, cached, bandwidth, vec![job]);
                let fetched = simulate(&trace, Evict::Clairvoyant).unwrap().decisions.len();
                let least = belady(&trace);
                let early = window * epochs;
                let most = least + least / 50 + early;
                assert!(fetched >= least, "{window} {cached} {bandwidth}: {fetched} of {least}");
                assert!(fetched <= most, "{window} {cached} {bandwidth}: {fetched} of {least}");
            }
        }
    }
}

/// Shards of one to sixteen times a size, in windows. Under any policy, a shard absent when an
/// epoch begins must be fetched in it; that bound holds, and is nearly reached.
#[test]
fn windows_of_unequal_shards_fetch_close_to_the_bound() {
    let mut random = fastrand::Rng::with_seed(5);
    for window in [1, 8] {
        for cached in [0.25, 0.5, 0.75] {
            for bandwidth in [0.4, 1.2] {
                let job = Reader { window, ..reader("a", 400, 1) };
                let mut trace = trace(400, cached, bandwidth, vec![job]);
                trace.shards.iter_mut().for_each(|bytes| *bytes = SHARD / 8 * random.u64(1..=16));
                let all: u64 = trace.shards.iter().sum();
                trace.capacity = (all as f64 * cached) as u64;
                let report = simulate(&trace, Evict::Clairvoyant).unwrap();
                let least = (all - trace.capacity) as f64 / all as f64;
                let fetched = report.origin_bytes as f64 / report.read_bytes as f64;
                let (busy, best) = (report.busy_share(), (bandwidth / least).min(1.0));
                assert!(
                    fetched >= 0.99 * least,
                    "{window} {cached} {bandwidth}: {fetched} of {least}"
                );
                assert!(
                    fetched <= 1.02 * least + 0.01,
                    "{window} {cached} {bandwidth}: {fetched} of {least}"
                );
                assert!(
                    busy >= best - 0.03,
                    "{window} {cached} {bandwidth}: busy {busy} of {best}"
                );
                assert!(
                    busy <= best + 0.01,
                    "{window} {cached} {bandwidth}: busy {busy} of {best}"
                );
            }
        }
    }
}

/// The reported cache is enough: with it, nothing is missing any more.
#[test]
fn remedy_reports_the_missing_cache_and_link() {
    let trace = trace(200, 0.3, 0.4, vec![reader("a", 200, 1)]);
    let remedy = trace.remedy().unwrap().unwrap();
    // From min(1, b / (1 − c)) = 1: a cache of 0.6, or a link of 0.7.
    let cache = remedy.cache.unwrap() as f64 / (200 * SHARD) as f64;
    let bandwidth = remedy.bandwidth.unwrap() / SHARD as f64;
    assert!((cache - 0.3).abs() < 0.02, "{cache}");
    assert!((bandwidth - 0.3).abs() < 0.03, "{bandwidth}");
    let enough = Trace { capacity: trace.capacity + remedy.cache.unwrap(), ..trace };
    assert_eq!(enough.remedy().unwrap(), None);
}

#[test]
fn no_policy_exceeds_the_bound() {
    for (cached, bandwidth) in [(0.1, 0.4), (0.5, 0.2), (0.5, 0.6), (1.0, 0.1)] {
        let trace = trace(200, cached, bandwidth, vec![reader("a", 200, 1)]);
        assert!((trace.bound() - bound(cached, bandwidth)).abs() < 1e-9 || cached == 1.0);
        for evict in Evict::ALL {
            let busy = simulate(&trace, evict).unwrap().busy_share();
            assert!(busy <= trace.bound() + 0.005, "{}: {busy}", evict.name());
        }
    }
}

#[test]
fn invalid_traces_are_rejected() {
    let good = trace(10, 0.5, 1.0, vec![reader("a", 10, 1)]);
    let wrong: [&dyn Fn(&mut Trace); 8] = [
        &|trace| trace.bandwidth = f64::NAN,
        &|trace| trace.jobs.clear(),
        &|trace| trace.jobs[0].rate = 0.0,
        &|trace| trace.jobs[0].joins = -1.0,
        &|trace| trace.jobs[0].shards.push(10),
        &|trace| trace.jobs[0].shards.push(9),
        &|trace| trace.jobs[0].epochs = 2,
        &|trace| trace.jitter.fetch = 0.5,
    ];
    for change in wrong {
        let mut trace = good.clone();
        change(&mut trace);
        assert_eq!(simulate(&trace, Evict::Clairvoyant).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(simulate(&good, Evict::Clairvoyant).is_ok());
}

/// Epochs of 24 lanes side by side, of five shards each: as a loader deals them. `are_staggered`:
/// they come to their next shards one after the other, and the rest of the first is read at the
/// end.
fn dealt(are_staggered: bool, number: u64) -> Epoch {
    const LANES: u64 = 24;
    const EACH: u64 = 5;
    let span = LANES * SHARD;
    let total = EACH * span;
    let mut order: Vec<Shard> = (0..(LANES * EACH) as Shard).collect();
    fastrand::Rng::with_seed(number * 7919 + 13).shuffle(&mut order);
    let mut uses = Vec::new();
    for (lane, shards) in (0..LANES).zip(order.chunks(EACH as usize)) {
        let early = if are_staggered { lane * SHARD } else { 0 };
        for (at, shard) in (0..).zip(shards) {
            let start = (at * span).saturating_sub(early);
            uses.push(Use { shard: *shard, start, end: (at + 1) * span - early });
        }
        if early > 0 {
            uses.push(Use { shard: shards[0], start: total - early, end: total });
        }
    }
    uses.sort_by_key(|one| one.start);
    Epoch { uses, bytes: total }
}

/// Foresight waits least in any room and with any stagger of lanes. Among policies that wait as
/// little, it fetches least.
#[test]
fn clairvoyant_waits_least_with_parallel_lanes() {
    const SHARDS: u32 = 120;
    for are_staggered in [false, true] {
        for (room, bandwidth) in [(32, 0.5), (32, 2.0), (48, 2.0), (60, 0.6), (60, 2.0)] {
            let capacity = room * SHARD;
            let trace =
                Trace { capacity, ..trace(SHARDS, 0.5, bandwidth, vec![reader("a", SHARDS, 1)]) };
            let future = |_| -> Box<dyn Future> {
                let make = move |number: u64| (number < 8).then(|| dealt(are_staggered, number));
                Box::new(Epochs::new(0..SHARDS, make))
            };
            let figures = |evict| {
                let report = simulate_with(&trace, evict, &future).unwrap();
                (report.busy_share(), report.origin_bytes)
            };
            let (busy, fetched) = figures(Evict::Clairvoyant);
            for evict in Evict::ALL {
                let (theirs, also) = figures(evict);
                let case = format!("{} of {room}, {bandwidth}, {are_staggered}", evict.name());
                assert!(busy > theirs - 0.01, "{case}: {busy} against {theirs}");
                // A job that never waits may fetch more than one that does.
                assert!(
                    fetched <= also || busy > theirs + 0.05,
                    "{case}: {fetched} against {also}"
                );
            }
            // With room for two thirds of the next windows, and a link that is fast enough, nobody
            // waits.
            assert!(room < 48 || bandwidth < 2.0 || busy > 0.99, "{room}: {busy}");
        }
    }
}
