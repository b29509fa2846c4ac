//! Checks that a tier's disk supports direct I/O.
//!
//! A block that was written there and read back decides.

use std::path::Path;

use forebay_error::Result;
use forebay_uring::GRANULE;

use super::finding::{Finding, size};
use super::plan::{advice, without_advice};
use super::trial::{Direct, MEASURED, Speed};

const CHECK: &str = "direct_io";
const PROBE: &str = "probe";

pub(super) fn check(directory: &Path, tried: &Result<Direct>) -> Finding {
    let Direct { direct, alignment, reserves } = match tried {
        Ok(tried) => tried,
        Err(error) => {
            let otherwise =
                format!("see `dmesg` for errors of the disk under {}", directory.display());
            return Finding::wrong(CHECK, without_advice(error), advice(error, &otherwise));
        }
    };
    let local = "use a file system like ext4 or xfs for the tier";
    let finding = if !direct {
        Finding::warn(
            CHECK,
            "the file system has no O_DIRECT: each byte goes through the page cache, at twice the memory",
            local,
        )
    } else if alignment.memory > GRANULE {
        Finding::wrong(
            CHECK,
            format!("memory must be aligned to {}, above the daemon's {GRANULE}", alignment.memory),
            "use another disk, or format this one with blocks of 4 KiB, which erases it (`nvme format --lbaf`)",
        )
    } else if !reserves {
        Finding::warn(
            CHECK,
            "O_DIRECT works, but the file system does not reserve space: a full disk shows late",
            local,
        )
    } else {
        let found = format!(
            "O_DIRECT works, aligned to {} bytes on the disk, {} in memory",
            alignment.offset, alignment.memory
        );
        Finding::ok(CHECK, found)
    };
    finding.figure("direct", *direct).figure("offset_align", alignment.offset)
}

/// Describes a measurement.
pub(super) fn measured(speed: &Result<Speed>) -> Finding {
    match speed {
        Ok(Speed { written, read }) => {
            let rate = |bytes: f64| size(bytes as u64);
            let (all, written_rate, read_rate) = (size(MEASURED), rate(*written), rate(*read));
            let found =
                format!("{all} in sequence: {written_rate}/s written, {read_rate}/s read back");
            Finding::ok(PROBE, found)
                .figure("written_bytes_per_second", *written)
                .figure("read_bytes_per_second", *read)
        }
        Err(error) => Finding::wrong(
            PROBE,
            without_advice(error),
            advice(error, "see `dmesg` for the disk's errors, or free some space"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::{Error, ErrorKind};
    use forebay_uring::Alignment;

    use super::super::finding::Verdict;
    use super::*;

    fn of(direct: bool, memory: usize, reserves: bool) -> Finding {
        let alignment = Alignment { memory, offset: 512 };
        check("/mnt".as_ref(), &Ok(Direct { direct, alignment, reserves }))
    }

    #[test]
    fn direct_io_is_ok_and_the_page_cache_is_not() {
        let good = of(true, 4, true);
        assert_eq!((good.verdict, &good.figures["offset_align"]), (Verdict::Ok, &512.into()));
        assert_eq!(of(false, 4, true).verdict, Verdict::Warn);
        assert_eq!(of(true, 4, false).verdict, Verdict::Warn);
        assert_eq!(of(true, 8192, true).verdict, Verdict::Wrong);
    }

    #[test]
    fn failing_disk_is_wrong() {
        let failed = Error::new(ErrorKind::Unavailable, "Input/output error");
        let finding = check("/mnt".as_ref(), &Err(failed.clone()));
        assert_eq!(finding.verdict, Verdict::Wrong);
        assert!(finding.mend.unwrap().contains("dmesg"));
        assert_eq!(measured(&Err(failed)).verdict, Verdict::Wrong);
    }

    #[test]
    fn a_measurement_has_figures() {
        let finding = measured(&Ok(Speed { written: 1e9, read: 2e9 }));
        assert_eq!(finding.figures["read_bytes_per_second"], 2e9);
        assert!(finding.found.contains("256"), "{finding:?}");
    }
}
