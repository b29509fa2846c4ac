//! Step of the emulated accelerator: as fast a one as this machine can feed.
//!
//! Rule: the step follows from a measured rate of decoding; the accelerator's use stays a
//! measurement of the epochs.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_decode::{BufferPool, Decoder, Record};
use forebay_error::{Doing, Error, Result};

use super::photos;
use crate::bench::image_fields;
use crate::cores;

/// Photos of a step.
pub(super) const BATCH: u64 = 32;

/// Share of the machine's rate of decoding that the accelerator asks for. The rest is for what the
/// measurement leaves out (server, daemon, disk, checksums) and for other programs.
const SHARE: f64 = 0.5;

/// The shortest step: 640 photos/s, or 55 MB/s, which any disk delivers. A faster accelerator would
/// end an epoch of the usual 512 photos within a second, too soon to see anything.
const STEP_MIN: Duration = Duration::from_millis(50);

/// Time in which the rate is measured …
const MEASURED: Duration = Duration::from_millis(500);

/// … over three batches at least, so that the median leaves out one that was disturbed.
const ROUNDS_MIN: usize = 3;

/// Memory that is kept between batches: one of 32 photos as float32 has 19 MB.
const IDLE_BYTES: usize = 32 << 20;

/// Rate of decoding, and the step that was chosen by it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    /// Photos that all cores decode in a second.
    decoded: f64,
    /// Time that a step computes.
    pub(super) step: Duration,
}

impl Pace {
    /// Decodes the first photos of a folder as the loader will, on all cores.
    ///
    /// # Errors
    /// Errors of reading them; `Unavailable` if there are no threads.
    pub(super) fn measure(loose: &Path) -> Result<Self> {
        let read = |number| {
            let path = photos::file(loose, number, "jpg");
            let at = |error: Error| error.at("file", path.display());
            std::fs::read(&path).doing("read a photo").map_err(at)
        };
        let photos: Vec<_> = (0..BATCH).map(read).collect::<Result<_>>()?;
        let fields: Vec<[(&str, &[u8]); 2]> =
            photos.iter().map(|photo| [("jpg", &photo[..]), ("cls", b"0")]).collect();
        let records: Vec<Record<'_>> =
            (0..).zip(&fields).map(|(at, fields)| Record::unplaced(at, fields)).collect();
        let decoder =
            Decoder::new(image_fields(), cores().get(), &BufferPool::new(IDLE_BYTES), None)?;
        let (begin, mut times) = (Instant::now(), Vec::new());
        // The first one warms caches and threads, and is not counted.
        for epoch in 0.. {
            let start = Instant::now();
            let decoded = decoder.decode(&records, &[], 0, epoch)?;
            if let Some(bad) = decoded.bad.into_iter().next() {
                return Err(bad.error);
            }
            if epoch > 0 {
                times.push(start.elapsed());
            }
            if times.len() >= ROUNDS_MIN && begin.elapsed() >= MEASURED {
                break;
            }
        }
        times.sort_unstable();
        Ok(Self::of(BATCH as f64 / times[times.len() / 2].as_secs_f64()))
    }

    /// Chooses the step for a machine that decodes so many photos in a second.
    fn of(decoded: f64) -> Self {
        let step = Duration::from_secs_f64(BATCH as f64 / (SHARE * decoded));
        Self { decoded, step: step.max(STEP_MIN) }
    }

    /// Photos that the accelerator takes in a second.
    fn wanted(&self) -> f64 {
        BATCH as f64 / self.step.as_secs_f64()
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, wanted) = (self.step.as_secs_f64() * 1e3, self.wanted());
        let Self { decoded, .. } = self;
        write!(
            f,
            "a step emulates an accelerator that computes {step:.0} ms on {BATCH} photos: it takes \
             {wanted:.0} photos/s, {:.0} % of the {decoded:.0} that the cores of this machine decode",
            wanted / decoded * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerator_asks_for_a_share_of_what_is_decoded() {
        let pace = Pace::of(400.0);
        assert_eq!(pace.step, Duration::from_millis(160));
        assert!((pace.wanted() - 200.0).abs() < 1e-6);
        assert_eq!(Pace::of(1e9).step, STEP_MIN);
    }

    #[test]
    fn rate_of_made_photos_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let places = (folder.path().join("loose"), folder.path().join("packed"));
        photos::shards((&places.0, &places.1), BATCH, &|| Ok(())).unwrap();
        let pace = Pace::measure(&places.0).unwrap();
        assert_eq!(pace, Pace::of(pace.decoded));
        std::fs::write(photos::file(&places.0, 3, "jpg"), b"no photo").unwrap();
        assert!(Pace::measure(&places.0).is_err());
    }
}
