use std::future::Future;
use std::task::{Context, Waker};

use forebay_uring::{EngineChoice, EngineConfig};

use super::*;

fn slots(limit: usize, prefetch: u32) -> (Slots, mpsc::Receiver<Event>) {
    let choice = EngineChoice::Threads;
    let engine = EngineConfig { name: "slots".to_owned(), choice, depth: 1, near: None };
    let engine = Engine::start(engine).unwrap();
    let (events, receiver) = mpsc::channel(8);
    let memory = SlabMemory::new(limit);
    let patience = Duration::from_secs(60);
    let slots = Slots::new(vec![engine], memory, prefetch, patience, events, Arc::default());
    (slots, receiver)
}

/// Hands the announced memory to a trainer that is gone: whoever has it keeps it mapped.
fn send_off(events: &mut mpsc::Receiver<Event>) {
    while events.try_recv().is_ok() {}
}

/// Samples may grow in mid-epoch: the larger slab waits for memory that the trainer is about to
/// return, and reuses it.
#[tokio::test]
async fn larger_slab_waits_for_memory_of_its_predecessor() {
    let (slots, mut events) = slots(4 * CHUNK, 2);
    let small = slots.lease(CHUNK / 2).await.unwrap();
    assert_eq!(slots.memory.used(), 2 * CHUNK);
    send_off(&mut events);
    let mut large = pin!(slots.lease(3 * CHUNK));
    let mut poll = || large.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    assert!(poll().is_pending(), "the small one is still in use");
    assert_eq!(slots.waits.first().map(|wait| wait.awaited()), Some(Awaited::Slot));
    drop(small);
    let large = large.await.unwrap();
    assert!(slots.waits.first().is_none());
    assert_eq!((large.slab, large.span.unwrap().len()), (2, 3 * CHUNK));
    assert_eq!(slots.memory.used(), 4 * CHUNK);
}

#[tokio::test]
async fn batch_larger_than_all_memory_is_full_at_once() {
    let (slots, mut events) = slots(4 * CHUNK, 2);
    drop(slots.lease(CHUNK / 2).await.unwrap());
    send_off(&mut events);
    let error = slots.lease(5 * CHUNK).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(slots.memory.used(), 0, "the slab that was too small is gone");
}

#[tokio::test]
async fn jobs_wait_for_slab_memory_of_others_in_turn() {
    let (holder, mut events) = slots(4 * CHUNK, 1);
    let held = holder.lease(3 * CHUNK).await.unwrap();
    send_off(&mut events);
    let [large, small] = [0; 2].map(|_| {
        let (mut slots, events) = slots(0, 1);
        slots.memory = holder.memory.clone();
        (slots, events)
    });
    let waits = large.0.waits.clone();
    let mut large = pin!(large.0.lease(4 * CHUNK));
    let mut small = pin!(small.0.lease(CHUNK));
    let mut context = Context::from_waker(Waker::noop());
    assert!(large.as_mut().poll(&mut context).is_pending());
    assert_eq!(waits.first().map(|wait| wait.awaited()), Some(Awaited::Slab));
    // There is room for it, but another came first.
    assert!(small.as_mut().poll(&mut context).is_pending());
    holder.state().slab = None;
    drop(held);
    let first = large.await.unwrap();
    assert_eq!(first.waited.map(|stage| stage.cause), Some(Cause::Slab));
    assert!(small.as_mut().poll(&mut context).is_pending());
    drop(first);
}

/// A job that waits for its decoders reads no faster when its shards come earlier.
#[test]
fn waits_without_a_miss_are_part_of_the_pace() {
    const MS: u64 = 1_000_000;
    let stage = |cause, start, end| Stage { cause, start_ns: start * MS, end_ns: end * MS };
    let stages = [
        stage(Cause::Origin, 0, 20),
        stage(Cause::TierRead, 20, 30),
        stage(Cause::Peer, 30, 37),
        stage(Cause::Decode, 37, 90),
    ];
    let waited = |since| arrival_wait(&stages, since * MS).as_millis();
    assert_eq!((waited(0), waited(15), waited(25), waited(37)), (27, 12, 7, 0));
    let mut state = SlotState::default();
    state.note_lent(&stages);
    assert_eq!(state.missed, Duration::ZERO, "the first batch has no trainer before it");
    state.empty_since_ns = Some(35 * MS);
    state.note_lent(&stages);
    state.note_lent(&stages);
    assert_eq!(state.missed, Duration::from_millis(2), "each wait counts once");
}

/// A first batch waits for its own memory only; the full slab comes with the next.
#[tokio::test]
async fn first_batch_has_its_own_slab_if_memory_allows() {
    const BATCH: usize = 16 << 20;
    // With headroom a batch gets 20 MiB: two and the first one's make 60.
    let (slots, mut events) = slots(60 << 20, 2);
    let mut announced = || match events.try_recv() {
        Ok(Event::Slab { slab, region, batches }) => (slab, region.len() >> 20, batches),
        other => panic!("{other:?}"),
    };
    let first = slots.lease(BATCH).await.unwrap();
    assert_eq!((first.slab, announced()), (1, (1, 20, NO_OTHERS)));
    let second = slots.lease(BATCH).await.unwrap();
    assert_eq!((second.slab, announced()), (2, (2, 40, 2)));
    drop(first);
    assert_eq!(slots.memory.used(), 40 << 20, "the first batch's goes back with it");
    assert_eq!(slots.lease(BATCH).await.unwrap().slab, 2);
}

/// The first batch takes the slab that was made while its samples came.
#[tokio::test]
async fn first_batch_fits_the_slab_that_was_made_early() {
    const BATCH: usize = 16 << 20;
    // With headroom a batch gets 20 MiB.
    for (prefetch, expected) in [(2, (20, NO_OTHERS)), (1, (20, 1))] {
        let (slots, mut events) = slots(40 << 20, prefetch);
        assert!(slots.is_new());
        slots.make_early(BATCH);
        assert!(!slots.is_new());
        assert_eq!(slots.memory.used() >> 20, expected.0);
        slots.make_early(BATCH);
        assert_eq!(slots.memory.used() >> 20, expected.0, "once");
        // Room for a quarter more than was suggested.
        let first = slots.lease(BATCH / 4 * 5).await.unwrap();
        let Ok(Event::Slab { slab: 1, region, batches }) = events.try_recv() else {
            panic!("no slab")
        };
        assert_eq!((region.len() >> 20, batches), expected);
        assert_eq!((first.slab, first.span.unwrap().len()), (1, BATCH / 4 * 5));
        assert_eq!(slots.memory.used() >> 20, expected.0);
    }
}

/// A slab that turns out too small makes room for the right one, and a session that ends gives
/// the memory back.
#[tokio::test]
async fn early_slab_that_is_not_used_goes_back() {
    let (slots, mut events) = slots(8 * CHUNK, 2);
    slots.make_early(CHUNK);
    assert_eq!(slots.memory.used(), 4 * CHUNK);
    assert_eq!(slots.lease(3 * CHUNK).await.unwrap().slab, 1);
    assert_eq!(slots.memory.used(), 8 * CHUNK);
    assert!(matches!(events.try_recv(), Ok(Event::Slab { slab: 1, .. })));
    let (new, _events) = self::slots(8 * CHUNK, 2);
    new.make_early(CHUNK);
    let memory = new.memory.clone();
    drop(new);
    while memory.used() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Memory that others may need is taken once the batch is there.
#[tokio::test]
async fn nothing_is_made_early_where_memory_is_short() {
    let (slots, _events) = slots(7 * CHUNK, 2);
    slots.make_early(CHUNK);
    assert_eq!(slots.memory.used(), 0);
    assert!(slots.is_new());
}

#[tokio::test]
async fn first_batch_shares_the_slab_if_memory_is_short() {
    let (slots, _events) = slots(59 << 20, 2);
    let first = slots.lease(16 << 20).await.unwrap();
    let second = slots.lease(16 << 20).await.unwrap();
    assert_eq!((first.slab, second.slab), (1, 1));
}

/// A hanging disk keeps the spans of its reads: later batches get a new slab, and the old one
/// counts as used until the disk answers.
#[tokio::test]
async fn slab_with_spans_that_a_disk_keeps_is_retired() {
    let (slots, mut events) = slots(12 * CHUNK, 2);
    let mut first = slots.lease(CHUNK).await.unwrap();
    let mut second = slots.lease(CHUNK).await.unwrap();
    assert_eq!((first.slab, second.slab, slots.memory.used()), (1, 1, 4 * CHUNK));
    let stranded = (first.span.take(), second.span.take());
    slots.retire(1);
    let first = slots.replace(first, CHUNK).await.unwrap();
    assert_eq!((first.slab, slots.memory.used()), (2, 5 * CHUNK));
    drop(first);
    let third = slots.lease(CHUNK).await.unwrap();
    assert_eq!((third.slab, slots.memory.used()), (3, 9 * CHUNK), "the events hold the second");
    send_off(&mut events);
    slots.retire(1);
    drop((second, third));
    assert_eq!(slots.lease(CHUNK).await.unwrap().slab, 3, "only the slab of those spans");
    assert_eq!(slots.memory.used(), 8 * CHUNK);
    drop(stranded);
    assert_eq!(slots.memory.used(), 4 * CHUNK);
}

#[tokio::test]
async fn lease_that_waits_for_a_retired_slab_gets_another() {
    let (slots, _events) = slots(5 * CHUNK, 3);
    let of_others = slots.memory.reserve(3 * CHUNK);
    let _both = [slots.lease(CHUNK).await.unwrap(), slots.lease(CHUNK).await.unwrap()];
    let mut third = pin!(slots.lease(CHUNK));
    assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(of_others);
    slots.retire(1);
    assert_eq!(third.await.unwrap().slab, 2);
}

/// A run that ends drops its reads, and a hanging disk keeps their spans: the next run gets a new
/// slab once no disk that answers can have them.
#[tokio::test]
async fn spans_that_an_ended_run_left_to_a_disk_hold_up_no_run() {
    let (mut slots, _events) = slots(8 * CHUNK, 2);
    slots.reads_end = Duration::from_millis(1);
    let first = slots.lease(CHUNK).await.unwrap();
    let second = slots.lease(CHUNK).await.unwrap();
    let stranded = [first, second].map(|mut slot| slot.span.take().unwrap());
    assert_eq!(slots.lease(CHUNK).await.unwrap().slab, 2);
    assert_eq!(slots.memory.used(), 8 * CHUNK);
    drop(stranded);
    // Reads that end in time leave the slab as it is.
    let third = slots.lease(CHUNK).await.unwrap();
    assert_eq!(third.slab, 2);
}
