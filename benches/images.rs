//! Time from a photo's compressed bytes to its row of a batch.
//!
//! The decoder works as in a loader, with nothing around it: no daemon, no Python. Shapes take
//! turns, each on every photo of the shard, in batches far larger than the processor's caches.
//! ```text
//! cargo bench --workspace --bench images -- photos.tar
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use forebay_decode::{
    BufferPool, Crop, DType, Decoder, FieldKind, FieldSpec, ImageSpec, Layout, Record,
};

/// Photos of a batch: as float32 they are 154 MB.
const BATCH: usize = 256;

/// Idle memory that is kept between batches: more than one of any shape.
const IDLE_BYTES: usize = 1 << 30;

/// Decodes the photos of a shard.
#[derive(Parser)]
struct Arguments {
    /// A tar with members that end in .jpg.
    shard: PathBuf,
    /// Decode threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Rounds; each runs every shape once.
    #[arg(long, default_value_t = 9)]
    rounds: u64,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let photos = photos(&arguments);
    let bytes: usize = photos.iter().map(Vec::len).sum();
    println!("{} photos of {} bytes on average", photos.len(), bytes / photos.len());
    let fields: Vec<[(&str, &[u8]); 1]> =
        photos.iter().map(|photo| [("jpg", &photo[..])]).collect();
    let records: Vec<Record<'_>> =
        (0..).zip(&fields).map(|(at, fields)| Record::unplaced(at, fields)).collect();
    let pool = BufferPool::new(IDLE_BYTES);
    let decoders = shapes().map(|(name, spec)| {
        let field = FieldSpec::new("image", "jpg", FieldKind::Image(spec));
        (name, Decoder::new(vec![field], arguments.threads, &pool, None).unwrap(), Vec::new())
    });
    let mut decoders = Vec::from(decoders);
    for epoch in 0..arguments.rounds {
        for (_, decoder, times) in &mut decoders {
            let start = Instant::now();
            for batch in records.chunks(BATCH) {
                let decoded = decoder.decode(batch, &[], 0, epoch).unwrap();
                assert!(decoded.bad.is_empty(), "{}", decoded.bad[0].error);
            }
            times.push(start.elapsed().as_secs_f64() * 1e3 / records.len() as f64);
        }
    }
    println!("{:<28} {:>10} {:>10} {:>10}", "to", "ms a photo", "lowest", "highest");
    for (name, _, mut times) in decoders {
        times.sort_by(f64::total_cmp);
        let (lowest, highest) = (times[0], times[times.len() - 1]);
        println!("{name:<28} {:>10.3} {lowest:>10.3} {highest:>10.3}", times[times.len() / 2]);
    }
}

/// The shape of training, the same with less to write, and another filter.
fn shapes() -> [(&'static str, ImageSpec); 5] {
    let random = Crop::Random { scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };
    let train = ImageSpec {
        size: Some((224, 224)),
        crop: random,
        flip: true,
        dtype: DType::Float32,
        mean: Some([0.485, 0.456, 0.406]),
        std: Some([0.229, 0.224, 0.225]),
        ..ImageSpec::default()
    };
    let bytes = ImageSpec { dtype: DType::Uint8, mean: None, std: None, ..train.clone() };
    let interleaved = ImageSpec { layout: Layout::Nhwc, ..bytes.clone() };
    let half = ImageSpec { dtype: DType::Bfloat16, ..train.clone() };
    let middle = Crop::Center { resize: Some(256) };
    let evaluate = ImageSpec { crop: middle, flip: false, ..train.clone() };
    [
        ("random 224, float32", train),
        ("random 224, bfloat16", half),
        ("random 224, uint8", bytes),
        ("random 224, uint8, NHWC", interleaved),
        ("resize 256, middle, float32", evaluate),
    ]
}

/// The photos of the shard.
fn photos(arguments: &Arguments) -> Vec<Vec<u8>> {
    let mut archive = tar::Archive::new(std::fs::File::open(&arguments.shard).unwrap());
    let mut photos = Vec::new();
    for member in archive.entries().unwrap() {
        let mut member = member.unwrap();
        if member.path().unwrap().extension().is_some_and(|extension| extension == "jpg") {
            let mut photo = Vec::new();
            member.read_to_end(&mut photo).unwrap();
            photos.push(photo);
        }
    }
    assert!(!photos.is_empty(), "the shard has no photos");
    photos
}
