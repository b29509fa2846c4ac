//! Functions for Python beside batches: the command line, URL lists, manifests, checks.
//! Each is a call into the crate that does the work, with its errors as exceptions.

#![allow(clippy::needless_pass_by_value, reason = "what Python passes arrives owned")]

use std::ffi::OsString;
use std::num::NonZero;
use std::process::ExitCode;
use std::time::Duration;

use forebay_client::{Address, Deadline, Launch, RuntimeDirectory, Stats, Waits};
use forebay_decode::FieldSpec;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_shard::{Commands, Manifest, ManifestShard};
use forebay_source::Options;
use forebay_wire::message::LeftOut;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::interruptible::interruptible;

/// Runs the command line `forebay ARGUMENTS` and returns its exit code. `launcher` is the command
/// that runs this very program, without arguments.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>, launcher: Vec<OsString>) -> u8 {
    let code = py.detach(|| {
        let arguments = std::iter::once("forebay".into()).chain(arguments);
        forebay_cli::main(arguments, &launcher)
    });
    // `ExitCode` does not tell its number, but compares.
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}

/// Returns the permission for a list to name commands.
fn commands(allow_pipe: bool) -> Commands {
    if allow_pipe { Commands::Allowed } else { Commands::Refused }
}

/// The shards that one text means, and a warning if matching keys were left out. What a pattern of
/// a remote store means, `daemon` lists, started by `command` if need be, within `timeout` seconds.
#[pyfunction]
pub(crate) fn expand(
    py: Python<'_>,
    spec: String,
    allow_pipe: bool,
    daemon: Option<String>,
    command: Vec<OsString>,
    timeout: f64,
) -> PyResult<(Vec<String>, Option<String>)> {
    let expand = move || {
        let mut left_out = LeftOut::default();
        let mut list = |pattern: &str| {
            let directory = RuntimeDirectory::of_this_user();
            let launch = Launch { command: command.clone(), directory };
            let deadline = Deadline::after(seconds(timeout)?);
            let connection = Address::parse(daemon.as_deref(), launch)?.connect(&deadline)?;
            let origin = Options::from_env().into_map();
            let (urls, more) = connection.list(pattern, origin, &deadline)?;
            left_out.add(more);
            Ok(urls)
        };
        let urls = forebay_shard::expand(&spec, commands(allow_pipe), &mut list)?;
        Ok((urls, (!left_out.is_empty()).then(|| left_out.to_string())))
    };
    py.detach(|| interruptible("fb-expand", expand)).map_err(|failure| failure.raise(py))
}

/// A time limit as Python gives it.
pub(crate) fn seconds(timeout: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(timeout).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the time limit is out of range: {error}"))
            .at("timeout", timeout)
            .advise("give seconds above 0")
    })
}

/// The shards of a list, each taken literally.
#[pyfunction]
pub(crate) fn expand_list(
    py: Python<'_>,
    urls: Vec<String>,
    allow_pipe: bool,
) -> PyResult<Vec<String>> {
    let expand = || forebay_shard::expand_list(&urls, commands(allow_pipe));
    py.detach(expand).map_err(|error| raise(py, &error))
}

/// Cores that this process may keep busy, by affinity and by its control group's quota.
#[pyfunction]
pub(crate) fn cores() -> usize {
    // One is assumed where the system does not report it.
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// A URL as errors name it, without secrets.
#[pyfunction]
pub(crate) fn shown(url: &str) -> String {
    forebay_error::shown(url)
}

/// Forks between the process that first asked and this one: what a process knows itself by.
#[pyfunction]
pub(crate) fn forks() -> u64 {
    forebay_wire::fork::Generation::now().forks()
}

/// Samples of each shard, as `daemon` counts them, started by `command` if need be, within
/// `timeout` seconds.
#[pyfunction]
pub(crate) fn count(
    py: Python<'_>,
    urls: Vec<String>,
    allow_pipe: bool,
    daemon: Option<String>,
    command: Vec<OsString>,
    timeout: f64,
) -> PyResult<Vec<u64>> {
    let count = move || -> Result<Vec<u64>> {
        let launch = Launch { command, directory: RuntimeDirectory::of_this_user() };
        let limit = seconds(timeout)?;
        let connection =
            Address::parse(daemon.as_deref(), launch)?.connect(&Deadline::after(limit))?;
        if allow_pipe {
            connection.allow_commands();
        }
        let counted = connection.count(&urls, &Options::from_env().into_map(), limit, || {})?;
        Ok(counted.into_iter().map(|(_, samples)| samples).collect())
    };
    py.detach(|| interruptible("fb-count", count)).map_err(|failure| failure.raise(py))
}

/// The hash that two equal data sets in the same order share.
#[pyfunction]
pub(crate) fn manifest_hash(py: Python<'_>, shards: Vec<(String, u64)>) -> PyResult<String> {
    let hash = || -> Result<String> {
        let shard = |(url, samples)| ManifestShard { url, samples, bytes: None };
        Ok(Manifest::new(shards.into_iter().map(shard).collect())?.hash().to_owned())
    };
    py.detach(hash).map_err(|error| raise(py, &error))
}

/// Samples that each stream of a mixture gives of every epoch, of its own samples and its `repeat`.
#[pyfunction]
pub(crate) fn repeats(py: Python<'_>, streams: Vec<(u64, f64)>) -> PyResult<Vec<u64>> {
    forebay_engine::plan::repeats(&streams).map_err(|error| raise(py, &error))
}

/// Refuses a field that makes no sense, long before a daemon is asked for anything.
#[pyfunction]
pub(crate) fn check_field(py: Python<'_>, json: &str) -> PyResult<()> {
    let checked = FieldSpec::from_json(json).and_then(|field| field.check());
    checked.map_err(|error| raise(py, &error))
}

/// The statistics of a loader that has done nothing yet, as JSON.
#[pyfunction]
pub(crate) fn no_stats(py: Python<'_>) -> PyResult<String> {
    let stats = Stats { wait: Waits::default().report(), ..Stats::default() };
    stats_json(&stats).map_err(|error| raise(py, &error))
}

pub(crate) fn stats_json(stats: &Stats) -> Result<String> {
    serde_json::to_string(stats).doing("write the statistics as JSON")
}
