//! Most that an index of a JPEG's scan could save.
//!
//! A crop needs the entropy-coded rows above it and the blocks beside it only to find its own. An
//! index of bit positions would make them needless. Here they are cut away beforehand, without
//! loss, and the same crop is decoded from what is left. Photos and variants take turns on one
//! core.
//!
//! ```text
//! cargo bench -p forebay-decode --bench scan -- photos.tar
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]
#![allow(unsafe_code, reason = "libjpeg-turbo's regions and cuts have no safe interface")]

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::io::Read;
use std::time::{Duration, Instant};

use turbojpeg_sys as c;

/// Rounds over all photos.
const ROUNDS: usize = 9;

/// Photos taken from the shard.
const PHOTOS: usize = 256;

/// Side of the largest block decoded as one, with 4:2:0 chroma.
const BLOCK: u32 = 16;

/// Share of the area and aspect ratio of a random crop, as torchvision's defaults.
const SCALE: (f64, f64) = (0.08, 1.0);
const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

#[derive(Debug, Clone, Copy)]
struct Region {
    left: u32,
    top: u32,
    width: u32,
    height: u32,
}

impl Region {
    fn raw(self) -> c::tjregion {
        let side = |pixels: u32| c_int::try_from(pixels).unwrap();
        c::tjregion {
            x: side(self.left),
            y: side(self.top),
            w: side(self.width),
            h: side(self.height),
        }
    }
}

/// Numbers below 1, by SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, (low, high): (f64, f64)) -> f64 {
        low + (high - low) * self.next()
    }

    /// A random crop of an image, its left and top at a block's edge.
    fn crop(&mut self, width: u32, height: u32) -> Region {
        let area = f64::from(width) * f64::from(height);
        loop {
            let target = area * self.between(SCALE);
            let ratio = self.between((RATIO.0.ln(), RATIO.1.ln())).exp();
            let (w, h) = ((target * ratio).sqrt() as u32, (target / ratio).sqrt() as u32);
            if w > 0 && h > 0 && w <= width && h <= height {
                let left = (self.next() * f64::from(width - w)) as u32 / BLOCK * BLOCK;
                let top = (self.next() * f64::from(height - h)) as u32 / BLOCK * BLOCK;
                return Region { left, top, width: w, height: h };
            }
        }
    }
}

/// A handle of the library, for decoding and for cuts.
struct Turbo(*mut c_void);

impl Turbo {
    fn new(what: c::TJINIT) -> Self {
        // SAFETY: it takes no memory of ours.
        let handle = unsafe { c::tj3Init(what as c_int) };
        assert!(!handle.is_null());
        Self(handle)
    }

    fn size(&self, bytes: &[u8]) -> (u32, u32) {
        // SAFETY: the handle lives, and pointer and length are those of a slice.
        unsafe {
            assert_eq!(c::tj3DecompressHeader(self.0, bytes.as_ptr(), bytes.len() as _), 0);
            let side = |name| u32::try_from(c::tj3Get(self.0, name as c_int)).unwrap();
            (side(c::TJPARAM_TJPARAM_JPEGWIDTH), side(c::TJPARAM_TJPARAM_JPEGHEIGHT))
        }
    }

    /// The blocks of a region as a JPEG of their own.
    fn cut(&self, bytes: &[u8], region: Region) -> Vec<u8> {
        // SAFETY: all fields are numbers or pointers that may be null.
        let mut transform: c::tjtransform = unsafe { std::mem::zeroed() };
        (transform.r, transform.options) = (region.raw(), c::TJXOPT_CROP as c_int);
        let (mut out, mut len) = (std::ptr::null_mut::<u8>(), 0);
        // SAFETY: the handle lives, pointer and length of the input are those of a slice; the
        // library allocates the output, which is copied and freed.
        unsafe {
            let done = c::tj3Transform(
                self.0,
                bytes.as_ptr(),
                bytes.len() as _,
                1,
                &raw mut out,
                &raw mut len,
                &raw const transform,
            );
            assert_eq!(done, 0);
            let cut = std::slice::from_raw_parts(out, len as usize).to_vec();
            c::tj3Free(out.cast());
            cut
        }
    }

    fn decode(&self, bytes: &[u8], region: Region, pixels: &mut [u8]) {
        let row = region.width as usize * 3;
        assert!(pixels.len() >= region.height as usize * row);
        // SAFETY: the handle lives, pointer and length of the input are those of a slice; the
        // library writes the region's rows, for which `pixels` has room.
        unsafe {
            assert_eq!(c::tj3DecompressHeader(self.0, bytes.as_ptr(), bytes.len() as _), 0);
            assert_eq!(c::tj3SetCroppingRegion(self.0, region.raw()), 0);
            let (input, pitch) = (bytes.as_ptr(), row as c_int);
            let into = pixels.as_mut_ptr();
            let rgb = c::TJPF_TJPF_RGB;
            assert_eq!(c::tj3Decompress8(self.0, input, bytes.len() as _, into, pitch, rgb), 0);
        }
    }
}

impl Drop for Turbo {
    fn drop(&mut self) {
        // SAFETY: the handle lives until here, without another owner.
        unsafe { c::tj3Destroy(self.0) }
    }
}

/// A photo's variants, each with the region that shows the same crop.
struct Variants([(Vec<u8>, Region); 3]);

const NAMES: [&str; 3] = ["as it is", "without the rows above", "without the blocks beside, too"];

impl Variants {
    fn of(photo: Vec<u8>, cutter: &Turbo, draw: &mut Draw) -> Self {
        let (width, height) = cutter.size(&photo);
        let crop = draw.crop(width, height);
        let below = Region { left: 0, top: crop.top, width, height: height - crop.top };
        let rows = cutter.cut(&photo, below);
        let beside = (crop.left + crop.width).next_multiple_of(BLOCK).min(width);
        let blocks = Region { left: crop.left, width: beside - crop.left, ..below };
        let blocks = cutter.cut(&photo, blocks);
        let (at_top, at_corner) = (Region { top: 0, ..crop }, Region { top: 0, left: 0, ..crop });
        Self([(photo, crop), (rows, at_top), (blocks, at_corner)])
    }
}

/// Shifts every byte by some bits, with its stuffed zeros. A decoder that starts in the midst of a
/// scan does so, if libjpeg is to read from a byte's edge.
fn shift(bytes: &[u8], into: &mut Vec<u8>) {
    into.clear();
    let mut carried = 0_u32;
    let mut at = 0;
    while at < bytes.len() {
        let byte = u32::from(bytes[at]);
        at += if byte == 0xFF { 2 } else { 1 };
        let moved = (carried << 8 | byte) >> 3;
        into.push(moved as u8);
        if moved as u8 == 0xFF {
            into.push(0);
        }
        carried = byte & 7;
    }
}

fn main() {
    let path = std::env::args().nth(1).expect("the path of a tar with photos");
    let mut archive = tar::Archive::new(std::fs::File::open(path).unwrap());
    let (cutter, mut draw) = (Turbo::new(c::TJINIT_TJINIT_TRANSFORM), Draw(1));
    let mut photos = Vec::new();
    for member in archive.entries().unwrap() {
        let mut member = member.unwrap();
        if photos.len() < PHOTOS && member.path().unwrap().extension().is_some_and(|e| e == "jpg") {
            let mut photo = Vec::new();
            member.read_to_end(&mut photo).unwrap();
            photos.push(Variants::of(photo, &cutter, &mut draw));
        }
    }
    let decoder = Turbo::new(c::TJINIT_TJINIT_DECOMPRESS);
    let (mut pixels, mut shifted) = (vec![0; 64 << 20], Vec::new());
    let mut times = vec![[Duration::ZERO; 4]; ROUNDS];
    for round in &mut times {
        for Variants(variants) in &photos {
            for (took, (bytes, region)) in round.iter_mut().zip(variants) {
                let begin = Instant::now();
                decoder.decode(bytes, *region, black_box(&mut pixels));
                *took += begin.elapsed();
            }
            let begin = Instant::now();
            shift(&variants[1].0, black_box(&mut shifted));
            round[3] += begin.elapsed();
        }
    }
    let median = |which: usize| {
        let mut all: Vec<_> = times.iter().map(|round| round[which]).collect();
        all.sort_unstable();
        all[ROUNDS / 2].as_secs_f64() * 1e3 / photos.len() as f64
    };
    println!("{} photos, decoded to the crop's pixels, ms each", photos.len());
    for (at, name) in NAMES.iter().enumerate() {
        let bytes: usize = photos.iter().map(|Variants(all)| all[at].0.len()).sum();
        println!("  {name:32} {:.3}  ({} bytes)", median(at), bytes / photos.len());
    }
    println!("  {:32} {:.3}", "shift of what is below, by bits", median(3));
}
