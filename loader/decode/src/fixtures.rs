//! Tests: the files in `tests/data`, and the CPU path's result for one.

use std::path::PathBuf;

use crate::draw::Draw;
use crate::image::{ImagePlan, Scratch};

/// JPEG files that any decoder accepts: every sampling, gray, and images too narrow for adjacent
/// colour samples.
pub(crate) const PLAIN: [&str; 13] = [
    "wide-420.jpg",
    "tall-444.jpg",
    "tall-422.jpg",
    "tall-440.jpg",
    "gray.jpg",
    "tiny-1-420.jpg",
    "tiny-1-422.jpg",
    "tiny-3-420.jpg",
    "tiny-3-422.jpg",
    "tiny-4-420.jpg",
    "tiny-4-422.jpg",
    "tiny-5-420.jpg",
    "tiny-5-422.jpg",
];

pub(crate) fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns shape and elements of the CPU's row of a file.
pub(crate) fn by_cpu(bytes: &[u8], plan: &ImagePlan, draw: &Draw) -> (Vec<usize>, Vec<u8>) {
    let mut scratch = Scratch::default();
    let ready = plan.prepare(bytes, draw, &mut scratch).unwrap();
    let shape = ready.shape();
    let mut out = vec![0; shape.iter().product::<usize>() * plan.dtype().size()];
    ready.finish(&mut out);
    (shape, out)
}
