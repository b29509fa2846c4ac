//! Samples that filters choose, for the loader and for whoever looks samples up by number.

#![allow(clippy::needless_pass_by_value, reason = "what Python passes arrives owned")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::filter::{Choice, Choices, Filter};
use forebay_error::{Error, ErrorKind, Result, command};
use forebay_shard::Manifest;
use forebay_shard::members::{MemberIndex, path_of};
use forebay_wire::message::Chosen;
use pyo3::prelude::*;

use crate::errors::raise;

/// Samples of a job's shards.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Selection {
    choices: Choices,
    /// The same for a daemon.
    pub(crate) chosen: Arc<[Chosen]>,
}

#[pymethods]
impl Selection {
    /// Chooses samples of `urls`, which `manifest` lists, that pass all of `filters`.
    #[new]
    fn new(
        py: Python<'_>,
        manifest: PathBuf,
        urls: Vec<String>,
        filters: Vec<String>,
    ) -> PyResult<Self> {
        let chosen = py.detach(|| chosen(&manifest, &urls, &filters));
        chosen.map_err(|error| raise(py, &error))
    }

    /// Chooses all samples of shards with these counts.
    #[staticmethod]
    fn all(py: Python<'_>, counts: Vec<u64>) -> PyResult<Self> {
        let choices = counts.into_iter().map(|samples| Choice::all(samples).map(Arc::new));
        let choices = choices.collect::<Result<Vec<_>>>();
        let choices = choices.map_err(|error| raise(py, &error))?;
        let chosen = choices.iter().map(|choice| choice.to_wire(true)).collect();
        Ok(Self { choices: Choices::new(choices), chosen })
    }

    /// Joins selections of shards that follow each other.
    #[staticmethod]
    fn join(parts: Vec<Bound<'_, Self>>) -> Self {
        let all = parts.iter().flat_map(|part| part.get().choices.all().iter().cloned());
        let chosen = parts.iter().flat_map(|part| part.get().chosen.iter().cloned());
        Self { choices: Choices::new(all.collect()), chosen: chosen.collect() }
    }

    /// Samples of each shard that pass.
    fn counts(&self) -> Vec<u64> {
        self.choices.counts()
    }

    /// The identity: 64 hex digits over the samples that pass.
    fn hash(&self, py: Python<'_>) -> String {
        py.detach(|| self.choices.hash())
    }

    /// The place in its shard of the `nth` sample that passes; None if there are fewer.
    fn place(&self, shard: u32, nth: u64) -> Option<u64> {
        self.choices.of(shard)?.place(nth)
    }
}

impl Selection {
    /// Returns the choice of a shard.
    pub(crate) fn choice(&self, shard: u32) -> Option<&Arc<Choice>> {
        self.choices.all().get(shard as usize)
    }
}

fn chosen(manifest: &Path, urls: &[String], filters: &[String]) -> Result<Selection> {
    let read = Manifest::read(manifest)?;
    let listed = read.of(urls).map_err(|error| error.at("path", manifest.display()))?;
    let index = MemberIndex::open(&path_of(manifest)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::Invalid, "the manifest has no member index")
            .at("path", manifest.display())
            .advise("write it with `forebay index URLS -o MANIFEST --columns json:NAME,…`"),
        _ => error,
    })?;
    index.check(&read)?;
    let choices = Filter::new(filters, &index)?.choose(&index, &listed.numbers)?;
    let chosen = choices.iter().zip(urls).zip(&listed.numbers).map(|((choice, url), number)| {
        let indexed = read.shards()[*number].url.as_str();
        choice.to_wire(indexed != url || !has_versions(url))
    });
    let chosen = chosen.collect();
    Ok(Selection { choices: Choices::new(choices), chosen })
}

/// Returns true for an object whose store gives it a version that is the same for all nodes. That
/// of a file has its inode in it, and that of a command's output the time of its run.
fn has_versions(url: &str) -> bool {
    command(url).is_none() && url.contains("://") && !url.starts_with("file:")
}
