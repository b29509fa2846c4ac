//! Regions and the leases of their bytes.
//!
//! The rights of a descriptor's holder are tested through the descriptor itself.

use std::os::fd::AsFd;
use std::pin::pin;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use forebay_error::ErrorKind;
use forebay_skip::{Requirement, skip};
use forebay_uring::{Arena, GRANULE, Reclaim, Region, Span};
use futures::future::FutureExt;
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

const CHUNK: usize = 2 << 20;

#[test]
fn a_region_is_whole_chunks_of_zeroed_memory() {
    let region = Region::create("forebay-zeroed", CHUNK + 1).unwrap();
    assert_eq!(region.len(), 2 * CHUNK);
    let pages = region.pages();
    assert_eq!(pages.hugetlb + pages.collapsed + pages.small, region.len());
    let span = Arena::new(region).try_lease(2 * CHUNK).unwrap();
    assert!(span.iter().all(|byte| *byte == 0));
    assert_eq!(span.as_ptr() as usize % CHUNK, 0);
}

#[test]
fn a_region_gets_large_pages_where_the_kernel_has_them() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 1) || !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return skip(Requirement::HugePages, &format!("this kernel is {release}"));
    }
    let pages = Region::create("forebay-large-pages", 8 * CHUNK).unwrap().pages();
    assert!(pages.collapsed + pages.hugetlb > 0, "{pages:?}");
}

#[test]
fn concurrent_regions_do_not_share_memory() {
    std::thread::scope(|scope| {
        for thread in 0u8..8 {
            scope.spawn(move || {
                for _ in 0..60 {
                    let region = Region::create("forebay-crowd", 2 * CHUNK).unwrap();
                    let mut span = Arena::new(region).try_lease(2 * CHUNK).unwrap();
                    span.fill(thread);
                    assert!(span.iter().all(|byte| *byte == thread));
                }
            });
        }
    });
}

#[test]
fn empty_or_oversized_region_is_rejected() {
    assert_eq!(Region::create("forebay-none", 0).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(Region::create("forebay-max", usize::MAX).unwrap_err().kind(), ErrorKind::Invalid);
    let error = Region::create("forebay-large", 1 << 46).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(error.place("region"), Some("forebay-large"));
}

/// The holder of a sealed region's descriptor may map it read-only, and nothing else.
#[test]
fn sealed_region_descriptor_allows_only_reading() {
    let region = Region::create_sealed("forebay-sealed", CHUNK).unwrap();
    let mut span = Arena::new(Arc::clone(&region)).try_lease(GRANULE).unwrap();
    // As another process would hold it.
    let fd = region.fd().try_clone_to_owned().unwrap();
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&fd, 4 * CHUNK as u64), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&fd, punch, 0, CHUNK as u64), Err(Errno::PERM));
    assert!(rustix::io::pwrite(&fd, b"attack", 0).is_err());
    assert_eq!(rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
    let map = |protection| {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        unsafe { rustix::mm::mmap(ptr::null_mut(), CHUNK, protection, MapFlags::SHARED, &fd, 0) }
    };
    assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
    let view = map(ProtFlags::READ).unwrap().cast::<u8>();
    span[..5].copy_from_slice(b"batch");
    // SAFETY: the view is mapped and nothing writes to it while it is borrowed.
    let seen = unsafe { std::slice::from_raw_parts(view.add(span.offset()), 5) };
    assert_eq!(seen, b"batch");
    // SAFETY: the view was mapped above and is not used after this.
    unsafe { rustix::mm::munmap(view.cast(), CHUNK) }.unwrap();
}

#[test]
fn region_descriptor_allows_no_writes() {
    let region = Region::create("forebay-private", CHUNK).unwrap();
    assert!(rustix::io::pwrite(region.fd(), b"x", 0).is_err());
    assert_eq!(rustix::fs::ftruncate(region.fd().as_fd(), 0), Err(Errno::PERM));
}

#[test]
fn leases_are_whole_granules() {
    let arena = Arena::new(Region::create("forebay-lease", CHUNK).unwrap());
    let span = arena.try_lease(1).unwrap();
    assert_eq!((span.len(), arena.in_use()), (GRANULE, GRANULE));
    assert!(arena.try_lease(0).is_none());
    assert!(arena.try_lease(CHUNK).is_none());
    drop(span);
    assert_eq!(arena.try_lease(CHUNK).unwrap().len(), CHUNK);
}

#[test]
fn two_arenas_of_a_region_share_its_room() {
    let region = Region::create("forebay-shared", CHUNK).unwrap();
    let (one, two) = (Arena::new(Arc::clone(&region)), Arena::new(region));
    let span = one.try_lease(CHUNK).unwrap();
    assert!(two.try_lease(GRANULE).is_none());
    drop(span);
    assert!(two.try_lease(CHUNK).is_some());
}

#[test]
fn impossible_lease_is_rejected() {
    let arena = Arena::new(Region::create("forebay-never", CHUNK).unwrap());
    let too_large = arena.lease(CHUNK + 1).now_or_never().unwrap();
    assert_eq!(too_large.unwrap_err().kind(), ErrorKind::Full);
    let nothing = arena.lease(0).now_or_never().unwrap();
    assert_eq!(nothing.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn waiting_leases_are_served_in_order() {
    let arena = Arena::new(Region::create("forebay-fifo", CHUNK).unwrap());
    let mut held: Vec<Span> = (0..4).map(|_| arena.try_lease(CHUNK / 4).unwrap()).collect();
    let mut large = pin!(arena.lease(CHUNK / 2));
    let mut small = pin!(arena.lease(GRANULE));
    assert!(large.as_mut().now_or_never().is_none());
    assert!(small.as_mut().now_or_never().is_none());
    held.pop();
    // There is room for the small one now, but the large one was first.
    assert!(small.as_mut().now_or_never().is_none());
    assert!(arena.try_lease(GRANULE).is_none(), "nor does a newcomer overtake");
    held.pop();
    let large = large.as_mut().now_or_never().unwrap().unwrap();
    assert!(small.as_mut().now_or_never().is_none());
    drop(large);
    assert_eq!(small.as_mut().now_or_never().unwrap().unwrap().len(), GRANULE);
}

#[test]
fn dropped_waiter_lets_the_next_one_in() {
    let arena = Arena::new(Region::create("forebay-leave", CHUNK).unwrap());
    let _held = arena.try_lease(CHUNK / 2).unwrap();
    let mut large = Box::pin(arena.lease(CHUNK));
    assert!(large.as_mut().now_or_never().is_none());
    let mut small = pin!(arena.lease(GRANULE));
    assert!(small.as_mut().now_or_never().is_none());
    drop(large);
    assert!(small.as_mut().now_or_never().unwrap().is_ok());
}

#[test]
fn a_grant_to_a_dropped_future_goes_back() {
    let arena = Arena::new(Region::create("forebay-drop", CHUNK).unwrap());
    let held = arena.try_lease(CHUNK).unwrap();
    let mut waiting = Box::pin(arena.lease(CHUNK));
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(held);
    assert_eq!(arena.in_use(), CHUNK, "granted, though not yet taken");
    drop(waiting);
    assert_eq!(arena.in_use(), 0);
    assert!(arena.try_lease(CHUNK).is_some());
}

/// Holds leases until they are reclaimed.
#[derive(Default)]
struct Holder(Mutex<Vec<Span>>);

impl Reclaim for Holder {
    fn reclaim_one(&self) -> bool {
        let one = self.0.lock().expect("no test panics with the lock").pop();
        one.is_some()
    }

    fn bytes(&self) -> usize {
        let held = self.0.lock().expect("no test panics with the lock");
        held.iter().map(|span| span.len()).sum()
    }
}

#[test]
fn held_memory_is_reclaimed_before_a_lease_waits() {
    let arena = Arena::new(Region::create("forebay-reclaim", CHUNK).unwrap());
    let holder = Arc::new(Holder::default());
    let weak: Weak<dyn Reclaim> = Arc::<Holder>::downgrade(&holder);
    arena.reclaim_from(weak);
    let fill = || {
        let quarter = || arena.try_lease(CHUNK / 4).unwrap();
        *holder.0.lock().unwrap() = (0..4).map(|_| quarter()).collect();
    };
    fill();
    assert_eq!((arena.in_use(), arena.reclaimable()), (CHUNK, CHUNK));
    let half = arena.try_lease(CHUNK / 2).unwrap();
    assert_eq!(holder.0.lock().unwrap().len(), 2, "no more than needed");
    assert_eq!((arena.in_use(), arena.reclaimable()), (CHUNK, CHUNK / 2));
    drop(half);
    holder.0.lock().unwrap().clear();
    fill();
    assert!(arena.lease(CHUNK).now_or_never().unwrap().is_ok());
    // Memory that comes to a holder while a request waits.
    let kept = arena.try_lease(CHUNK / 2).unwrap();
    let mut waiting = pin!(arena.lease(CHUNK));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(arena.is_awaited());
    holder.0.lock().unwrap().push(kept);
    assert!(holder.reclaim_one());
    assert!(waiting.as_mut().now_or_never().unwrap().is_ok());
    drop(holder);
    assert!(!arena.is_awaited());
    assert_eq!(arena.reclaimable(), 0);
}

proptest! {
    /// Every span carries its own stamp from lease to drop: an overlap would overwrite one.
    #[test]
    fn spans_never_overlap(steps in prop::collection::vec((0u8..4, 1usize..40), 1..120)) {
        let arena = Arena::new(Region::create("forebay-model", CHUNK).unwrap());
        let mut held: Vec<(Span, u8)> = Vec::new();
        for (turn, (step, number)) in steps.into_iter().enumerate() {
            let stamp = turn as u8;
            if step < 2 {
                if let Some(mut span) = arena.try_lease(number * 1000 * 2) {
                    span.fill(stamp);
                    held.push((span, stamp));
                }
            } else if !held.is_empty() {
                let index = number % held.len();
                if step == 2 {
                    let cut = number * held[index].0.len() / 40;
                    let mut piece = held[index].0.split_to(cut);
                    piece.fill(stamp);
                    held.push((piece, stamp));
                } else {
                    let (span, stamp) = held.swap_remove(index);
                    prop_assert!(span.iter().all(|byte| *byte == stamp));
                }
            }
            let bytes: usize = held.iter().map(|(span, _)| span.len()).sum();
            prop_assert!(bytes <= arena.in_use());
        }
        for (span, stamp) in held {
            prop_assert!(span.iter().all(|byte| *byte == stamp));
        }
        prop_assert_eq!(arena.in_use(), 0);
    }
}

/// A span that was cut and joined is what it was; pieces that do not follow each other stay apart.
#[test]
fn pieces_of_a_span_are_joined_again() {
    let arena = Arena::new(Region::create("forebay-join", CHUNK).unwrap());
    let mut span = arena.try_lease(12_000).unwrap();
    span.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
    let (offset, len) = (span.offset(), span.len());
    let mut middle = span.split_to(12_000);
    let first = middle.split_to(5_000);
    let joined = first.join(middle).join(span);
    assert_eq!((joined.offset(), joined.len()), (offset, len));
    assert!(joined.iter().take(12_000).enumerate().all(|(at, byte)| *byte == at as u8));
    let other = arena.try_lease(4_096).unwrap();
    let apart = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| joined.join(other)));
    assert!(apart.is_err());
    assert_eq!(arena.in_use(), 0);
}
