//! Tests: files get the index that was planned, and cuts by it have the right place, size and
//! bounds. `loader/decode` compares their pixels.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::path::Path;

use forebay_jpeg::{Corner, Indexed, Planned, add_index, plan};
use proptest::prelude::*;

/// Files that get an index: every sampling, gray, and Huffman tables made for one image.
const INDEXED: [&str; 8] = [
    "wide-420.jpg",
    "wide-optimized.jpg",
    "ramp-optimized.jpg",
    "tall-444.jpg",
    "tall-422.jpg",
    "tall-440.jpg",
    "gray.jpg",
    "exif-7.jpg",
];

/// Files that stay as they are.
const OTHERS: [&str; 4] = ["wide-progressive.jpg", "wide-restarts.jpg", "cmyk.jpg", "rgb.png"];

/// Bytes of a segment before its marks: marker, length, name, version, columns and checksum.
const HEAD_BYTES: usize = 18;

fn data(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../loader/decode/tests/data");
    std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn indexed(photo: &[u8]) -> Vec<u8> {
    let mut with = Vec::new();
    add_index(photo, &mut with);
    with
}

/// Returns the place of an index's segment.
fn segment(photo: &[u8]) -> usize {
    let name = b"FOREBAY\0";
    photo.windows(name.len()).position(|bytes| bytes == name).unwrap() - 4
}

/// Returns width and height from a file's frame.
fn size(photo: &[u8]) -> (u16, u16) {
    let mut at = 2;
    while !matches!(photo[at + 1], 0xc0 | 0xc1) {
        at += 2 + usize::from(u16::from_be_bytes([photo[at + 2], photo[at + 3]]));
    }
    let side = |at: usize| u16::from_be_bytes([photo[at], photo[at + 1]]);
    (side(at + 7), side(at + 5))
}

/// Returns a header of an image of one scan, up to its scan's segment.
fn header(width: u16, height: u16) -> Vec<u8> {
    let photo = data("wide-420.jpg");
    let mut header = indexed(&photo)[..segment(&indexed(&photo))].to_vec();
    let frame = header.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    header[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    header[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    let scan = &photo[header.len()..];
    let length = usize::from(u16::from_be_bytes([scan[2], scan[3]]));
    header.extend_from_slice(&scan[..2 + length]);
    header
}

#[test]
fn index_is_one_segment_as_long_as_planned() {
    for name in INDEXED {
        let photo = data(name);
        let with = indexed(&photo);
        assert_eq!(plan(&photo), Planned::Index(with.len() - photo.len()), "{name}");
        let at = segment(&with);
        let length = usize::from(u16::from_be_bytes([with[at + 2], with[at + 3]])) + 2;
        assert_eq!(length, with.len() - photo.len(), "{name}");
        let without = [&with[..at], &with[at + length..]].concat();
        assert!(without == photo, "{name}: nothing else changes");
        assert!(Indexed::open(&with).is_some(), "{name}");
        assert_eq!(plan(&with), Planned::AsIs, "{name} has one already");
        assert!(indexed(&with) == with, "{name} gets no second one");
    }
}

#[test]
fn other_files_stay_as_they_are() {
    for name in OTHERS {
        let photo = data(name);
        assert_eq!(plan(&photo), Planned::AsIs, "{name}");
        assert!(indexed(&photo) == photo, "{name}");
        assert!(Indexed::open(&photo).is_none(), "{name}");
    }
    assert!(Indexed::open(&data("wide-420.jpg")).is_none(), "nobody made one");
}

#[test]
fn header_is_enough_for_a_plan() {
    let photo = data("exif-7.jpg");
    let scan = photo.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    for cut in [0, 1, 3, scan / 2, scan + 3] {
        assert_eq!(plan(&photo[..cut]), Planned::More, "{cut} bytes");
    }
    assert_eq!(plan(&photo[..scan + 20]), plan(&photo));
    assert_eq!(plan(b"\x89PNG"), Planned::AsIs);
}

#[test]
fn index_of_a_large_image_has_marks_farther_apart() {
    // MCUs of 16 pixels, a mark of 7 bytes at each second column.
    let marks = |columns: usize, rows: usize, every: usize| columns.div_ceil(every) * rows + 1;
    assert_eq!(
        plan(&header(1000, 500)),
        Planned::Index(HEAD_BYTES + 7 * marks(63, 32, 2)),
        "a photo"
    );
    assert_eq!(plan(&header(8000, 6000)), Planned::Index(HEAD_BYTES + 7 * marks(500, 375, 32)));
    assert_eq!(
        plan(&header(65_500, 65_500)),
        Planned::Index(HEAD_BYTES + 7 * marks(1, 4094, 1) * 2 - 7)
    );
}

#[test]
fn cut_has_the_mcus_around_the_pixels() {
    // 200 × 150 pixels, MCUs of 16 pixels, marks at each 32.
    let with = indexed(&data("wide-420.jpg"));
    let indexed = Indexed::open(&with).unwrap();
    let mut cut = Vec::new();
    let corner = indexed.cut(70..90, 100..140, &mut cut);
    assert_eq!(corner, Some(Corner { left: 64, top: 96 }));
    assert_eq!(size(&cut), (32, 48));
    assert!(cut.len() < with.len() / 2, "{} of {} bytes", cut.len(), with.len());
    assert!(cut.ends_with(&[0xff, 0xd9]));
    let corner = indexed.cut(199..200, 149..150, &mut cut);
    assert_eq!(corner, Some(Corner { left: 160, top: 144 }), "no narrow rest");
    assert_eq!(size(&cut), (40, 6));
}

#[test]
fn cut_that_saves_little_is_not_made() {
    let with = indexed(&data("wide-420.jpg"));
    let indexed = Indexed::open(&with).unwrap();
    let mut cut = Vec::new();
    assert_eq!(indexed.cut(0..200, 0..150, &mut cut), None, "the whole");
    assert_eq!(indexed.cut(0..200, 0..20, &mut cut), None, "rows below are not read anyway");
    assert!(indexed.cut(0..200, 100..150, &mut cut).is_some());
    for (x, y) in [(10..10, 20..40), (300..310, 20..40), (10..20, 160..170)] {
        assert_eq!(indexed.cut(x, y, &mut cut), None, "nothing to see");
    }
}

#[test]
fn index_of_another_scan_is_not_used() {
    let with = indexed(&data("wide-420.jpg"));
    let mut cut = Vec::new();
    let mut changed = with.clone();
    let place = changed.len() - 100;
    changed[place] ^= 1;
    assert_eq!(Indexed::open(&changed).unwrap().cut(70..90, 100..140, &mut cut), None);
    let mut moved = with.clone();
    let at = segment(&moved);
    let length = usize::from(u16::from_be_bytes([with[at + 2], with[at + 3]])) + 2;
    moved.copy_within(2..at, 2 + length);
    moved[2..2 + length].copy_from_slice(&with[at..at + length]);
    assert!(Indexed::open(&moved).is_none(), "a segment before others is behind none of them");
    let mut newer = with.clone();
    newer[at + 12] = 2;
    assert!(Indexed::open(&newer).is_none(), "a later version");
}

#[test]
fn damaged_scan_gets_an_empty_index() {
    let photo = data("wide-420.jpg");
    let scan = photo.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let mut stopped = photo.clone();
    stopped.truncate(scan + 1000);
    let mut marked = photo.clone();
    marked[scan + 1000..scan + 1002].copy_from_slice(&[0xff, 0xd9]);
    let mut longer = photo[..photo.len() - 2].to_vec();
    longer.extend_from_slice(&[1, 2, 3, 0xff, 0xd9]);
    // The only byte is gone; a fill byte stands in its place.
    let mut filled = gray((1, 1), 0, "00");
    let last = filled.len() - 3;
    filled[last] = 0xff;
    let cases =
        [("cut off", stopped), ("ended early", marked), ("too long", longer), ("filled", filled)];
    for (what, photo) in cases {
        let with = indexed(&photo);
        assert_eq!(plan(&photo), Planned::Index(with.len() - photo.len()), "{what}");
        assert!(Indexed::open(&with).is_none(), "{what}");
        assert_eq!(plan(&with), Planned::AsIs, "{what}");
    }
}

/// Returns a gray JPEG of `columns` × `rows` blocks, each of these bits: there is one code for
/// differences, of `category`, and one for a block's end, both a zero.
fn gray((columns, rows): (u16, u16), category: u8, block: &str) -> Vec<u8> {
    let one_code =
        |table: u8, symbol: u8| [&[0xff, 0xc4, 0, 20, table, 1][..], &[0; 15], &[symbol]].concat();
    let [height, width] = [rows, columns].map(|blocks| (blocks * 8).to_be_bytes());
    let frame = [&[0xff, 0xc0, 0, 11, 8], &height[..], &width, &[1, 1, 0x11, 0]].concat();
    let scan = [0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0];
    let mut bits = block.repeat(usize::from(columns) * usize::from(rows));
    bits.push_str(&"1".repeat(bits.len().wrapping_neg() % 8));
    let bytes = bits.as_bytes().chunks(8).flat_map(|eight| {
        let byte = eight.iter().fold(0_u8, |byte, bit| byte << 1 | (bit - b'0'));
        if byte == 0xff { vec![0xff, 0] } else { vec![byte] }
    });
    let tables = [one_code(0, category), one_code(0x10, 0)].concat();
    let head = [&[0xff, 0xd8][..], &frame, &tables, &scan].concat();
    head.into_iter().chain(bytes).chain([0xff, 0xd9]).collect()
}

#[test]
fn dc_values_that_no_mark_holds_get_an_empty_index() {
    // Each block is 2047 steps brighter than the last.
    let brighter = |blocks| gray((blocks, 1), 11, "0111111111110");
    assert!(Indexed::open(&indexed(&brighter(1))).is_some());
    let with = indexed(&brighter(2));
    assert!(with.len() > brighter(2).len());
    assert!(Indexed::open(&with).is_none());
}

#[test]
fn largest_images_have_an_index() {
    // A mark at every 512th column would be told from that of an empty index by more than a byte.
    let photo = gray((1663, 1663), 0, "00");
    let with = indexed(&photo);
    assert!(with.len() - photo.len() < 65_540);
    let mut cut = Vec::new();
    let corner = Indexed::open(&with).unwrap().cut(9000..9010, 13_000..13_010, &mut cut).unwrap();
    assert!(corner.left <= 9000 && 9000 - corner.left < 8 * 1024, "{corner:?}");
    assert_eq!(corner.top, 13_000);
}

/// Returns a photo with these segments before all others.
fn with_segments(segments: &[u8]) -> Vec<u8> {
    let photo = data("wide-420.jpg");
    [&photo[..2], segments, &photo[2..]].concat()
}

#[test]
fn headers_that_no_cut_can_have_stay_as_they_are() {
    // A table of 250 symbols has no room for the codes of a cut.
    let mut counts = [0; 16];
    (counts[0], counts[14], counts[15]) = (1, 200, 49);
    let full = [&[0xff, 0xc4, 1, 13, 3][..], &counts, &[0; 250]].concat();
    let empty = [&[0xff, 0xc4, 0, 19, 0x13][..], &[0; 16]].concat();
    let cases = [
        ("a full table", full),
        ("too many tables", empty.repeat(60)),
        ("too many segments", [0xff, 0xdb, 0, 2].repeat(65)),
        ("more pictures in the file", b"\xff\xe2\x00\x06MPF\0".to_vec()),
    ];
    for (what, segments) in cases {
        assert_eq!(plan(&with_segments(&segments)), Planned::AsIs, "{what}");
    }
    for segments in [empty.repeat(3), b"\xff\xe2\x00\x06ICC_".to_vec()] {
        assert!(Indexed::open(&indexed(&with_segments(&segments))).is_some());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A wrong index gives a cut of bounded size or none; it never panics.
    #[test]
    fn damaged_index_gives_a_bounded_cut_or_none(
        name in proptest::sample::select(&INDEXED[..]),
        damage in proptest::collection::vec((0.0..1.0, any::<u8>()), 1..8),
        corners in (0_u32..200, 0_u32..200, 0_u32..200, 0_u32..200),
    ) {
        let photo = data(name);
        let mut with = indexed(&photo);
        let (at, length) = (segment(&with), with.len() - photo.len());
        for (share, value) in damage {
            // Behind the name, so that it is still taken for an index.
            let place = 12 + (share * (length - 12) as f64) as usize;
            with[at + place] = value;
        }
        let (a, b, c, d) = corners;
        let (x, y) = (a.min(b)..a.max(b) + 1, c.min(d)..c.max(d) + 1);
        let mut cut = Vec::new();
        if let Some(indexed) = Indexed::open(&with)
            && let Some(corner) = indexed.cut(x, y, &mut cut)
        {
            let (width, height) = size(&photo);
            prop_assert!(corner.left < u32::from(width) && corner.top < u32::from(height));
            prop_assert!(cut.len() <= photo.len() * 2, "{} bytes", cut.len());
        }
    }

    /// Any bytes are planned for and get what was planned.
    #[test]
    fn damaged_files_get_what_is_planned(
        name in proptest::sample::select([&INDEXED[..], &OTHERS[..]].concat()),
        damage in proptest::collection::vec((0.0..1.0, any::<u8>()), 1..8),
    ) {
        let mut photo = data(name);
        for (share, value) in damage {
            let place = (share * photo.len() as f64) as usize;
            photo[place] = value;
        }
        let mut with = Vec::new();
        let added = add_index(&photo, &mut with);
        prop_assert_eq!(with.len(), photo.len() + added);
        match plan(&photo) {
            Planned::Index(bytes) => prop_assert_eq!(bytes, added),
            Planned::AsIs | Planned::More => prop_assert_eq!(added, 0),
        }
    }
}
