//! The kernel's own list of mappings, for regions.
//!
//! There is one test only. The list is read in several calls, and a mapping made or removed by
//! another test in between could hide or repeat an entry.

use forebay_uring::{Arena, Region};

const CHUNK: usize = 2 << 20;

#[test]
fn region_is_mapped_as_reported_while_a_span_lives() {
    let smaps = || std::fs::read_to_string("/proc/self/smaps").unwrap();
    let arena = Arena::new(Region::create("forebay-maps", 4 * CHUNK).unwrap());
    let text = smaps();
    let ours = text.split("/memfd:forebay-maps").nth(1).unwrap();
    let bytes = |name: &str| -> usize {
        let line = ours.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
    };
    let pages = arena.region().pages();
    assert_eq!(bytes("ShmemPmdMapped:"), pages.collapsed);
    assert_eq!(bytes("Shared_Hugetlb:") + bytes("Private_Hugetlb:"), pages.hugetlb);
    let span = arena.try_lease(1).unwrap();
    drop(arena);
    assert!(smaps().contains("forebay-maps"));
    assert_eq!(span[0], 0);
    drop(span);
    assert!(!smaps().contains("forebay-maps"));
}
