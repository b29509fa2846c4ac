//! Samples that filters choose, for the loader and for whoever looks samples up by number.

#![allow(clippy::needless_pass_by_value, reason = "what Python passes arrives owned")]

use std::sync::Arc;

use forebay_client::{Documents, is_same_object};
use forebay_engine::filter::{Choice, Choices, Filter};
use forebay_error::Result;
use forebay_wire::message::Chosen;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::interruptible::interruptible;
use crate::locator::{Way, documents, indexed};

/// Samples of a job's shards.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Selection {
    pub(crate) choices: Choices,
    /// The same for a daemon.
    pub(crate) chosen: Arc<[Chosen]>,
}

#[pymethods]
impl Selection {
    /// Chooses samples of `urls`, which `manifest` lists, that pass all of `filters`.
    #[new]
    fn new(
        py: Python<'_>,
        manifest: String,
        urls: Vec<String>,
        filters: Vec<String>,
        way: Way,
    ) -> PyResult<Self> {
        let choose = move || chosen(&documents(&manifest, way)?, &urls, &filters);
        let chosen = py.detach(|| interruptible("fb-filter", choose));
        chosen.map_err(|failure| failure.raise(py))
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
    /// Returns the choice of each shard.
    pub(crate) fn choices(&self) -> Vec<Arc<Choice>> {
        self.choices.all().to_vec()
    }
}

fn chosen(manifest: &Documents, urls: &[String], filters: &[String]) -> Result<Selection> {
    let advice = "write it with `forebay index URLS -o MANIFEST --columns json:NAME,…`";
    let (read, listed, index) = indexed(manifest, urls, advice)?;
    let choices = Filter::new(filters, &index)?.choose(&index, &listed.numbers)?;
    let chosen = choices.iter().zip(urls).zip(&listed.numbers).map(|((choice, url), number)| {
        choice.to_wire(!is_same_object(&read.shards()[*number].url, url))
    });
    let chosen = chosen.collect();
    Ok(Selection { choices: Choices::new(choices), chosen })
}
