//! Layouts as Lustre tells them, and what reads make of them. `tests/layouts/make.py` says what
//! each file holds.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// Bytes of one read.
const PIECE: u64 = 4 * MIB;

const PLAIN: &[u8] = include_bytes!("../../tests/layouts/plain-4x1m.lov");
const POOL: &[u8] = include_bytes!("../../tests/layouts/pool-2x16m.lov");
const OVERSTRIPED: &[u8] = include_bytes!("../../tests/layouts/overstriped.lov");
const PROGRESSIVE: &[u8] = include_bytes!("../../tests/layouts/progressive.lov");
const SHORT: &[u8] = include_bytes!("../../tests/layouts/progressive-short.lov");
const MIRRORED: &[u8] = include_bytes!("../../tests/layouts/mirrored.lov");
const RELEASED: &[u8] = include_bytes!("../../tests/layouts/released.lov");
const ODD: &[u8] = include_bytes!("../../tests/layouts/plain-2x3m.lov");

const ALL: [&[u8]; 8] = [PLAIN, POOL, OVERSTRIPED, PROGRESSIVE, SHORT, MIRRORED, RELEASED, ODD];

fn striped(start: u64, end: u64, stripe: u64, servers: &[u32]) -> Striped {
    Striped { start, end, stripe, servers: servers.to_vec() }
}

#[test]
fn every_lustre_layout_is_parsed() {
    let all = u64::MAX;
    for (value, stretches) in [
        (PLAIN, vec![striped(0, all, MIB, &[3, 0, 7, 5])]),
        (POOL, vec![striped(0, all, 16 * MIB, &[11, 12])]),
        (OVERSTRIPED, vec![striped(0, all, 4 * MIB, &[1, 2, 1, 2])]),
        (
            PROGRESSIVE,
            vec![
                striped(0, MIB, MIB, &[]),
                striped(MIB, 64 * MIB, 4 * MIB, &[6]),
                striped(64 * MIB, all, 16 * MIB, &[0, 1, 2, 3, 4, 5, 6, 7]),
            ],
        ),
        (SHORT, vec![striped(0, 64 * MIB, 4 * MIB, &[6])]),
        (
            MIRRORED,
            vec![striped(0, 8 * MIB, 2 * MIB, &[3, 4]), striped(8 * MIB, all, 4 * MIB, &[5])],
        ),
        (RELEASED, vec![]),
        (ODD, vec![striped(0, all, 3 * MIB, &[8, 9])]),
    ] {
        assert_eq!(Layout::of_lustre(value).unwrap(), Layout { block: 0, stretches });
    }
}

#[test]
fn invalid_layouts_are_rejected_with_the_reason() {
    let with = |value: &[u8], at: usize, bytes: &[u8]| {
        let mut value = value.to_vec();
        value[at..at + bytes.len()].copy_from_slice(bytes);
        value
    };
    for (value, words) in [
        (Vec::new(), "is truncated"),
        (PLAIN[..PLAIN.len() - 1].to_vec(), "number of objects"),
        (with(PLAIN, 0, &0x0BD7_0BD0_u32.to_le_bytes()), "unknown kind"),
        (with(PLAIN, 4, &[0; 4]), "pattern"),
        (with(PLAIN, 24, &[0; 4]), "size"),
        (with(PLAIN, 24, &4096_u32.to_le_bytes()), "size"),
        (with(PLAIN, 28, &u16::MAX.to_le_bytes()), "number of objects"),
        (with(PLAIN, 28, &[0; 2]), "number of objects"),
        (with(PROGRESSIVE, 4, &u32::MAX.to_le_bytes()), "shorter than its header says"),
        (with(PROGRESSIVE, 14, &u16::MAX.to_le_bytes()), "too few entries"),
        // The first entry: its extent, and where its layout lies.
        (with(PROGRESSIVE, 40, &u64::MAX.to_le_bytes()), "ends before"),
        (with(PROGRESSIVE, 48, &(2 * MIB).to_le_bytes()), "overlap"),
        (with(PROGRESSIVE, 56, &u32::MAX.to_le_bytes()), "beyond its end"),
        // A composite within a composite.
        (with(PROGRESSIVE, 56, &0_u32.to_le_bytes()), "unknown part"),
    ] {
        let error = Layout::of_lustre(&value).unwrap_err();
        assert_eq!(error.kind(), forebay_error::ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
}

/// The reads that `len` bytes from `offset` on become.
fn cuts(layout: &Layout, mut offset: u64, len: u64) -> Vec<u64> {
    let (end, mut cuts) = (offset + len, Vec::new());
    while offset < end {
        cuts.push(layout.cut(offset, PIECE.min(end - offset)));
        offset += cuts.last().unwrap();
    }
    cuts
}

#[test]
fn reads_end_at_stripe_and_block_bounds() {
    let of = |value| Layout::of_lustre(value).unwrap();
    let in_mib = |layout: &Layout, offset: u64, len: u64| -> Vec<u64> {
        cuts(layout, offset * MIB, len * MIB).into_iter().map(|cut| cut / MIB).collect()
    };
    // Whole stripes, as many as fit …
    assert_eq!(in_mib(&of(PLAIN), 0, 10), [4, 4, 2]);
    assert_eq!(in_mib(&of(ODD), 0, 8), [3, 3, 2]);
    // … also from within one …
    assert_eq!(in_mib(&of(ODD), 4, 4), [2, 2]);
    // … and of a larger one no more than its rest.
    assert_eq!(in_mib(&of(POOL), 14, 8), [2, 4, 2]);
    // A read ends at the end of a stretch.
    assert_eq!(in_mib(&of(PROGRESSIVE), 0, 12), [1, 3, 4, 4]);
    for (block, reads) in [(MIB, [4, 4, 2]), (4 * MIB, [4, 4, 2]), (4096, [4, 4, 2])] {
        assert_eq!(in_mib(&Layout::of_blocks(block), 0, 10), reads);
    }
    assert_eq!(in_mib(&Layout::of_blocks(16 * MIB), 14, 8), [2, 4, 2]);
    for nonsense in [0, 3, u64::MAX, 1 << 40] {
        assert_eq!(in_mib(&Layout::of_blocks(nonsense), 1, 10), [4, 4, 2]);
    }
}

#[test]
fn range_maps_to_the_servers_of_its_stripes() {
    let of = |value| Layout::of_lustre(value).unwrap();
    let servers = |value, start: u64, end: u64| of(value).servers(&(start * MIB..end * MIB));
    assert_eq!(servers(PLAIN, 0, 1), [3]);
    assert_eq!(servers(PLAIN, 1, 3), [0, 7]);
    assert_eq!(servers(PLAIN, 7, 12), [0, 3, 5, 7]);
    assert_eq!(servers(POOL, 12, 16), [11]);
    assert_eq!(servers(POOL, 12, 20), [11, 12]);
    assert_eq!(servers(OVERSTRIPED, 0, 8), [1, 2]);
    assert!(servers(PROGRESSIVE, 0, 1).is_empty());
    // Stripes count from the file's begin, not the stretch's.
    assert_eq!(servers(PROGRESSIVE, 64, 80), [4]);
    assert_eq!(servers(PROGRESSIVE, 60, 81), [4, 5, 6]);
    assert!(Layout::of_blocks(MIB).servers(&(0..MIB)).is_empty());
}

/// Reads progress under any layout, and are no longer than requested.
fn assert_usable(layout: &Layout, offset: u64) {
    let cut = layout.cut(offset, PIECE);
    assert!((1..=PIECE).contains(&cut), "{cut} bytes from {offset}");
    let servers = layout.servers(&(offset..offset.saturating_add(PIECE)));
    // The smallest stripes.
    assert!(servers.len() as u64 <= PIECE / (64 << 10) + 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_layouts_are_usable_or_rejected(
        which in 0..ALL.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
        tail in prop::collection::vec(any::<u8>(), 0..64),
        offset in 0..u64::MAX,
    ) {
        let mut value = ALL[which].to_vec();
        for (at, byte) in changes {
            let at = at.index(value.len());
            value[at] = byte;
        }
        value.truncate(cut.index(2 * value.len()));
        value.extend(tail);
        if let Ok(layout) = Layout::of_lustre(&value) {
            assert_usable(&layout, offset);
        }
    }

    #[test]
    fn noise_behind_a_magic_is_usable_or_rejected(
        magic in prop::sample::select(vec![0x0BD1_0BD0_u32, 0x0BD3_0BD0, 0x0BD6_0BD0]),
        noise in prop::collection::vec(any::<u8>(), 0..512),
        offset in 0..u64::MAX,
    ) {
        let value = [&magic.to_le_bytes()[..], &noise].concat();
        if let Ok(layout) = Layout::of_lustre(&value) {
            assert_usable(&layout, offset);
        }
    }
}
