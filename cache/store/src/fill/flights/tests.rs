//! Turns of fills, and pauses before a job's first batch.

use std::pin::pin;

use forebay_error::ErrorKind;
use futures::FutureExt;

use super::super::commits::{COMMITS, YIELD};
use super::*;
use crate::sizes::{FILLS, FILLS_MAX, frame_bytes};
use crate::tier::Absent;

/// A shard that may wait for its commit, with and without a file.
const LARGE: ToCommit = ToCommit { bytes: 10, room: 100, memory: 0, has_file: true };
const SMALL: ToCommit = ToCommit { has_file: false, memory: 5000, ..LARGE };

/// Memory of the fills.
const FRAMES: usize = 64 << 20;

fn begin<'a>(flights: &'a Flights, rank: &'a Rank, size: FillSize) -> Option<Result<Running<'a>>> {
    flights.begin(&Absent, "file:///0.tar", rank, size).now_or_never()
}

fn begun<'a>(flights: &'a Flights, rank: &'a Rank) -> Running<'a> {
    begin(flights, rank, FillSize::Large).expect("a turn is free").unwrap()
}

#[test]
fn fills_beyond_the_limit_wait() {
    let flights = Flights::new(FRAMES);
    let rank = Rank::ahead(1);
    let mut running: Vec<_> = (0..FILLS).map(|_| begun(&flights, &rank)).collect();
    let mut next = pin!(flights.begin(&Absent, "file:///0.tar", &rank, FillSize::Large));
    assert!((&mut next).now_or_never().is_none());
    let report = flights.report();
    assert_eq!((report.running, report.waiting, report.limit), (FILLS, 1, FILLS));
    running.pop();
    let next = next.now_or_never().expect("a turn came free").unwrap();
    let report = flights.report();
    assert_eq!((report.running, report.waiting), (FILLS, 0));
    drop((running, next));
    assert_eq!(flights.report().running, 0);
}

#[test]
fn more_fills_run_in_more_memory() {
    let flights = Flights::new(frame_bytes(usize::MAX));
    let rank = Rank::ahead(1);
    let running: Vec<_> = (0..FILLS_MAX).map(|_| begun(&flights, &rank)).collect();
    assert!(begin(&flights, &rank, FillSize::Large).is_none());
    assert_eq!((running.len(), flights.report().limit), (FILLS_MAX, FILLS_MAX));
}

#[test]
fn awaited_fill_goes_before_those_fetched_ahead() {
    let flights = Flights::new(FRAMES);
    let (ahead, now) = (Rank::ahead(1), Rank::now(1));
    let mut running: Vec<_> = (0..FILLS).map(|_| begun(&flights, &ahead)).collect();
    let mut first = pin!(flights.begin(&Absent, "file:///0.tar", &ahead, FillSize::Large));
    assert!((&mut first).now_or_never().is_none());
    let mut awaited = pin!(flights.begin(&Absent, "file:///1.tar", &now, FillSize::Large));
    assert!((&mut awaited).now_or_never().is_none());
    assert!(running.iter().all(Running::is_contested));
    running.pop();
    assert!((&mut first).now_or_never().is_none());
    assert!(awaited.now_or_never().is_some());
}

#[test]
fn closed_flights_begin_no_fill() {
    let flights = Flights::new(FRAMES);
    let rank = Rank::ahead(1);
    let running: Vec<_> = (0..FILLS).map(|_| begun(&flights, &rank)).collect();
    let mut waiting = pin!(flights.begin(&Absent, "file:///0.tar", &rank, FillSize::Large));
    assert!((&mut waiting).now_or_never().is_none());
    flights.close();
    let waited = waiting.now_or_never().expect("waits end").err().unwrap();
    assert_eq!(waited.kind(), ErrorKind::Closed);
    drop(running);
    let error = begin(&flights, &rank, FillSize::Large).unwrap().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[test]
fn first_bytes_are_requested_only_for_a_turn_that_is_free() {
    let flights = Flights::new(FRAMES);
    let rank = Rank::ahead(1);
    let heads: Vec<_> = (0..FILLS).map_while(|_| flights.head()).collect();
    assert_eq!(heads.len(), FILLS);
    assert!(flights.head().is_none(), "each holds a request of its endpoint");
    drop(heads);
    let running: Vec<_> = (0..FILLS).map(|_| begun(&flights, &rank)).collect();
    assert!(flights.head().is_none());
    drop(running);
    assert!(flights.head().is_some());
}

#[test]
fn company_is_another_awaited_fill() {
    let flights = Flights::new(FRAMES);
    let (now, ahead, other) = (Rank::now(1), Rank::ahead(1), Rank::now(2));
    let (one, _ahead) = (begun(&flights, &now), begun(&flights, &ahead));
    assert!(!one.has_company());
    let second = begun(&flights, &other);
    assert!(one.has_company() && second.has_company());
    drop(second);
    assert!(!one.has_company());
}

#[test]
fn paused_fill_lends_its_turn_until_the_first_batch() {
    let flights = Flights::new(FRAMES);
    let (mine, others) = (Rank::ahead(7), Rank::ahead(8));
    let start = flights.starts.begin(7);
    let mut running = begun(&flights, &mine);
    assert!(running.is_held_back());
    {
        let mut pause = pin!(running.let_others(std::future::pending()));
        assert!((&mut pause).now_or_never().is_none());
        let counts = || {
            let Fills { running, waiting, paused, .. } = flights.report();
            (running, waiting, paused)
        };
        assert_eq!(counts(), (0, 0, 1));
        // Others use the turn meanwhile.
        let all: Vec<_> = (0..FILLS).map(|_| begun(&flights, &others)).collect();
        drop(start);
        assert!((&mut pause).now_or_never().is_none(), "its turn must come again");
        assert_eq!(counts(), (FILLS, 1, 0));
        drop(all);
        pause.now_or_never().expect("a turn is free").unwrap();
    }
    assert!(!running.is_held_back());
    assert_eq!(flights.report().running, 1);
}

#[test]
fn paused_fill_goes_on_once_more_is_wanted() {
    let flights = Flights::new(FRAMES);
    let rank = Rank::ahead(7);
    let _start = flights.starts.begin(7);
    let mut running = begun(&flights, &rank);
    running.let_others(std::future::ready(())).now_or_never().expect("wanted").unwrap();
    assert_eq!(flights.report().running, 1);
}

#[test]
fn starts_of_a_job_are_counted() {
    let starts = FirstBatchWaits::default();
    let [one, two] = [(); 2].map(|()| starts.begin(1));
    drop(one);
    assert!(starts.has(1) && !starts.has(2));
    assert!(starts.over(1).now_or_never().is_none());
    assert!(starts.over(2).now_or_never().is_some());
    drop(two);
    assert!(starts.over(1).now_or_never().is_some());
    let _again = starts.begin(1);
    starts.close();
    assert!(!starts.has(1), "no job waits once the store closes");
}

#[test]
fn syncing_fills_leave_their_turns_to_others() {
    let flights = Flights::new(FRAMES);
    let rank = Rank::ahead(1);
    let mut committing: Vec<_> = Vec::new();
    for _ in 0..COMMITS {
        let mut running = begun(&flights, &rank);
        committing.push(running.commit(LARGE).now_or_never().expect("a turn is free").unwrap());
    }
    assert_eq!(flights.report().running, 0);
    let mut running: Vec<_> = (0..FILLS).map(|_| begun(&flights, &rank)).collect();
    // No more than that commit at once.
    let mut last = running.pop().unwrap();
    let mut waiting = pin!(last.commit(LARGE));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!(flights.report().running, FILLS - 1);
    drop(committing);
    assert!(waiting.now_or_never().is_some());
}

#[test]
fn fetches_do_not_outrun_commits() {
    // Two places in all, or two for shards that hold a file.
    for (commits, has_file) in
        [(Commits::of(2, 9, FRAMES), false), (Commits::of(9, 2, FRAMES), true)]
    {
        let flights = Flights { commits, ..Flights::new(FRAMES) };
        let rank = Rank::ahead(1);
        let commit =
            || begun(&flights, &rank).commit(ToCommit { has_file, ..LARGE }).now_or_never();
        let committing: Vec<_> = (0..2).map(|_| commit().expect("a place is free")).collect();
        let mut third = begun(&flights, &rank);
        let mut waiting = pin!(third.commit(ToCommit { has_file, ..LARGE }));
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!(flights.report().running, 1, "it keeps its turn");
        drop(committing);
        assert!(waiting.now_or_never().is_some());
    }
}

#[test]
fn shards_without_files_leave_places_to_others() {
    let flights = Flights { commits: Commits::of(9, 1, FRAMES), ..Flights::new(FRAMES) };
    let rank = Rank::ahead(1);
    let _file = begun(&flights, &rank).commit(LARGE).now_or_never().expect("it is free");
    assert!(begun(&flights, &rank).commit(LARGE).now_or_never().is_none());
    assert!(begun(&flights, &rank).commit(SMALL).now_or_never().is_some());
}

/// Shards that no disk has yet leave memory to the fetches of others, however long commits take.
#[test]
fn uncommitted_shards_hold_a_part_of_the_memory() {
    let flights = Flights { commits: Commits::of(9, 9, 3 * 8192), ..Flights::new(FRAMES) };
    let rank = Rank::ahead(1);
    let commit =
        |memory| begun(&flights, &rank).commit(ToCommit { memory, ..SMALL }).now_or_never();
    let mut held: Vec<_> = (0..3).map(|_| commit(5000).expect("there is memory")).collect();
    assert!(commit(1).is_none());
    assert!(commit(0).is_some(), "one that holds none");
    held.pop();
    held.push(commit(8192).expect("one is done"));
    drop(held);
    assert!(commit(1 << 20).is_some(), "one that is larger has all of it");
}

/// Fetches that come faster than commits do not wait for these one by one.
#[tokio::test]
async fn many_uncommitted_shards_do_not_hold_back() {
    let flights = Flights { commits: Commits::of(8, 4, FRAMES), ..Flights::new(FRAMES) };
    let (rank, other) = (Rank::ahead(1), Rank::ahead(2));
    let _awaited = other.awaited();
    let _fetching = begun(&flights, &other);
    let [mut one, mut two, mut three] = [(); 3].map(|()| begun(&flights, &rank));
    let _first = one.commit(LARGE).now_or_never().expect("a turn is free").unwrap();
    let mut second = pin!(two.commit(LARGE));
    assert!((&mut second).now_or_never().is_none());
    assert!(three.commit(LARGE).now_or_never().is_some(), "half of the places are taken");
}

#[tokio::test]
async fn commits_let_awaited_fetches_go_first() {
    let flights = Flights::new(FRAMES);
    let (rank, other) = (Rank::ahead(1), Rank::ahead(2));
    let awaited = other.awaited();
    let fetching = begun(&flights, &other);
    let [mut one, mut two, mut three] = [(); 3].map(|()| begun(&flights, &rank));
    let first = one.commit(LARGE).await.unwrap();
    let begin = Instant::now();
    let mut second = pin!(two.commit(LARGE));
    assert!((&mut second).now_or_never().is_none(), "one after another");
    // A commit that hangs delays others for a while only.
    let second = second.await.unwrap();
    assert!(begin.elapsed() >= YIELD);
    // One whose room others need does not wait.
    let shard = ToCommit { bytes: 81, ..LARGE };
    assert!(begun(&flights, &rank).commit(shard).now_or_never().is_some());
    drop((first, second));
    // The next does not wait, nor does any once no fetch is awaited.
    let first = three.commit(LARGE).now_or_never().expect("it is its turn").unwrap();
    drop(awaited);
    let mut last = begun(&flights, &rank);
    assert!(last.commit(LARGE).now_or_never().is_some());
    drop((first, fetching));
}

#[test]
fn small_fills_run_beside_large_ones() {
    let flights = Flights::new(FRAMES);
    let rank = Rank::ahead(1);
    let large: Vec<_> = (0..FILLS).map(|_| begun(&flights, &rank)).collect();
    let mut small: Vec<_> = (0..SMALL_FILLS)
        .map(|_| begin(&flights, &rank, FillSize::Small).expect("a turn is free").unwrap())
        .collect();
    let report = flights.report();
    assert_eq!((report.running, report.waiting), (report.limit, 0));
    let mut next = pin!(flights.begin(&Absent, "file:///0.tar", &rank, FillSize::Small));
    assert!((&mut next).now_or_never().is_none());
    // A small shard that must be unpacked takes the turn of a large one, and leaves its own.
    let mut unpacked = small.pop().unwrap();
    let mut enlarged = pin!(unpacked.enlarge());
    assert!((&mut enlarged).now_or_never().is_none());
    assert!(next.now_or_never().is_some());
    drop(large);
    assert!(enlarged.now_or_never().is_some());
}
