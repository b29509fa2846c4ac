//! Samples as they lie in a slab, and the files of which they consist.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use forebay_decode::{Decoded, Decoder, Record};
use forebay_wire::slab::Slab;
use rustix::fs::MemfdFlags;

/// Bytes between one file and the next, as headers of a tar.
pub(crate) const GAP: usize = 512;

pub(crate) fn data(name: &str) -> Vec<u8> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../loader/decode/tests/data");
    std::fs::read(home.join(name)).unwrap()
}

/// A JPEG with a comment.
pub(crate) fn saying(name: &str, comment: &str) -> Vec<u8> {
    let mut file = data(name);
    let mut segment = vec![0xff, 0xfe, 0, (comment.len() + 2) as u8];
    segment.extend_from_slice(comment.as_bytes());
    file.splice(2..2, segment);
    file
}

/// Samples as they lie in a slab.
pub(crate) struct Samples {
    pub(crate) slab: Arc<Slab>,
    /// Each one's fields: their names, and from where to where they lie.
    fields: Vec<Vec<(&'static str, usize, usize)>>,
}

impl Samples {
    pub(crate) fn new(samples: &[Vec<(&'static str, Vec<u8>)>]) -> Self {
        Self::from(0, samples)
    }

    /// The first of them `at` so many bytes, of which nothing is stored.
    pub(crate) fn from(mut at: usize, samples: &[Vec<(&'static str, Vec<u8>)>]) -> Self {
        let file = rustix::fs::memfd_create("samples", MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(file);
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        let mut fields = Vec::new();
        for sample in samples {
            let mut places = Vec::new();
            for (name, bytes) in sample {
                file.write_all(&[0xee; GAP]).unwrap();
                file.write_all(bytes).unwrap();
                places.push((*name, at + GAP, at + GAP + bytes.len()));
                at += GAP + bytes.len();
            }
            fields.push(places);
        }
        let slab = Slab::map(OwnedFd::from(file), at as u64).unwrap();
        Self { slab, fields }
    }

    /// Decodes them by `decoder`, from `position` on.
    pub(crate) fn decode(&self, decoder: &Decoder, position: u64) -> Decoded {
        let all = self.slab.get(0, self.slab.len() as u64).unwrap();
        let fields: Vec<Vec<(&str, &[u8])>> = self
            .fields
            .iter()
            .map(|sample| sample.iter().map(|(name, from, to)| (*name, &all[*from..*to])).collect())
            .collect();
        let records: Vec<Record<'_>> = fields
            .iter()
            .enumerate()
            .map(|(index, fields)| Record {
                key: "k",
                url: "s3://b/a.tar",
                stream: 0,
                position: position + index as u64,
                offset: None,
                fields,
                has: &[],
            })
            .collect();
        decoder.decode(&records, all, 5, 1).unwrap()
    }
}

/// Returns one or two of each way to store an image.
pub(crate) fn mixed() -> Vec<Vec<(&'static str, Vec<u8>)>> {
    let files = [
        "wide-420.jpg",
        "gray.jpg",
        "wide-progressive.jpg",
        "tall-444.jpg",
        "exif-6.jpg",
        "tall-422.jpg",
        "cmyk.jpg",
        "tall-440.jpg",
        "tiny-3-420.jpg",
        "gray.jpg",
    ];
    let jpeg = files.iter().map(|name| ("jpg", data(name)));
    let images = jpeg.chain([("png", data("rgb.png"))]);
    let sample = |(index, image): (usize, (&'static str, Vec<u8>))| {
        vec![image, ("cls", format!("{}", index * 7).into_bytes())]
    };
    images.enumerate().map(sample).collect()
}

/// A NumPy file of version 1, whose elements begin where the widest loads do in it.
pub(crate) fn npy(descr: &str, order: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let text = format!("{text:<117}\n");
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), elements].concat()
}
