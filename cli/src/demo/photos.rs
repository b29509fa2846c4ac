//! Photo-like JPEG files with a class each, in WebDataset shards.
//!
//! A file is about as large, and about as slow to decode, as a photograph of its size. The class
//! shows in the colours, so that a model can learn it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytesize::ByteSize;
use forebay_decode::encode_jpeg;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_shard::pack::{Input, Limits, Packing};
use indicatif::ProgressBar;

use crate::{bar_style, cores};

/// ImageNet's most common size …
const SIZE: (u32, u32) = (500, 375);

/// … and a camera's usual quality.
const QUALITY: u8 = 90;

/// Classes, each a hue.
const CLASSES: u64 = 10;

/// Widths of the drawing's cells in pixels: photographs have detail at every scale, the coarser
/// the stronger.
const CELLS: [usize; 5] = [240, 120, 60, 28, 12];

/// Strength of a cell's detail is its width to this power …
const CELL_POWER: f32 = 0.4;

/// … times this, in grey levels.
const CELL_LEVELS: f32 = 6.0;

/// Standard deviation of the finest detail in grey levels: files of about 85 kB.
const GRAIN: f32 = 16.0;

/// Standard deviation of a sum of four bytes, each even over its 256 values.
const FOUR_BYTES: f32 = 147.8;

/// Mean of such a sum.
const FOUR_BYTES_MEAN: f32 = 510.0;

/// Disks in a picture, which give it edges.
const DISKS: usize = 6;

/// Photos of a shard: shards of some 20 MB, so that a short demonstration has several.
const PER_SHARD: u64 = 256;

/// Photos that were made.
pub(super) struct Made {
    pub(super) shards: usize,
    pub(super) bytes: u64,
}

/// Makes `count` photos in `loose` on all cores and packs them into `train-NNNNNN.tar` in `packed`,
/// unless `check` fails, which is asked before each one.
///
/// # Errors
/// That of `check`; else the error of writing a file.
pub(super) fn shards(
    (loose, packed): (&Path, &Path),
    count: u64,
    check: &(dyn Fn() -> Result<()> + Sync),
) -> Result<Made> {
    for folder in [loose, packed] {
        std::fs::create_dir_all(folder)
            .doing("make a folder for photos")
            .map_err(|error| error.at("folder", folder.display()))?;
    }
    let bar = ProgressBar::new(count)
        .with_style(bar_style("making photos {bar:40} {pos}/{len}  {elapsed} (left {eta})"));
    let next = AtomicU64::new(0);
    let made = std::thread::scope(|scope| {
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                check()?;
                write(loose, number)?;
                bar.inc(1);
            }
        };
        let threads: Vec<_> = (0..cores().get()).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            let died = |_| Error::new(ErrorKind::Closed, "a thread that makes photos panicked");
            thread.join().map_err(died)?
        })
    });
    bar.finish_and_clear();
    made?;
    let packing = Packing {
        input: Input::Folder(loose.to_owned()),
        pattern: packed.join("train-{:06d}.tar").to_string_lossy().into_owned(),
        limits: Limits { samples: PER_SHARD, bytes: u64::MAX },
        shuffle: None,
        // It names them where they are now, which is not for long.
        manifest: Some(packed.with_extension("json")),
        jpeg_index: true,
        threads: cores(),
    };
    let plan = packing.plan()?;
    plan.pack(&|_| {})?;
    Ok(Made { shards: plan.shards().count(), bytes: plan.bytes() })
}

impl std::fmt::Display for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { shards, bytes } = self;
        write!(f, "{shards} shards, {}", ByteSize(*bytes).display().si())
    }
}

/// Returns the path of a photo, or of its class, before it is packed.
pub(super) fn file(folder: &Path, number: u64, extension: &str) -> PathBuf {
    folder.join(format!("{number:08}.{extension}"))
}

/// Writes a photo and its class.
fn write(folder: &Path, number: u64) -> Result<()> {
    let class = number % CLASSES;
    let files = [
        ("jpg", encode_jpeg(&draw(number, class), SIZE, QUALITY)?),
        ("cls", class.to_string().into()),
    ];
    files.into_iter().try_for_each(|(extension, bytes)| {
        let path = file(folder, number, extension);
        std::fs::write(&path, bytes)
            .doing("write a photo")
            .map_err(|error| error.at("file", path.display()))
    })
}

/// Draws a photo of a class, row after row; equal numbers give equal pixels.
fn draw(number: u64, class: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let (width, height) = (SIZE.0 as usize, SIZE.1 as usize);
    let hue = (class as f32 + random.f32() * 0.6 - 0.3) / CLASSES as f32;
    let mut levels: Vec<[f32; 3]> = vec![colour(hue, 0.5, 0.55); width * height];
    for _ in 0..DISKS {
        disk(&mut levels, (width, height), hue, &mut random);
    }
    for cell in CELLS {
        detail(&mut levels, (width, height), cell, &mut random);
    }
    let byte = |level: f32, grain: f32| (level + grain).clamp(0.0, 255.0) as u8;
    levels
        .into_iter()
        .flat_map(|[red, green, blue]| {
            let bits = random.u128(..).to_le_bytes();
            let grain = |at: usize| {
                let sum: u16 = bits[at..at + 4].iter().map(|byte| u16::from(*byte)).sum();
                (f32::from(sum) - FOUR_BYTES_MEAN) * (GRAIN / FOUR_BYTES)
            };
            [byte(red, grain(0)), byte(green, grain(4)), byte(blue, grain(8))]
        })
        .collect()
}

/// Paints an ellipse of a colour near `hue`.
fn disk(
    levels: &mut [[f32; 3]],
    (width, height): (usize, usize),
    hue: f32,
    random: &mut fastrand::Rng,
) {
    let (x, y) = (random.usize(..width) as f32, random.usize(..height) as f32);
    let radius = |random: &mut fastrand::Rng| random.u32(20..200) as f32;
    let (wide, high) = (radius(random), radius(random));
    let part = |random: &mut fastrand::Rng| 0.3 + 0.7 * random.f32();
    let colour = colour(hue + 0.1 * (random.f32() - 0.5), part(random), part(random));
    for (row, line) in levels.chunks_exact_mut(width).enumerate() {
        let down = (row as f32 - y) / high;
        let half = wide * (1.0 - down * down).max(0.0).sqrt();
        let side = |at: f32| (at.max(0.0) as usize).min(width);
        let (left, right) = (side(x - half), side(x + half));
        line.get_mut(left..right).into_iter().flatten().for_each(|pixel| *pixel = colour);
    }
}

/// Adds smooth detail whose cells are `cell` pixels wide.
fn detail(
    levels: &mut [[f32; 3]],
    (width, height): (usize, usize),
    cell: usize,
    random: &mut fastrand::Rng,
) {
    let strength = CELL_LEVELS * (cell as f32).powf(CELL_POWER);
    let (across, down) = (width / cell + 2, height / cell + 2);
    let node = |random: &mut fastrand::Rng| [(); 3].map(|()| (random.f32() - 0.5) * strength);
    let nodes: Vec<[f32; 3]> = (0..across * down).map(|_| node(random)).collect();
    // The place of every pixel between two nodes, eased so that no cell's edge shows.
    let place = |at: usize| {
        let part = (at % cell) as f32 / cell as f32;
        (at / cell, part * part * (3.0 - 2.0 * part))
    };
    let between = |one: [f32; 3], other: [f32; 3], part: f32| {
        [0, 1, 2].map(|channel| one[channel] + (other[channel] - one[channel]) * part)
    };
    let columns: Vec<_> = (0..width).map(place).collect();
    for (y, line) in levels.chunks_exact_mut(width).enumerate() {
        let (row, part) = place(y);
        let (upper, lower) = (&nodes[row * across..], &nodes[(row + 1) * across..]);
        let edge: Vec<_> = (0..across).map(|x| between(upper[x], lower[x], part)).collect();
        for (pixel, (x, part)) in line.iter_mut().zip(&columns) {
            let added = between(edge[*x], edge[*x + 1], *part);
            pixel.iter_mut().zip(added).for_each(|(level, more)| *level += more);
        }
    }
}

/// Returns the grey levels of a colour by hue, saturation and value, each from 0 to 1.
fn colour(hue: f32, saturation: f32, value: f32) -> [f32; 3] {
    // Red, green and blue are a third of the circle apart.
    [0.0, 1.0 / 3.0, 2.0 / 3.0].map(|shift: f32| {
        let distance = ((hue - shift).rem_euclid(1.0) - 0.5).abs();
        let share = (distance * 6.0 - 1.0).clamp(0.0, 1.0);
        255.0 * value * (1.0 - saturation * (1.0 - share))
    })
}

#[cfg(test)]
mod tests {
    use super::super::stop::ended;
    use super::*;

    #[test]
    fn photo_is_as_large_as_a_photograph_of_its_size() {
        let sizes = (0..4).map(|number| {
            let pixels = draw(number, number % CLASSES);
            assert_eq!(pixels, draw(number, number % CLASSES));
            encode_jpeg(&pixels, SIZE, QUALITY).unwrap().len()
        });
        let mean = sizes.sum::<usize>() / 4;
        assert!((60_000..110_000).contains(&mean), "{mean} bytes");
    }

    #[test]
    fn class_shows_in_the_colours() {
        let strongest = |number, class| {
            let sums = draw(number, class).chunks_exact(3).fold([0_u64; 3], |mut sums, pixel| {
                sums.iter_mut().zip(pixel).for_each(|(sum, level)| *sum += u64::from(*level));
                sums
            });
            (0..3).max_by_key(|channel| sums[*channel])
        };
        assert_eq!(strongest(10, 0), Some(0), "red");
        assert_eq!(strongest(13, 3), Some(1), "green");
        assert_eq!(strongest(17, 7), Some(2), "blue");
    }

    #[test]
    fn signal_ends_the_making() {
        let folder = tempfile::tempdir().unwrap();
        let places = (folder.path().join("loose"), folder.path().join("packed"));
        let made = shards((&places.0, &places.1), 8, &|| Err(ended()));
        assert_eq!(made.err().map(|error| error.kind()), Some(ErrorKind::Closed));
    }
}
