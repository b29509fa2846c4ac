//! `forebay bench`: what feeds an accelerator, measured.

mod compare;
mod latency;
mod loading;
mod rivals;
mod saves;
mod scale;
mod starvation;
mod throughput;
mod trace;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::path::Path;

use forebay_bench::interrupt;
use forebay_error::Doing;
use forebay_wire::message::LeftOut;
use serde::Serialize;

pub(crate) use self::starvation::image_fields;
use super::{Done, Failure, Launcher, WithLeftOut, print, print_json};

/// Measure what feeds an accelerator: how long it would starve and why, how much comes and how
/// soon, and how it grows.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    // The largest by far.
    Starvation(Box<starvation::Arguments>),
    Compare(compare::Arguments),
    Throughput(throughput::Arguments),
    Latency(latency::Arguments),
    Scale(scale::Arguments),
}

pub(super) fn run(verb: &Verb, launcher: &Launcher) -> Done {
    let done = match verb {
        Verb::Starvation(arguments) => starvation::run(arguments, launcher),
        Verb::Compare(arguments) => compare::run(arguments),
        Verb::Throughput(arguments) => throughput::run(arguments, launcher),
        Verb::Latency(arguments) => latency::run(arguments, launcher),
        Verb::Scale(arguments) => scale::run(arguments, launcher),
    };
    done.map_err(|failure| match interrupt::caught() {
        Some(by) => Failure::Interrupted(failure.into_error(), by.exit_code()),
        None => failure,
    })
}

/// Tells what was measured, whatever failed behind it.
fn tell<R: Serialize + Display>(report: &R, left_out: &LeftOut, json: bool) -> Done {
    if json {
        print_json(&WithLeftOut { document: report, left_out })?;
    } else {
        print(report.to_string().trim_end())?;
    }
    Ok(())
}

/// Checks that a file can be written later on, without making it.
pub(crate) fn writable(file: &Path) -> Done {
    let checked = match std::fs::metadata(file) {
        Ok(_) => OpenOptions::new().append(true).open(file).map(drop),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            tempfile::tempfile_in(folder.unwrap_or(Path::new("."))).map(drop)
        }
        Err(error) => Err(error),
    };
    let checked = checked.doing("check write access to a file");
    Ok(checked.map_err(|error| error.at("file", file.display()))?)
}
