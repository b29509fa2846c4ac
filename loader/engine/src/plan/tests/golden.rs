//! Whole sequences, pinned: a saved position means the same samples in every release that has the
//! same version of the order.

use super::*;

/// Raise it together with `ORDER_VERSION`, and take the new digests from the failing test. Version
/// 2 has the digests of version 1, whose states it resumes: only its default lanes are others.
const PINNED: u32 = 2;

/// 29 shards of 0 to 300 samples, a few of them empty.
fn counts() -> Vec<u64> {
    (0..29_u64).map(|shard| if shard % 11 == 4 { 0 } else { shard * shard * 37 % 301 }).collect()
}

/// FNV-1a over every shard and ordinal, in the sequence's order.
fn digest(samples: &[(u32, u64)]) -> u64 {
    let words = samples.iter().flat_map(|(shard, ordinal)| [u64::from(*shard), *ordinal]);
    words.flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// (shuffle, lanes, window, samples of the epoch beyond those of the data set, digest)
type Golden = (Shuffle, u32, u32, u64, u64);

const GOLDEN: &[Golden] = &[
    (Shuffle::None, 1, 64, 0, 0x1f86_3385_ea69_e7ac),
    (Shuffle::None, 1, 64, 5_197, 0x12e4_7a1b_6aac_5646),
    (Shuffle::None, 3, 64, 0, 0x7c6d_fb06_8386_42d0),
    (Shuffle::None, 3, 64, 5_197, 0x67ed_b999_0cc8_c291),
    (Shuffle::Global, 1, 64, 0, 0xc154_d6d5_2261_7ac0),
    (Shuffle::Global, 1, 64, 5_197, 0xc0f0_0dfd_0074_931a),
    (Shuffle::Window, 1, 1, 0, 0x2e03_cac2_1343_672c),
    (Shuffle::Window, 1, 1, 5_197, 0xbc2e_996b_6427_9a52),
    (Shuffle::Window, 1, 5, 0, 0x1f34_e92a_a3a3_6e0c),
    (Shuffle::Window, 1, 5, 5_197, 0x2037_55ad_a0cf_7a23),
    (Shuffle::Window, 1, 64, 0, 0x740b_ac8b_32b6_3d90),
    (Shuffle::Window, 1, 64, 5_197, 0xbad1_bfa4_d14e_d5d0),
    (Shuffle::Window, 4, 4, 0, 0xb663_8528_9e09_2704),
    (Shuffle::Window, 4, 4, 5_197, 0xa076_846c_1824_a9a9),
    (Shuffle::Window, 4, 10, 0, 0xdf98_5580_de91_c82c),
    (Shuffle::Window, 4, 10, 5_197, 0xcc00_6e7e_a153_c4ad),
    (Shuffle::Window, 7, 7, 0, 0x871c_c523_8e78_a2d0),
    (Shuffle::Window, 7, 7, 5_197, 0xf846_8bd1_958f_ad59),
    (Shuffle::Window, 7, 20, 0, 0x835c_cc1b_a7fd_cc94),
    (Shuffle::Window, 7, 20, 5_197, 0x96a9_6780_1d49_a4a8),
];

#[test]
fn sequences_match_their_golden_digests() {
    let counts = counts();
    let total: u64 = counts.iter().sum();
    let mut now: Vec<Golden> = Vec::new();
    for (shuffle, lanes, window) in [
        (Shuffle::None, 1, 64),
        (Shuffle::None, 3, 64),
        (Shuffle::Global, 1, 64),
        (Shuffle::Window, 1, 1),
        (Shuffle::Window, 1, 5),
        (Shuffle::Window, 1, 64),
        (Shuffle::Window, 4, 4),
        (Shuffle::Window, 4, 10),
        (Shuffle::Window, 7, 7),
        (Shuffle::Window, 7, 20),
    ] {
        for more in [0, total + total / 2] {
            let epoch_samples = Some(total + more);
            let order = Order { epoch_samples, ..order(shuffle, window, 20_240_607) };
            let samples = with_manifest(&order, &counts, lanes, 3);
            now.push((shuffle, lanes, window, more, digest(&samples)));
        }
    }
    assert_eq!(ORDER_VERSION, PINNED, "take the digests of the new order: {now:#?}");
    assert_eq!(
        now, GOLDEN,
        "the order changed: saved positions would mean other samples. Either undo that, or raise \
         ORDER_VERSION, and pin what the order is now: {now:#?}"
    );
}

#[test]
fn mixtures_match_their_golden_digests() {
    let counts = counts();
    let (few, many) = counts.split_at(9);
    let stream = |counts: &[u64], proportion| Stream {
        shards: u32::try_from(counts.len()).unwrap(),
        counts: Some(counts.to_vec()),
        proportion,
    };
    let order = order(Shuffle::Window, 10, 7);
    let of = |proportions: [Proportion; 3], epoch_samples| {
        let sets = [few, many, &[11, 6]];
        let streams: Vec<_> =
            sets.into_iter().zip(proportions).map(|(c, p)| stream(c, p)).collect();
        let order = Order { epoch_samples, ..order.clone() };
        let mut mixed = Mixed::new(&order, &streams, &[], 1).unwrap();
        let all: Vec<_> = (0..mixed.total())
            .map(|position| match mixed.locate(position, &|_| panic!("every count is known")) {
                Located::Sample { shard, ordinal } => (shard, ordinal),
                other => panic!("{other:?}"),
            })
            .collect();
        (all.len(), digest(&all))
    };
    let repeats = of([2.0, 1.0, 5.0].map(Proportion::Repeat), None);
    let weights = of([0.5, 0.3, 0.2].map(Proportion::Weight), Some(9999));
    assert_eq!(
        (repeats, weights),
        MIXTURES,
        "see what sequences_match_their_golden_digests says of a changed order"
    );
    // Deadlines that are whole, and ties.
    let mut mix = Mix::new(&[5, 4, 5, 1, 1]).unwrap();
    assert_eq!((0..16).map(|position| mix.at(position).0).collect::<Vec<_>>(), TURNS);
}

const MIXTURES: ((usize, u64), (usize, u64)) =
    ((4185, 0xf522_d50e_356e_b510), (9999, 0x4848_dfd0_bc6d_62f8));

const TURNS: [usize; 16] = [0, 1, 2, 0, 2, 1, 0, 2, 1, 0, 2, 3, 0, 1, 2, 4];

/// The samples themselves, for an independent implementation of this order.
#[test]
fn first_samples_match_the_documented_order() {
    let order = order(Shuffle::Window, 4, 42);
    let samples = with_manifest(&order, &[3, 0, 5, 4, 2, 6], 2, 1);
    assert_eq!(samples, FIRST);
}

const FIRST: [(u32, u64); 20] = [
    (5, 3),
    (3, 2),
    (5, 1),
    (3, 3),
    (5, 5),
    (2, 1),
    (5, 2),
    (2, 3),
    (5, 0),
    (2, 4),
    (5, 4),
    (2, 0),
    (4, 1),
    (2, 2),
    (4, 0),
    (0, 0),
    (3, 1),
    (0, 2),
    (3, 0),
    (0, 1),
];
