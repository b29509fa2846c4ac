//! `forebay checkpoint size`.

use bytesize::ByteSize;
use forebay_error::{Error, ErrorKind};
use serde::Serialize;

use super::super::{Done, Failure, Output};

/// Saves on the disk at a time: one that is written, and the newest published one for restores.
const COPIES: u64 = 2;

/// Work out what checkpoints need of a node: disk, disk speed, and network.
///
/// The answer is arithmetic, without a daemon. Give the bytes that one node saves each time.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Arguments {
    /// Bytes that this node saves each time, like `120GB`.
    #[arg(long, value_name = "SIZE")]
    bytes: ByteSize,
    /// Seconds between saves.
    #[arg(long, value_name = "SECONDS")]
    every: f64,
    /// Seconds of one training step.
    #[arg(long, value_name = "SECONDS")]
    step: f64,
    /// Share of a step that a save may take, above 0 and at most 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    share: f64,
    #[command(flatten)]
    output: Output,
}

/// Needs of a node.
#[derive(Debug, Serialize)]
struct Needs {
    /// Bytes of disk: `reserve` of a `[[checkpoint]]`.
    reserve_bytes: u64,
    /// Bytes per second that the disk has to write.
    write_bytes_per_second: u64,
    /// Bytes per second that uploads need, so that one ends before the next save.
    upload_bytes_per_second: u64,
    /// Bytes that the disk writes in a day.
    written_bytes_per_day: u64,
}

/// Seconds of a day.
const DAY: f64 = 86_400.0;

pub(super) fn run(arguments: &Arguments) -> Done {
    let Arguments { bytes, every, step, share, output } = arguments;
    let limits = [("every", every, f64::MAX), ("step", step, f64::MAX), ("share", share, 1.0)];
    for (name, value, most) in limits {
        if !(*value > 0.0 && *value <= most) {
            let what = "the value has to be above 0, and a share at most 1";
            return Err(Failure::Usage(Error::new(ErrorKind::Invalid, what).at(name, value)));
        }
    }
    let all = bytes.as_u64();
    let per = |seconds: f64| (all as f64 / seconds).ceil() as u64;
    let needs = Needs {
        reserve_bytes: all.saturating_mul(COPIES),
        write_bytes_per_second: per(step * share),
        upload_bytes_per_second: per(*every),
        written_bytes_per_day: (all as f64 * DAY / every).ceil() as u64,
    };
    output.print(&needs, text)
}

fn text(needs: &Needs) -> String {
    let Needs {
        reserve_bytes,
        write_bytes_per_second,
        upload_bytes_per_second,
        written_bytes_per_day,
    } = needs;
    let size = |bytes: &u64| ByteSize(*bytes).display().iec().to_string();
    format!(
        "disk          {} (reserve of a [[checkpoint]]: one save, and the newest published one)\n\
         disk speed    {}/s written\n\
         upload        {}/s, so that one ends before the next save\n\
         disk wear     {} a day",
        size(reserve_bytes),
        size(write_bytes_per_second),
        size(upload_bytes_per_second),
        size(written_bytes_per_day)
    )
}
