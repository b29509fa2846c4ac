//! `forebay bench compare`.

use std::path::{Path, PathBuf};

use forebay_bench::starvation::compare::Comparison;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::message::LeftOut;
use serde_json::Value;

use super::tell;
use crate::{Done, Output};

/// Hold two runs against each other: what became better, what worse.
///
/// Both are documents of `forebay bench starvation --json`. Runs that differ in workload,
/// configuration or processor are compared, too, and it is said in what they differ. One run each
/// is no proof on a machine that does other work: look at several.
///
/// Example:
///   forebay bench starvation /data/*.tar --json > before.json
///   forebay bench starvation /data/*.tar --threads 8 --json > after.json
///   forebay bench compare before.json after.json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// The run before.
    before: PathBuf,
    /// The run after.
    after: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    let compared = Comparison::of(&before, &after)?;
    tell(&compared, &LeftOut::default(), arguments.output.json)
}

fn read(file: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(file)
        .doing("read a report")
        .map_err(|error| error.at("file", file.display()))?;
    serde_json::from_str(&text).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the report is not JSON: {error}"))
            .at("file", file.display())
            .advise("write it by `forebay bench starvation` with --json")
    })
}
