//! Savings by an index of a JPEG's scan (`cache/jpeg`).
//!
//! A crop needs the entropy-coded rows above it and the blocks beside it only to find its own. An
//! index makes them needless: the crop's blocks are cut out without loss and decoded like any JPEG.
//! The same blocks, cut beforehand by libjpeg-turbo, show the most that any index can save. Photos
//! and variants take turns on one core.
//!
//! Cuts have a column and a row of blocks more on each side, as smooth chroma upsampling reads
//! them. Their pixels are compared with those of the whole.
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

use forebay_jpeg::{Indexed, add_index};
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

/// A photo, and a crop of it.
struct Photo {
    bytes: Vec<u8>,
    crop: Region,
    /// The crop and its neighbours.
    wide: Region,
    /// The same cut out by libjpeg-turbo: without the rows above, without the blocks beside.
    cuts: [(Vec<u8>, Region); 2],
    indexed: Vec<u8>,
}

impl Photo {
    /// Returns none for a file of which no index can be made.
    fn of(bytes: Vec<u8>, cutter: &Turbo, draw: &mut Draw) -> Option<Self> {
        let (width, height) = cutter.size(&bytes);
        let crop = draw.crop(width, height);
        let (left, top) = (crop.left.saturating_sub(BLOCK), crop.top.saturating_sub(BLOCK));
        let right = (crop.left + crop.width).next_multiple_of(BLOCK) + BLOCK;
        let bottom = (crop.top + crop.height).next_multiple_of(BLOCK) + BLOCK;
        let wide =
            Region { left, top, width: right.min(width) - left, height: bottom.min(height) - top };
        let rows = Region { left: 0, width, ..wide };
        let cuts = [(rows, Region { top: 0, ..wide }), (wide, Region { top: 0, left: 0, ..wide })]
            .map(|(blocks, shown)| (cutter.cut(&bytes, blocks), shown));
        let mut indexed = Vec::new();
        (add_index(&bytes, &mut indexed) > 0).then_some(())?;
        Some(Self { bytes, crop, wide, cuts, indexed })
    }

    /// Cuts the blocks out by the index, and returns the place of the region in them; `None` if
    /// that would not pay.
    fn cut(&self, into: &mut Vec<u8>) -> Option<Region> {
        let Region { left, top, width, height } = self.wide;
        let (x, y) = (left..left + width, top..top + height);
        let corner = Indexed::open(&self.indexed).unwrap().cut(x, y, into)?;
        Some(Region { left: left - corner.left, top: top - corner.top, ..self.wide })
    }

    /// Checks that the crop's pixels are the same from each cut.
    fn check(&self, decoder: &Turbo) {
        let Self { crop, wide, .. } = self;
        let shown = |bytes: &[u8], region: Region| {
            let row = region.width as usize * 3;
            let mut pixels = vec![0; region.height as usize * row];
            decoder.decode(bytes, region, &mut pixels);
            let (left, top) =
                ((crop.left - wide.left) as usize * 3, (crop.top - wide.top) as usize);
            let rows = pixels.chunks_exact(row).skip(top).take(crop.height as usize);
            rows.flat_map(|row| row[left..left + crop.width as usize * 3].to_vec())
                .collect::<Vec<_>>()
        };
        let whole = shown(&self.bytes, *wide);
        let mut cut = Vec::new();
        if let Some(region) = self.cut(&mut cut) {
            assert!(shown(&cut, region) == whole, "other pixels");
        }
    }
}

/// Times and bytes of one way to the crop's pixels, summed over photos.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    cut: Duration,
    decoded: Duration,
    bytes: usize,
}

/// Ways: the whole file, two cuts made beforehand, and cuts by the index.
const WAYS: usize = 4;

/// Plays all photos once, in turns.
fn round(photos: &[Photo], decoder: &Turbo, pixels: &mut [u8]) -> [Sum; WAYS] {
    let mut sums = [Sum::default(); WAYS];
    let mut cut = Vec::new();
    for photo in photos {
        let ready = [(&photo.bytes, photo.wide)];
        let ready =
            ready.into_iter().chain(photo.cuts.iter().map(|(bytes, shown)| (bytes, *shown)));
        for (sum, (bytes, region)) in sums.iter_mut().zip(ready) {
            sum.play(bytes, region, decoder, pixels);
        }
        let begin = Instant::now();
        let region = photo.cut(&mut cut);
        let [.., sum] = &mut sums;
        sum.cut += begin.elapsed();
        match region {
            Some(region) => sum.play(&cut, region, decoder, pixels),
            None => sum.play(&photo.indexed, photo.wide, decoder, pixels),
        }
    }
    sums
}

impl Sum {
    fn play(&mut self, bytes: &[u8], region: Region, decoder: &Turbo, pixels: &mut [u8]) {
        let begin = Instant::now();
        decoder.decode(bytes, region, black_box(pixels));
        self.decoded += begin.elapsed();
        self.bytes += bytes.len();
    }
}

/// Returns the median of milliseconds a photo.
fn median(rounds: &[[Sum; WAYS]], photos: usize, of: impl Fn(&[Sum; WAYS]) -> Duration) -> f64 {
    let mut all: Vec<_> = rounds.iter().map(of).collect();
    all.sort_unstable();
    all[all.len() / 2].as_secs_f64() * 1e3 / photos as f64
}

fn photos(path: &str) -> Vec<Photo> {
    let mut archive = tar::Archive::new(std::fs::File::open(path).unwrap());
    let (cutter, mut draw) = (Turbo::new(c::TJINIT_TJINIT_TRANSFORM), Draw(1));
    let mut photos = Vec::new();
    for member in archive.entries().unwrap() {
        let mut member = member.unwrap();
        if photos.len() < PHOTOS && member.path().unwrap().extension().is_some_and(|e| e == "jpg") {
            let mut photo = Vec::new();
            member.read_to_end(&mut photo).unwrap();
            photos.extend(Photo::of(photo, &cutter, &mut draw));
        }
    }
    photos
}

fn main() {
    let path = std::env::args().nth(1).expect("the path of a tar with photos");
    let photos = photos(&path);
    let decoder = Turbo::new(c::TJINIT_TJINIT_DECOMPRESS);
    photos.iter().for_each(|photo| photo.check(&decoder));
    let mut pixels = vec![0; 64 << 20];
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round(&photos, &decoder, &mut pixels)).collect();
    let count = photos.len();
    println!("{count} photos, decoded to the pixels of a crop and its neighbours, ms each");
    println!("  way                              cut    decode  bytes");
    let names = [
        "as it is",
        "cut before: the rows above",
        "cut before: the blocks beside, too",
        "by the index, where it pays",
    ];
    for (at, name) in names.into_iter().enumerate() {
        let [cut, decoded] = [
            median(&rounds, count, |sums| sums[at].cut),
            median(&rounds, count, |sums| sums[at].decoded),
        ];
        println!("  {name:35} {cut:.3}  {decoded:.3}  {}", rounds[0][at].bytes / count);
    }
    let begin = Instant::now();
    let mut indexed = Vec::new();
    let mut added = 0;
    for photo in &photos {
        indexed.clear();
        added += add_index(black_box(&photo.bytes), &mut indexed);
    }
    let made = begin.elapsed().as_secs_f64() * 1e3 / count as f64;
    println!("  an index: made in {made:.3} ms, {} bytes a photo", added / count);
}
