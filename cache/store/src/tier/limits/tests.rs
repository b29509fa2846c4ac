//! Checks of a tier's limits against each other and against its disk.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use proptest::prelude::*;

use super::*;

fn limits(capacity: u64, keep_free: KeepFree) -> TierLimits {
    TierLimits { name: "nvme".to_owned(), capacity, keep_free, watermarks: None }
}

fn disk(total: u64, available: u64) -> Extent {
    Extent { total, available, in_memory: false }
}

#[test]
fn contradicting_limits_name_their_key() {
    let valid = limits(1, KeepFree::Bytes(0));
    let marks =
        |low, high| TierLimits { watermarks: Some(Watermarks { low, high }), ..valid.clone() };
    let share = |share| limits(1, KeepFree::Share(share));
    for (limits, key) in [
        (limits(0, KeepFree::Bytes(0)), "capacity"),
        (marks(0.0, 0.5), "watermarks"),
        (marks(0.9, 0.5), "watermarks"),
        (marks(0.5, 1.1), "watermarks"),
        (marks(f64::NAN, 0.5), "watermarks"),
        (share(1.0), "keep_free"),
        (share(-0.1), "keep_free"),
        (share(f64::NAN), "keep_free"),
    ] {
        let error = limits.check().unwrap_err();
        assert_eq!((error.kind(), error.place("key")), (ErrorKind::Invalid, Some(key)));
    }
    for limits in [valid.clone(), marks(0.5, 0.5), marks(0.1, 1.0), share(0.0), share(0.99)] {
        limits.check().unwrap();
    }
}

#[test]
fn tier_must_fit_its_disk_beside_what_is_kept_free() {
    let path = Path::new("/cache");
    let on = |limits: TierLimits, total| limits.on(path, disk(total, total), 0);
    assert!(on(limits(900, KeepFree::Bytes(100)), 1000).is_ok());
    let error = on(limits(901, KeepFree::Bytes(100)), 1000).unwrap_err();
    assert_eq!((error.kind(), error.place("disk")), (ErrorKind::Invalid, Some("1000")));
    assert!(on(limits(900, KeepFree::Share(0.1)), 1000).is_ok());
    assert!(on(limits(901, KeepFree::Share(0.1)), 1000).is_err());
}

#[test]
fn memory_holds_whole_parts() {
    let part = PART_BYTES as u64;
    for (bytes, usable) in
        [(0, 0), (part - 1, 0), (part, part), (2 * part - 1, part), (2 * part, 2 * part)]
    {
        assert_eq!(whole_parts(bytes), usable);
    }
}

proptest! {
    /// The usable bytes never exceed the capacity, nor the disk's room less the part kept free.
    #[test]
    fn others_on_the_disk_lower_the_limit(
        capacity in 1_u64..1000,
        keep in 0_u64..1000,
        used in 0_u64..1000,
        others in 0_u64..2000,
    ) {
        let total = 3000_u64;
        let available = total.saturating_sub(used + others);
        let size = limits(capacity, KeepFree::Bytes(keep)).on(Path::new("/cache"), disk(total, available), used);
        let size = size.unwrap();
        prop_assert!(size.limit <= capacity && size.capacity == capacity);
        prop_assert!(size.limit <= (used + available).saturating_sub(keep));
        // Nothing but these two lowers it.
        let room = (used + available).saturating_sub(keep);
        prop_assert_eq!(size.limit, room.min(capacity));
    }
}
