//! Tests: the pixels are torchvision's, and scratch stays small. `tests/data/README.md` says how the expected ones were made.

use std::path::PathBuf;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::buffer::BufferPool;
use crate::column::Tensor;
use crate::crop::Area;
use crate::npy;
use crate::spec::Crop;

const DRAW: Draw = Draw { seed: 0, epoch: 0, stream: 0, position: 0, field: 0, view: 0 };

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn expected(name: &str) -> Tensor {
    npy::array(&data(name), &BufferPool::new(0)).unwrap()
}

/// Shape and elements of `name` under `spec`.
fn render(name: &str, spec: ImageSpec) -> (Vec<usize>, Vec<u8>) {
    let plan = ImagePlan::new(spec);
    let mut scratch = Scratch::default();
    let ready = plan.prepare(&data(name), &DRAW, &mut scratch).unwrap();
    let mut out = vec![0; ready.shape().iter().product::<usize>() * plan.dtype().size()];
    ready.finish(&mut out);
    (ready.shape().to_vec(), out)
}

/// A file's size, and the pixels that were decoded for a part of it.
fn decoded(bytes: &[u8], part: impl Fn(Size) -> Part) -> (Size, Pixels) {
    let (mut jpeg, mut pixels) = (jpeg::Jpeg::default(), Pixels::default());
    let opened = Opened::new(bytes, &mut jpeg).unwrap();
    let size = opened.size();
    opened.decode(part(size), &mut pixels).unwrap();
    (size, pixels)
}

/// The rows of `part` in what was decoded.
fn rows(pixels: &Pixels, part: Part) -> Vec<&[u8]> {
    let Part { left, top, width, .. } = pixels.part;
    let bytes = |pixels: u32| pixels as usize * CHANNELS;
    let from = bytes(part.left - left);
    let rows = pixels.as_bytes().chunks_exact(bytes(width)).skip((part.top - top) as usize);
    rows.take(part.height as usize).map(|row| &row[from..from + bytes(part.width)]).collect()
}

/// The largest and the mean difference in steps of 1/255.
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
    let names = [
        "wide-420.jpg",
        "wide-progressive.jpg",
        "tall-444.jpg",
        "tall-422.jpg",
        "gray.jpg",
        "cmyk.jpg",
        "rgb.png",
        "rgba.png",
        "palette.png",
        "gray.png",
        "gray16.png",
        "bits.png",
    ];
    for name in names {
        let (shape, pixels) = render(name, ImageSpec::default());
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
}

/// Two roundings to 8 bits, horizontal and vertical, may each fall the other way.
const RESIZE_LIMIT: (u8, f64) = (1, 0.25);

#[test]
fn resize_and_center_crop_are_torchvisions() {
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

#[derive(Deserialize)]
struct Boxed {
    image: String,
    r#box: [u32; 4],
    expected: String,
}

#[test]
fn a_crop_is_resized_as_if_nothing_lay_around_it() {
    let boxes: Vec<Boxed> = serde_json::from_slice(&data("boxes.json")).unwrap();
    assert_eq!(boxes.len(), 4);
    for Boxed { image, r#box: [top, left, height, width], expected } in boxes {
        let (left, top) = (f64::from(left), f64::from(top));
        let source = Area { left, top, width: f64::from(width), height: f64::from(height) };
        let canvas = (64, 64);
        let placement =
            Placement { source, isolated: true, content: canvas, corner: (0, 0), canvas };
        let mut resize = Resize::default();
        let (size, pixels) = decoded(&data(&image), |size| placement.part(size));
        let resized = resize.run(&pixels, size, &placement).unwrap();
        let mut planes = Vec::new();
        for channel in 0..CHANNELS {
            planes.extend(resized.iter().skip(channel).step_by(CHANNELS));
        }
        assert_close(&expected, &(vec![CHANNELS, 64, 64], planes), RESIZE_LIMIT);
    }
}

const JPEGS: [&str; 6] = [
    "wide-420.jpg",
    "wide-progressive.jpg",
    "tall-444.jpg",
    "tall-422.jpg",
    "gray.jpg",
    "cmyk.jpg",
];

proptest! {
    #[test]
    fn a_part_has_the_pixels_that_it_has_in_the_whole(
        name in proptest::sample::select(&JPEGS[..]),
        corners in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
    ) {
        let bytes = data(name);
        let (size, whole) = decoded(&bytes, Part::whole);
        let at = |share: f64, length: u32| (share * f64::from(length)) as u32;
        let (a, b) = (at(corners.0, size.1), at(corners.1, size.1));
        let (c, d) = (at(corners.2, size.0), at(corners.3, size.0));
        let (left, top) = (a.min(b), c.min(d));
        let part = Part { left, top, width: a.abs_diff(b) + 1, height: c.abs_diff(d) + 1 };
        let (_, pixels) = decoded(&bytes, |_| part);
        prop_assert!(rows(&pixels, part) == rows(&whole, part), "{name}: {part:?}");
        prop_assert_eq!(pixels.part.height, part.height, "no row too many");
        prop_assert!(pixels.part.width <= part.width + 2 + 2 + 15, "{:?}", pixels.part);
    }
}

#[test]
fn what_was_cut_off_is_refused_whatever_part_is_wanted() {
    let bytes = data("wide-420.jpg");
    let corner = Part { left: 0, top: 0, width: 8, height: 8 };
    for cut in [bytes.len() - 2, bytes.len() * 3 / 4] {
        let (mut jpeg, mut pixels) = (jpeg::Jpeg::default(), Pixels::default());
        let opened = Opened::new(&bytes[..cut], &mut jpeg).unwrap();
        let error = opened.decode(corner, &mut pixels).unwrap_err();
        assert!(error.to_string().contains("end"), "{error}");
    }
}

#[test]
fn the_whole_chain_to_normalised_floats_is_torchvisions() {
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
fn one_large_image_does_not_keep_its_memory() {
    let mut scratch = Scratch::default();
    scratch.pixels.make_room(Part::whole((1000, 1000)));
    scratch.trim();
    assert_eq!(scratch.pixels.bytes.len(), 3_000_000, "what photographs need stays");
    scratch.pixels.make_room(Part::whole((5000, 5000)));
    scratch.trim();
    assert_eq!(scratch.pixels.bytes.capacity(), 0);
}
