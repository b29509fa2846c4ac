//! Lives of frames: arrival, readers behind, release and failure.

use forebay_shard::checksum::crc32c;
use forebay_uring::{Arena, CHUNK, Region};
use futures::FutureExt;

use super::*;

const PART: u64 = PART_BYTES as u64;

/// Parts of a shard, and memory for their frames.
struct Fixture {
    parts: Arc<Parts>,
    arena: Arena,
}

impl Fixture {
    fn new(len: u64, binding: Binding) -> Self {
        let region = Region::create("forebay-parts-test", 8 * PART_BYTES).unwrap();
        Self { parts: Parts::new(len, binding), arena: Arena::new(region) }
    }

    /// Publishes a part whose bytes are all `byte`.
    fn arrive(&self, part: u64, byte: u8) {
        let lent = self.arena.lease(PART_BYTES).now_or_never().expect("there is room");
        let mut span = lent.unwrap();
        span.fill(byte);
        let window = self.parts.try_admit().expect("the window has room");
        self.parts.arrived(part, Frame::new(span.freeze(), window));
    }

    fn arrive_and_store(&self, part: u64) {
        self.arrive(part, part as u8);
        self.parts.note_stored(part, part as u32);
        self.parts.add_landed();
    }

    fn in_memory(&self, part: u64) -> bool {
        self.parts.held(&(part * PART..part * PART + 1)).is_some()
    }
}

#[test]
fn ranges_touch_the_parts_between_their_ends() {
    for (range, parts) in [
        (0..1, 0..1),
        (0..PART, 0..1),
        (0..PART + 1, 0..2),
        (PART - 1..PART + 1, 0..2),
        (PART..2 * PART, 1..2),
        (5 * PART + 7..9 * PART, 5..9),
        (3 * PART..3 * PART, 3..3),
    ] {
        assert_eq!(parts_of(&range), parts, "{range:?}");
    }
}

#[test]
fn part_holds_the_bytes_of_the_shard() {
    let of = Fixture::new(2 * PART + 5, Binding::Strong);
    (0..3).for_each(|part| of.arrive(part, part as u8));
    let held = |part| of.parts.wait(part).unwrap().map(|(frame, held)| (frame.bytes()[0], held));
    assert_eq!(held(0), Some((0, PART_BYTES)));
    assert_eq!(held(2), Some((2, 5)));
    assert_eq!(held(3), None, "the shard ends before");
}

#[test]
fn copy_joins_parts() {
    let of = Fixture::new(3 * PART, Binding::Strong);
    (0..3).for_each(|part| of.arrive(part, part as u8 + 1));
    let range = PART - 2..2 * PART + 1;
    let frames = of.parts.held(&range).expect("all parts are in memory");
    let len = (range.end - range.start) as usize;
    let mut into = of.arena.try_lease(len).unwrap();
    let sum = bytes_of(&frames, &range).copy(range.start, &mut into, 0..len);
    let into = &into[..len];
    assert_eq!(sum, Some(crc32c(into)));
    assert_eq!(into[..2], [1, 1]);
    assert!(into[2..into.len() - 1].iter().all(|byte| *byte == 2));
    assert_eq!(into.last(), Some(&3));
}

#[test]
fn frames_stay_for_the_indexer_and_the_comparison() {
    let of = Fixture::new(6 * PART, Binding::Strong);
    (0..5).for_each(|part| of.arrive_and_store(part));
    of.parts.move_indexer(4 * PART);
    assert!((0..5).all(|part| of.in_memory(part)), "nothing is compared yet");
    of.parts.move_comparison(5);
    // Some parts are retained behind the indexer.
    let released = 4 - RETAINED as u64;
    for part in 0..5 {
        assert_eq!(of.in_memory(part), part >= released, "part {part}");
    }
    of.parts.release_passed();
    for part in 0..5 {
        assert_eq!(of.in_memory(part), part >= 4, "part {part}");
    }
    let error = of.parts.wait(0).unwrap_err();
    assert_eq!((error.kind(), error.place("part")), (ErrorKind::Invalid, Some("0")));
    assert_eq!(of.parts.kept_bytes(), 5 * PART);
}

#[test]
fn frame_stays_until_it_is_stored() {
    let of = Fixture::new(4 * PART, Binding::Strong);
    of.arrive(0, 0);
    of.arrive_and_store(1);
    of.parts.move_comparison(usize::MAX);
    of.parts.move_indexer(2 * PART);
    of.parts.release_passed();
    assert!(of.in_memory(0) && !of.in_memory(1));
    let mut stored = std::pin::pin!(of.parts.wait_stored(&(0..2 * PART)));
    assert!((&mut stored).now_or_never().is_none());
    of.parts.note_stored(0, 7);
    assert!(stored.now_or_never().is_some());
    assert!(!of.in_memory(0));
    assert_eq!(of.parts.sums()[..2], [Some(7), Some(1)]);
}

#[test]
fn end_of_the_shard_retains_nothing() {
    let of = Fixture::new(2 * PART, Binding::Strong);
    (0..2).for_each(|part| of.arrive_and_store(part));
    of.parts.move_comparison(usize::MAX);
    of.parts.move_indexer(2 * PART);
    assert!(!of.in_memory(0) && !of.in_memory(1));
    assert!(of.parts.progress().is_past(2));
}

#[test]
fn window_opens_when_a_frame_is_dropped() {
    let parts = Parts::new(PART, Binding::Strong);
    let mut all: Vec<_> = std::iter::from_fn(|| parts.try_admit()).collect();
    assert_eq!(all.len(), WINDOW);
    let mut next = std::pin::pin!(parts.admit());
    assert!((&mut next).now_or_never().is_none());
    all.pop();
    assert!(next.now_or_never().expect("one came free").is_ok());
}

#[test]
fn failed_fill_ends_every_wait_with_its_first_error() {
    let of = Fixture::new(3 * PART, Binding::Strong);
    of.arrive_and_store(0);
    let mut failed = std::pin::pin!(of.parts.failed());
    let mut next = std::pin::pin!(of.parts.next_compared(2));
    assert!((&mut failed).now_or_never().is_none() && (&mut next).now_or_never().is_none());
    let first = of.parts.fail(&Error::new(ErrorKind::Corrupt, "first"));
    let second = of.parts.fail(&Error::new(ErrorKind::Unavailable, "second"));
    assert_eq!((first.kind(), second.kind()), (ErrorKind::Corrupt, ErrorKind::Corrupt));
    assert!(failed.now_or_never().is_some());
    assert_eq!(next.now_or_never().unwrap().unwrap_err().kind(), ErrorKind::Corrupt);
    for part in 0..3 {
        assert_eq!(of.parts.wait(part).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(!of.in_memory(0) && of.parts.try_admit().is_none());
    // The stored bytes serve the fill that resumes.
    assert_eq!(of.parts.kept_bytes(), PART);
    let progress = of.parts.progress();
    let waited = of.parts.wait_for_progress(progress).now_or_never();
    assert!(waited.expect("a failure ends the wait").is_err());
}

#[test]
fn progress_wakes_its_waiter() {
    let of = Fixture::new(3 * PART, Binding::Strong);
    let before = of.parts.progress();
    let mut moved = std::pin::pin!(of.parts.wait_for_progress(before));
    assert!((&mut moved).now_or_never().is_none());
    of.parts.move_comparison(1);
    assert!(moved.now_or_never().is_some_and(|moved| moved.is_ok()));
    assert!(!of.parts.progress().is_past(1), "the indexer is not past it");
    of.parts.move_indexer(PART);
    assert!(of.parts.progress().is_past(1));
}

#[test]
fn stream_learns_its_length_at_its_end() {
    let of = Fixture::new(0, Binding::Stream);
    assert_eq!(of.parts.len(), UNKNOWN);
    of.arrive_and_store(0);
    let mut landed = std::pin::pin!(of.parts.wait_landed(2));
    assert!((&mut landed).now_or_never().is_none());
    of.parts.end_at(PART + 9, None);
    of.arrive_and_store(1);
    assert_eq!(landed.now_or_never(), Some(2));
    assert_eq!(of.parts.wait(1).unwrap().map(|(_, held)| held), Some(9));
    assert!(of.parts.wait(2).unwrap().is_none());
    assert_eq!(of.parts.kept_bytes(), PART + 9);
}

#[test]
fn broken_stream_ends_with_its_error() {
    let of = Fixture::new(3 * PART, Binding::Strong);
    of.parts.unpack(true);
    assert_eq!((of.parts.len(), of.parts.sums().len()), (UNKNOWN, 0));
    of.arrive_and_store(0);
    of.parts.end_at(PART, Some(Error::new(ErrorKind::Corrupt, "breaks off")));
    assert!(of.parts.wait(0).unwrap().is_some(), "the good part is served");
    assert_eq!(of.parts.wait(1).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(of.parts.broken().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(of.parts.drain().unwrap_err().kind(), ErrorKind::Corrupt);
    // The origin's checksum is of the packed bytes: there is nothing to compare.
    assert!(of.parts.wait_compared().is_ok());
    assert!(of.parts.next_compared(0).now_or_never().unwrap().unwrap().is_none());
}

#[test]
fn sealed_parts_are_released_as_they_drain() {
    let of = Fixture::new(0, Binding::Strong);
    of.parts.unpack(true);
    (0..3).for_each(|part| of.arrive_and_store(part));
    of.parts.end_at(3 * PART, None);
    of.parts.drain().unwrap();
    assert!((0..3).all(|part| !of.in_memory(part)));
}

#[test]
fn blocks_are_copied_across_their_borders() {
    let of = Fixture::new(3 * PART, Binding::Strong);
    let blocks = crate::blocks::Blocks::new(&Region::create("blocks", CHUNK).unwrap());
    for (part, byte) in [(0, 1), (2, 3)] {
        of.arrive(part as u64, byte);
        let (frame, _) = of.parts.wait(part).unwrap().unwrap();
        blocks.put(part, frame.frozen());
    }
    let bytes = |offset: u64| {
        let mut into = of.arena.try_lease(4).unwrap();
        let held = blocks.held(&(offset..offset + 4))?;
        held.copy(offset, &mut into, 0..4).map(|_| into[..4].to_vec())
    };
    assert_eq!(bytes(PART - 4).unwrap(), [1; 4]);
    assert_eq!(bytes(PART - 2), None, "the next block is missing");
    of.arrive(1, 2);
    blocks.put(1, of.parts.wait(1).unwrap().unwrap().0.frozen());
    assert_eq!(bytes(PART - 2).unwrap(), [1, 1, 2, 2]);
    assert_eq!(bytes(2 * PART - 1).unwrap(), [2, 3, 3, 3]);
    assert_eq!(bytes(3 * PART - 3), None, "nothing follows the last block");
}

#[test]
fn only_a_shard_of_one_plain_part_comes_at_once() {
    let comes = |of: &Fixture| of.parts.comes_at_once().now_or_never();
    let of = Fixture::new(5, Binding::Strong);
    assert_eq!(comes(&of), None, "its bytes may turn out to be compressed");
    of.arrive(0, 0);
    assert_eq!(comes(&of), Some(true));
    let of = Fixture::new(PART + 1, Binding::Strong);
    of.arrive(0, 0);
    assert_eq!(comes(&of), Some(false));
    let of = Fixture::new(5, Binding::Strong);
    of.parts.unpack(true);
    assert_eq!(comes(&of), Some(false), "nobody knows how much comes out of it");
}

#[test]
fn end_of_the_comparison_is_awaited_without_a_thread() {
    let of = Fixture::new(5, Binding::Strong);
    of.arrive(0, 0);
    assert!(of.parts.compared().now_or_never().is_none());
    of.parts.move_comparison(usize::MAX);
    assert!(of.parts.compared().now_or_never().expect("it is over").is_ok());
    let of = Fixture::new(5, Binding::Strong);
    of.parts.fail(&abandoned());
    let failed = of.parts.compared().now_or_never().expect("the fill has failed");
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Closed);
}
