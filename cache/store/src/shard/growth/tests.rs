//! Waits for samples of a shard whose index grows.

use forebay_error::ErrorKind;
use forebay_shard::{Member, Sample};
use futures::FutureExt;

use super::*;

/// Index of `samples` samples of two members each.
fn index(samples: u32) -> Index {
    let member =
        |n: u32| Member { field: n % 2, offset: 512 + 1024 * u64::from(n), len: 100, crc32c: n };
    let sample = |n: u32| Sample {
        key: n.to_string(),
        offset: 512 + 2048 * u64::from(n),
        end: 512 + 2048 * u64::from(n) + 1124,
        members: 2 * n..2 * n + 2,
        bad: None,
    };
    Index {
        fields: vec!["a".to_owned(), "b".to_owned()],
        members: (0..2 * samples).map(member).collect(),
        samples: (0..samples).map(sample).collect(),
    }
}

#[test]
fn largest_want_counts() {
    let growth = Growth::new();
    assert!(!growth.is_awaited());
    let [few, many, many_too] = [3, 8, 8].map(|samples| growth.want(samples));
    assert_eq!(growth.wanted(), (0, 8));
    drop(many);
    assert_eq!(growth.wanted(), (0, 8), "another reader wants as many");
    drop(many_too);
    assert_eq!(growth.wanted(), (0, 3));
    drop(few);
    assert_eq!((growth.wanted(), growth.is_awaited()), ((0, 0), false));
}

#[test]
fn watchers_hear_only_of_a_new_largest_want() {
    let growth = Growth::new();
    let mut wants = growth.watch_wants();
    let is_changed = |wants: &mut watch::Receiver<_>| {
        let changed = wants.has_changed().unwrap();
        wants.mark_unchanged();
        changed
    };
    let many = growth.want(8);
    assert!(is_changed(&mut wants));
    let few = growth.want(3);
    assert!(!is_changed(&mut wants));
    drop(many);
    assert!(is_changed(&mut wants));
    drop(few);
    assert!(is_changed(&mut wants));
}

#[test]
fn more_wanted_ignores_wants_for_samples_that_are_here() {
    let growth = Growth::new();
    growth.add(&index(4), 2);
    let here = growth.want(3);
    assert!(growth.more_wanted().now_or_never().is_none());
    let more = growth.want(4);
    assert!(growth.more_wanted().now_or_never().is_some());
    drop((here, more));
    assert!(growth.more_wanted().now_or_never().is_none());
}

#[test]
fn added_samples_can_be_read_before_the_index_is_whole() {
    let (growth, index) = (Growth::new(), index(5));
    for at in [0, 2, 4] {
        growth.add(&index, at);
        let found = growth.index();
        assert_eq!(found.sample(at), index.samples.get(at).cloned());
        assert_eq!(found.sample(at + 1), None, "samples behind {at} are not known yet");
        assert_eq!(growth.progress.borrow().samples, at as u64 + 1);
        assert!(!growth.progress.borrow().counted);
    }
    growth.complete(&index, 12_000);
    assert!(growth.progress.borrow().counted);
    assert_eq!(growth.len.get(), Some(&12_000));
    assert_eq!(growth.index().sample(4), index.samples.get(4).cloned());
    // The first known length counts: readers may have used it.
    growth.complete(&index, 13_000);
    assert_eq!(growth.len.get(), Some(&12_000));
}

#[test]
fn whole_shard_has_nothing_to_wait_for() {
    let growth = Growth::whole(index(3), 9000);
    assert!(growth.came_whole && growth.settled.initialized());
    let progress = growth.progress.borrow().clone();
    assert_eq!((progress.samples, progress.counted, progress.failed), (3, true, None));
    assert!(matches!(growth.verdict.known(), Some(Ok(()))));
}

#[test]
fn verdict_is_known_before_the_failure_is_seen() {
    let growth = Growth::new();
    let error = Error::new(ErrorKind::Corrupt, "differs");
    growth.fail(&error, Some(&error));
    assert!(growth.verdict.is_wrong());
    // The end of the fill does not clear it.
    growth.settle();
    assert!(growth.verdict.is_wrong());
    let other = Growth::new();
    other.fail(&Error::new(ErrorKind::Unavailable, "breaks off"), None);
    assert!(other.verdict.known().is_none(), "the bytes that came may be right");
    other.settle();
    assert!(!other.verdict.is_wrong());
}
