//! Places of samples by the member index beside a manifest, wherever both lie.

#![allow(clippy::needless_pass_by_value, reason = "what Python passes arrives owned")]

use std::ffi::OsString;
use std::sync::Arc;

use forebay_client::{
    Address, Documents, Launch, Locator as Places, RemoteReads, RuntimeDirectory,
};
use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::members::MemberIndex;
use forebay_shard::{Listed, Manifest};
use forebay_source::Options;
use pyo3::prelude::*;

use crate::interruptible::interruptible;
use crate::tools::seconds;

/// Arguments that lead to a daemon: its address, the command that starts one, and seconds.
pub(crate) type Way = (Option<String>, Vec<OsString>, f64);

/// A manifest and its member index; a daemon reads those that are no files.
pub(crate) fn documents(manifest: &str, (daemon, command, timeout): Way) -> Result<Documents> {
    let launch = Launch { command, directory: RuntimeDirectory::of_this_user() };
    let reads = RemoteReads {
        address: Address::parse(daemon.as_deref(), launch)?,
        origin: Options::from_env().into_map(),
        limit: seconds(timeout)?,
    };
    Ok(Documents::at(manifest, reads))
}

/// Opens a manifest for `urls`, and its member index, which `advice` says how to write.
///
/// # Errors
/// `Invalid` if there is no member index; as [`Documents::manifest`] and [`Documents::members`].
pub(crate) fn indexed(
    manifest: &Documents,
    urls: &[String],
    advice: &str,
) -> Result<(Manifest, Listed, MemberIndex)> {
    let read = manifest.manifest()?;
    let listed = read.of(urls).map_err(|error| error.at("path", manifest))?;
    let index = manifest.members(&read).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::Invalid, "the manifest has no member index")
            .at("path", manifest)
            .advise(advice),
        _ => error,
    })?;
    Ok((read, listed, index))
}

/// Places of the samples of a job.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Locator(pub(crate) Arc<Places>);

#[pymethods]
impl Locator {
    /// Opens the member index of `manifest` for the samples of `urls`; None if there is none.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        manifest: String,
        urls: Vec<String>,
        way: Way,
    ) -> PyResult<Option<Self>> {
        let open = move || documents(&manifest, way)?.locator(&urls);
        let opened = py.detach(|| interruptible("fb-locator", open));
        let opened = opened.map_err(|failure| failure.raise(py))?;
        Ok(opened.map(|places| Self(Arc::new(places))))
    }
}

/// Returns a manifest's entries of `urls`, in their order: samples of each, and bytes of each if
/// all are known.
#[pyfunction]
pub(crate) fn listed(
    py: Python<'_>,
    manifest: String,
    urls: Vec<String>,
    way: Way,
) -> PyResult<(Vec<u64>, Option<Vec<u64>>)> {
    let read = move || -> Result<_> {
        let documents = documents(&manifest, way)?;
        let listed = documents.manifest()?.of(&urls);
        let listed = listed.map_err(|error| error.at("path", &documents))?;
        Ok((listed.counts, listed.bytes))
    };
    py.detach(|| interruptible("fb-manifest", read)).map_err(|failure| failure.raise(py))
}
