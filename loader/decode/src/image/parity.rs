//! Tests: pixels equal torchvision's, and scratch stays small. `tests/data/README.md` describes the
//! expected files.

use forebay_error::ErrorKind;
use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::buffer::BufferPool;
use crate::column::Tensor;
use crate::crop::Area;
use crate::fixtures::{PLAIN, by_cpu, data};
use crate::npy;
use crate::spec::Crop;

const DRAW: Draw = Draw { seed: 0, epoch: 0, stream: 0, position: 0, field: 0, view: 0 };

fn expected(name: &str) -> Tensor {
    npy::array(&data(name)).unwrap().tensor(&BufferPool::new(0)).unwrap()
}

/// Returns shape and elements of `name` under `spec`.
fn render(name: &str, spec: ImageSpec) -> (Vec<usize>, Vec<u8>) {
    render_with(name, spec, &DRAW)
}

fn render_with(name: &str, spec: ImageSpec, draw: &Draw) -> (Vec<usize>, Vec<u8>) {
    by_cpu(&data(name), &ImagePlan::new(spec), draw)
}

fn shrunk_by(ready: &Ready<'_>) -> u32 {
    match ready.pixels {
        Decoded::Eight(pixels) => pixels.shrunk,
        Decoded::Sixteen(_) => 1,
    }
}

fn exactly(part: Part) -> Wanted {
    Wanted { part, shrink: 1, is_fast: false }
}

/// Returns a file's size, and the decoded pixels for a part of it.
fn decoded(bytes: &[u8], part: impl Fn(Size) -> Part) -> (Size, Pixels) {
    let (mut jpeg, mut pixels) = (jpeg::Jpeg::default(), Pixels::default());
    let opened = Opened::new(bytes, &mut jpeg, Form::Color, false).unwrap();
    let size = opened.size();
    opened.decode(exactly(part(size)), &mut pixels).unwrap();
    (size, pixels)
}

/// Returns the rows of `part` in decoded pixels.
fn rows(pixels: &Pixels, part: Part) -> Vec<&[u8]> {
    let Part { left, top, width, .. } = pixels.part;
    let bytes = |pixels: u32| pixels as usize * CHANNELS;
    let from = bytes(part.left - left);
    let rows = pixels.as_bytes().chunks_exact(bytes(width)).skip((part.top - top) as usize);
    rows.take(part.height as usize).map(|row| &row[from..from + bytes(part.width)]).collect()
}

/// Draws `placement` of an `image`'s pixels, as planes of bytes.
fn drawn(pixels: &Pixels, image: Size, placement: &Placement, flip: bool) -> Vec<u8> {
    let finish = Finish::new(&ImageSpec::default());
    let mut out = vec![0; byte_len(placement.canvas)];
    let mut canvas = finish.canvas(placement.canvas.1, flip, &ImageSpec::default(), &mut out);
    Resize::default().draw(pixels, image, placement, Interpolation::Bilinear, &mut canvas);
    out
}

/// Returns the largest and the mean difference in steps of 1/255.
fn difference(ours: &[u8], theirs: &[u8]) -> (u8, f64) {
    assert_eq!(ours.len(), theirs.len());
    let steps = || ours.iter().zip(theirs).map(|(a, b)| a.abs_diff(*b));
    let sum: f64 = steps().map(f64::from).sum();
    (steps().max().unwrap(), sum / ours.len() as f64)
}

fn assert_close(name: &str, ours: &(Vec<usize>, Vec<u8>), limit: (u8, f64)) {
    let theirs = expected(name);
    assert_eq!(ours.0, theirs.shape, "{name}");
    let (most, mean) = difference(&ours.1, theirs.buffer.as_bytes());
    assert!(most <= limit.0 && mean <= limit.1, "{name}: at most {most}, on average {mean}");
}

#[test]
fn every_coding_decodes_to_the_same_pixels() {
    let others = [
        "rgb.png",
        "rgba.png",
        "palette.png",
        "gray.png",
        "gray16.png",
        "bits.png",
        "lossy.webp",
        "lossless.webp",
        "alpha.webp",
    ];
    for name in jpegs().into_iter().chain(others) {
        assert_decodes(name, ImageSpec::default());
    }
}

#[test]
fn exif_rotation_applies_only_if_requested() {
    let stored = render("exif-1.jpg", ImageSpec::default());
    for number in 1..=8 {
        let name = format!("exif-{number}.jpg");
        assert_decodes(&name, ImageSpec { exif: true, ..ImageSpec::default() });
        assert!(render(&name, ImageSpec::default()) == stored, "{name}: nobody asked");
    }
    assert_decodes("wide-420.jpg", ImageSpec { exif: true, ..ImageSpec::default() });
}

/// The crop is chosen in the upright image, in whatever orientation it is stored.
#[test]
fn crops_of_rotated_photos_equal_crops_of_upright_ones() {
    let spec = ImageSpec { exif: true, ..random_crop() };
    let ours = |name: &str| render(name, spec.clone()).1;
    let (_, upright) = decoded(&data("exif-6.jpg"), Part::whole);
    let mut turned = Scratch { pixels: upright, ..Scratch::default() };
    Orientation::read(&data("exif-6.jpg")).apply(&mut turned.pixels, &mut turned.turned);
    let image = turned.pixels.size();
    let placement = Placement::new(spec.crop, spec.size, image, &DRAW);
    let flip = DRAW.numbers(Purpose::Flip).below(2) == 1;
    let out = drawn(&turned.pixels, image, &placement, flip);
    assert!(ours("exif-6.jpg") == out);
}

fn random_crop() -> ImageSpec {
    ImageSpec {
        size: Some((32, 32)),
        crop: Crop::Random { scale: (0.08, 1.0), ratio: (0.75, 4.0 / 3.0) },
        flip: true,
        ..ImageSpec::default()
    }
}

#[test]
fn each_view_equals_a_single_draw() {
    let spec = ImageSpec { views: Some(5), ..random_crop() };
    let (shape, all) = render("wide-420.jpg", spec);
    assert_eq!(shape, [5, 3, 32, 32]);
    let views: Vec<&[u8]> = all.chunks_exact(3 * 32 * 32).collect();
    for (view, ours) in (0..).zip(&views) {
        let alone = render_with("wide-420.jpg", random_crop(), &Draw { view, ..DRAW }).1;
        assert!(alone == *ours, "view {view}");
        assert!(views.iter().filter(|other| *other == ours).count() == 1, "no two are the same");
    }
    let nhwc = ImageSpec { views: Some(2), layout: Layout::Nhwc, ..random_crop() };
    assert_eq!(render("wide-420.jpg", nhwc).0, [2, 32, 32, 3]);
}

#[test]
fn fast_quality_decodes_at_reduced_size_and_stays_close() {
    for name in ["wide-420.jpg", "wide-progressive.jpg", "tall-444.jpg", "tall-422.jpg", "gray.jpg"]
    {
        for (crop, size) in [
            (Crop::None, (40, 32)),
            (Crop::Center { resize: Some(40) }, (32, 32)),
            (Crop::Random { scale: (0.9, 1.0), ratio: (0.9, 1.1) }, (24, 24)),
        ] {
            let exact = ImageSpec { size: Some(size), crop, ..ImageSpec::default() };
            let fast = ImageSpec { quality: Quality::Fast, ..exact.clone() };
            let plan = ImagePlan::new(fast.clone());
            let (mut scratch, bytes) = (Scratch::default(), data(name));
            let ready = plan.prepare(&bytes, &DRAW, &mut scratch).unwrap();
            assert!(shrunk_by(&ready) > 1, "{name}, {crop:?}");
            let (most, mean) = difference(&render(name, fast).1, &render(name, exact).1);
            assert!(mean < 4.0, "{name}, {crop:?}: at most {most}, on average {mean}");
            assert!(most > 0, "{name}, {crop:?}: it is another way");
        }
    }
    // A large result is decoded at full size, and so are later images.
    let mut scratch = Scratch::default();
    for (size, shrunk) in [((20, 20), 4), ((150, 200), 1), ((76, 101), 1), ((75, 100), 2)] {
        let spec = ImageSpec { size: Some(size), quality: Quality::Fast, ..ImageSpec::default() };
        let plan = ImagePlan::new(spec);
        let bytes = data("wide-420.jpg");
        assert_eq!(shrunk_by(&plan.prepare(&bytes, &DRAW, &mut scratch).unwrap()), shrunk);
    }
    let exact = ImagePlan::new(ImageSpec { size: Some((20, 20)), ..ImageSpec::default() });
    let bytes = data("wide-420.jpg");
    assert_eq!(shrunk_by(&exact.prepare(&bytes, &DRAW, &mut scratch).unwrap()), 1);
}

/// Compares a whole image with torchvision's result.
fn assert_decodes(name: &str, spec: ImageSpec) {
    let (shape, pixels) = render(name, spec);
    let [channels, height, width] = shape[..] else { panic!("{shape:?}") };
    let mut thinned = Vec::new();
    for (at, value) in pixels.iter().enumerate() {
        if at / width % height % 3 == 0 && at % width % 3 == 0 {
            thinned.push(*value);
        }
    }
    let shape = vec![channels, height.div_ceil(3), width.div_ceil(3)];
    assert_close(&format!("{name}.pixels.npy"), &(shape, thinned), (0, 0.0));
}

/// Two roundings to 8 bits, horizontal and vertical, may each fall the other way.
const RESIZE_LIMIT: (u8, f64) = (1, 0.25);

#[test]
fn resize_and_center_crop_match_torchvision() {
    let center = |resize| Crop::Center { resize };
    for name in ["wide-420.jpg", "tall-444.jpg", "rgb.png"] {
        let cases = [
            ("resize-48x64", (48, 64), Crop::None, RESIZE_LIMIT),
            ("resize-64-center-56", (56, 56), center(Some(64)), RESIZE_LIMIT),
            ("center-64x70", (64, 70), center(None), (0, 0.0)),
        ];
        for (case, size, crop, limit) in cases {
            let spec = ImageSpec { size: Some(size), crop, ..ImageSpec::default() };
            assert_close(&format!("{name}.{case}.npy"), &render(name, spec), limit);
        }
    }
}

/// Returns random-looking pixels of an image of `size`.
fn noise((height, width): Size) -> Pixels {
    let mut pixels = Pixels::default();
    let mut state = 1_u64;
    for byte in pixels.make_room(Part::whole((height, width)), 1) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    pixels
}

/// Resizes by the library that first defined the pixels.
fn resized_by_library(pixels: &Pixels, placement: &Placement) -> Vec<u8> {
    use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
    use fast_image_resize::pixels::U8x3;
    use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

    let ((height, width), canvas) = (pixels.size(), placement.canvas);
    let source = TypedImageRef::<U8x3>::from_buffer(width, height, pixels.as_bytes()).unwrap();
    let mut rows = vec![0; byte_len(canvas)];
    let mut target = TypedImage::<U8x3>::from_buffer(canvas.1, canvas.0, &mut rows).unwrap();
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false);
    let mut resizer = Resizer::default();
    let Area { left, top, width, height } = placement.source;
    if placement.isolated {
        let [left, top, width, height] = [left, top, width, height].map(|side| side as u32);
        let part = TypedCroppedImage::from_ref(&source, left, top, width, height).unwrap();
        resizer.resize_typed(&part, &mut target, &options).unwrap();
    } else {
        let options = options.crop(left, top, width, height);
        resizer.resize_typed(&source, &mut target, &options).unwrap();
    }
    (0..CHANNELS).flat_map(|c| rows.iter().skip(c).step_by(CHANNELS).copied()).collect()
}

proptest! {
    /// Bit by bit: a data set looks the same in every release.
    #[test]
    fn resized_pixels_equal_those_of_earlier_releases(
        image in (1..300_u32, 1..300_u32),
        canvas in (1..120_u32, 1..120_u32),
        corners in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
        isolated in any::<bool>(),
    ) {
        let side = |a: f64, b: f64, length: u32| {
            let (from, to) = (a.min(b) * f64::from(length), a.max(b) * f64::from(length));
            match isolated {
                true => (from.floor(), to.floor() - from.floor() + 1.0),
                false => (from, to - from),
            }
        };
        let (left, width) = side(corners.0, corners.1, image.1);
        let (top, height) = side(corners.2, corners.3, image.0);
        prop_assume!(width > 0.0 && height > 0.0);
        let source = Area { left, top, width, height };
        let placement = Placement { source, isolated, content: canvas, corner: (0, 0), canvas };
        let pixels = noise(image);
        let expected = resized_by_library(&pixels, &placement);
        prop_assert!(drawn(&pixels, image, &placement, false) == expected, "{placement:?}");
    }
}

#[derive(Deserialize)]
struct Boxed {
    image: String,
    r#box: [u32; 4],
    expected: String,
}

#[test]
fn crop_is_resized_without_its_surroundings() {
    let boxes: Vec<Boxed> = serde_json::from_slice(&data("boxes.json")).unwrap();
    assert_eq!(boxes.len(), 4);
    for Boxed { image, r#box: [top, left, height, width], expected } in boxes {
        let (left, top) = (f64::from(left), f64::from(top));
        let source = Area { left, top, width: f64::from(width), height: f64::from(height) };
        let canvas = (64, 64);
        let placement =
            Placement { source, isolated: true, content: canvas, corner: (0, 0), canvas };
        let (size, pixels) = decoded(&data(&image), |size| placement.part(size));
        let planes = drawn(&pixels, size, &placement, false);
        assert_close(&expected, &(vec![CHANNELS, 64, 64], planes), RESIZE_LIMIT);
    }
}

const DAMAGED: [&str; 8] = [
    "wide-420.jpg",
    "wide-progressive.jpg",
    "tall-422.jpg",
    "cmyk.jpg",
    "exif-7.jpg",
    "rgba.png",
    "lossy.webp",
    "lossless.webp",
];

fn jpegs() -> Vec<&'static str> {
    let others = ["wide-progressive.jpg", "wide-restarts.jpg", "cmyk.jpg"];
    [&indexable()[..], &others].concat()
}

fn indexable() -> Vec<&'static str> {
    [&PLAIN[..], &["wide-optimized.jpg", "ramp-optimized.jpg"]].concat()
}

proptest! {
    #[test]
    fn part_decodes_to_the_pixels_of_the_whole_image(
        name in proptest::sample::select(jpegs()),
        corners in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
    ) {
        let bytes = data(name);
        let (size, whole) = decoded(&bytes, Part::whole);
        let part = part_between(corners, size);
        let (_, pixels) = decoded(&bytes, |_| part);
        prop_assert!(rows(&pixels, part) == rows(&whole, part), "{name}: {part:?}");
        prop_assert_eq!(pixels.part.height, part.height, "no row too many");
        prop_assert!(pixels.part.width <= part.width + 2 + 2 + 15, "{:?}", pixels.part);
    }
}

/// Returns a file with an index of its scan.
fn indexed(photo: &[u8]) -> Vec<u8> {
    let mut with = Vec::new();
    forebay_jpeg::add_index(photo, &mut with);
    with
}

/// Decodes `wanted` of a file with a handle that may have decoded others.
fn decoded_with(jpeg: &mut jpeg::Jpeg, bytes: &[u8], wanted: Wanted) -> Pixels {
    let mut pixels = Pixels::default();
    let opened = Opened::new(bytes, jpeg, Form::Color, wanted.is_fast).unwrap();
    opened.decode(wanted, &mut pixels).unwrap();
    pixels
}

/// Decodes `wanted` of a file, and returns it with the bytes of the part that was cut out for it.
fn decoded_by_index(bytes: &[u8], wanted: Wanted) -> (Pixels, usize) {
    let mut jpeg = jpeg::Jpeg::default();
    (decoded_with(&mut jpeg, bytes, wanted), jpeg.cut_bytes())
}

/// Returns the part between two corners, which are shares of an image's sides.
fn part_between((a, b, c, d): (f64, f64, f64, f64), (height, width): Size) -> Part {
    let at = |share: f64, length: u32| (share * f64::from(length)) as u32;
    let (a, b, c, d) = (at(a, width), at(b, width), at(c, height), at(d, height));
    Part { left: a.min(b), top: c.min(d), width: a.abs_diff(b) + 1, height: c.abs_diff(d) + 1 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whole files of random content and made ones; exact, and shrunk and quick.
    #[test]
    fn part_by_an_index_has_the_pixels_of_the_whole(
        file in prop_oneof![
            proptest::sample::select(indexable()).prop_map(data),
            ((1..300_u32, 1..300_u32), 1..100_u8).prop_map(|(size, quality)| {
                encode_jpeg(noise(size).as_bytes(), (size.1, size.0), quality).unwrap()
            }),
        ],
        corners in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
        shrink in proptest::sample::select(&[1, 2, 4, 8][..]),
        is_fast in any::<bool>(),
    ) {
        let (size, _) = decoded(&file, Part::whole);
        let part = part_between(corners, size);
        let wanted = Wanted { part, shrink, is_fast };
        let (plain, none) = decoded_by_index(&file, wanted);
        let (by_index, _) = decoded_by_index(&indexed(&file), wanted);
        prop_assert_eq!(none, 0);
        prop_assert_eq!(plain.part, by_index.part);
        let part = part.shrunk(shrink);
        prop_assert!(rows(&plain, part) == rows(&by_index, part), "{part:?} of {size:?}");
    }
}

#[test]
fn narrow_rest_of_a_photo_has_the_pixels_of_the_whole() {
    // The last unit of 16 pixels is so narrow that a file of it alone would be smoothed less.
    for width in [33, 35, 36, 67, 68] {
        let file = encode_jpeg(noise((118, width)).as_bytes(), (width, 118), 90).unwrap();
        for columns in 1..4 {
            let part = Part { left: width - columns, top: 94, width: columns, height: 3 };
            let (plain, _) = decoded_by_index(&file, exactly(part));
            let (by_index, cut) = decoded_by_index(&indexed(&file), exactly(part));
            assert!(cut > 0);
            assert!(rows(&plain, part) == rows(&by_index, part), "{columns} of {width}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A thread decodes many files, one after the other; none of them shows in the next.
    #[test]
    fn file_decodes_the_same_after_any_others(
        series in proptest::collection::vec(
            (
                prop_oneof![
                    proptest::sample::select(jpegs()).prop_map(data),
                    (16..400_u32, 16..400_u32).prop_map(|size| {
                        encode_jpeg(noise(size).as_bytes(), (size.1, size.0), 80).unwrap()
                    }),
                ],
                (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
                proptest::sample::select(&[1, 1, 2, 4, 8][..]),
                any::<bool>(),
                any::<bool>(),
            ),
            30,
        ),
    ) {
        let mut jpeg = jpeg::Jpeg::default();
        for (file, corners, shrink, is_fast, with_index) in series {
            let file = if with_index { indexed(&file) } else { file };
            let (size, _) = decoded(&file, Part::whole);
            let part = part_between(corners, size);
            let wanted = Wanted { part, shrink, is_fast };
            let again = decoded_with(&mut jpeg, &file, wanted);
            let (alone, _) = decoded_by_index(&file, wanted);
            let part = part.shrunk(alone.shrunk);
            prop_assert!(rows(&again, part) == rows(&alone, part), "{wanted:?} of {size:?}");
        }
    }
}

/// Blocks across and down of each component, as encoders write them and as they may be.
const SAMPLINGS: [[(u8, u8); 3]; 12] = [
    [(1, 1), (1, 1), (1, 1)],
    [(2, 1), (1, 1), (1, 1)],
    [(2, 2), (1, 1), (1, 1)],
    [(1, 2), (1, 1), (1, 1)],
    [(4, 1), (1, 1), (1, 1)],
    [(1, 4), (1, 1), (1, 1)],
    [(2, 2), (2, 1), (2, 1)],
    [(2, 2), (1, 2), (1, 2)],
    [(2, 1), (2, 1), (2, 1)],
    [(3, 1), (3, 1), (3, 1)],
    [(1, 2), (1, 2), (1, 2)],
    [(2, 2), (2, 2), (1, 1)],
];

/// Returns a JPEG of blocks of one colour each, drawn by `seed`.
fn patches(sampling: [(u8, u8); 3], (height, width): (u16, u16), mut seed: u64) -> Vec<u8> {
    // One code, a zero: seven bits of a difference, or a block's end.
    let one_code =
        |table: u8, symbol: u8| [&[0xff, 0xc4, 0, 20, table, 1][..], &[0; 15], &[symbol]].concat();
    let mut file = [&[0xff, 0xd8, 0xff, 0xdb, 0, 67, 0][..], &[1; 64]].concat();
    file.extend_from_slice(&[0xff, 0xc0, 0, 17, 8]);
    file.extend_from_slice(&height.to_be_bytes());
    file.extend_from_slice(&width.to_be_bytes());
    file.push(3);
    for (id, (across, down)) in (1..).zip(sampling) {
        file.extend_from_slice(&[id, across << 4 | down, 0]);
    }
    file.extend([one_code(0, 7), one_code(0x10, 0)].concat());
    file.extend_from_slice(&[0xff, 0xda, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, 63, 0]);
    let most = |side: fn(&(u8, u8)) -> u8| u16::from(sampling.iter().map(side).max().unwrap()) * 8;
    let (across, down) = (most(|one| one.0), most(|one| one.1));
    let units = usize::from(width.div_ceil(across)) * usize::from(height.div_ceil(down));
    let blocks: usize = sampling.iter().map(|(h, v)| usize::from(h * v)).sum();
    let mut bits = Vec::new();
    for _ in 0..units * blocks {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let value = (seed >> 57) as u8;
        bits.push(0);
        bits.extend((0..7).rev().map(|bit| value >> bit & 1));
        bits.push(0);
    }
    bits.resize(bits.len().next_multiple_of(8), 1);
    for eight in bits.chunks_exact(8) {
        let byte = eight.iter().fold(0, |byte, bit| byte << 1 | bit);
        file.push(byte);
        if byte == 0xff {
            file.push(0);
        }
    }
    file.extend_from_slice(&[0xff, 0xd9]);
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn parts_of_any_sampling_have_the_pixels_of_the_whole(
        sampling in proptest::sample::select(&SAMPLINGS[..]),
        size in (1..120_u16, 1..120_u16),
        seed in any::<u64>(),
        corners in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
    ) {
        let file = patches(sampling, size, seed);
        let (size, whole) = decoded(&file, Part::whole);
        let part = part_between(corners, size);
        for (what, file) in [("plain", &file), ("indexed", &indexed(&file))] {
            let (_, pixels) = decoded(file, |_| part);
            prop_assert!(rows(&pixels, part) == rows(&whole, part), "{what}: {part:?}");
        }
    }
}

#[test]
fn index_makes_less_to_decode() {
    let names =
        ["wide-420.jpg", "wide-optimized.jpg", "ramp-optimized.jpg", "tall-444.jpg", "gray.jpg"];
    for name in names {
        let (file, part) = (data(name), Part { left: 66, top: 50, width: 20, height: 40 });
        let (_, cut) = decoded_by_index(&indexed(&file), exactly(part));
        assert!(0 < cut && cut < file.len() * 2 / 3, "{name}: {cut} of {} bytes", file.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any bytes give an image of the promised shape or a bad sample. A memory checker shows more.
    #[test]
    fn damaged_files_decode_or_are_bad_samples(
        name in proptest::sample::select(&DAMAGED[..]),
        damage in proptest::collection::vec((0.0..1.0, any::<u8>()), 1..8),
        cut in proptest::option::weighted(0.2, 0.0..1.0),
        position in any::<u64>(),
        quality in proptest::sample::select(&[Quality::Exact, Quality::Fast][..]),
        views in proptest::option::of(1..4_u32),
        exif in any::<bool>(),
        with_index in any::<bool>(),
    ) {
        let mut bytes = if with_index { indexed(&data(name)) } else { data(name) };
        let at = |share: f64, bytes: &[u8]| (share * bytes.len() as f64) as usize;
        for (share, value) in damage {
            let at = at(share, &bytes);
            bytes[at] = value;
        }
        if let Some(share) = cut {
            bytes.truncate(at(share, &bytes));
        }
        let plan = ImagePlan::new(ImageSpec { quality, views, exif, ..random_crop() });
        let mut scratch = Scratch::default();
        let outcome = plan.prepare(&bytes, &Draw { position, ..DRAW }, &mut scratch);
        match outcome {
            Ok(ready) => {
                prop_assert_eq!(Some(ready.shape()), plan.row_shape());
                let mut out = vec![0; ready.shape().iter().product()];
                ready.finish(&mut out);
            }
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::BadSample),
        }
    }
}

#[test]
fn truncated_image_is_rejected_for_any_part() {
    let bytes = data("wide-420.jpg");
    let corner = Part { left: 0, top: 0, width: 8, height: 8 };
    for cut in [bytes.len() - 2, bytes.len() * 3 / 4] {
        let (mut jpeg, mut pixels) = (jpeg::Jpeg::default(), Pixels::default());
        let opened = Opened::new(&bytes[..cut], &mut jpeg, Form::Color, false).unwrap();
        let error = opened.decode(exactly(corner), &mut pixels).unwrap_err();
        assert!(error.to_string().contains("end"), "{error}");
    }
}

#[test]
fn normalised_floats_match_torchvision() {
    let spec = ImageSpec {
        size: Some((16, 24)),
        dtype: DType::Float32,
        mean: Some([0.485, 0.456, 0.406]),
        std: Some([0.229, 0.224, 0.225]),
        ..ImageSpec::default()
    };
    let (shape, ours) = render("wide-420.jpg", spec);
    let theirs = expected("wide-420.jpg.normalised-16x24.npy");
    assert_eq!(shape, theirs.shape);
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|four| f32::from_ne_bytes(*four)).collect()
    };
    let (ours, theirs) = (floats(&ours), floats(theirs.buffer.as_bytes()));
    // One step of 8 bits divided by the smallest deviation, and a rounding.
    let step = 1.0 / 255.0 / 0.224 + 1e-5;
    let exact = ours.iter().zip(&theirs).filter(|(a, b)| (*a - *b).abs() < 1e-6).count();
    assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() <= step));
    assert!(exact * 10 >= ours.len() * 7, "{exact} of {} are equal", ours.len());
}

#[test]
fn memory_of_a_large_image_is_freed() {
    let mut scratch = Scratch::default();
    scratch.pixels.make_room(Part::whole((1000, 1000)), 1);
    scratch.trim();
    assert_eq!(scratch.pixels.bytes.len(), 3_000_000, "what photographs need stays");
    scratch.pixels.make_room(Part::whole((5000, 5000)), 1);
    scratch.trim();
    assert_eq!(scratch.pixels.bytes.capacity(), 0);
}
