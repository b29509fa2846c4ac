//! Batches by tokens: lengths from member indexes, and the bins that they make.

#![allow(clippy::needless_pass_by_value, reason = "what Python passes arrives owned")]

use std::sync::{Arc, Mutex, PoisonError};

use forebay_client::Documents;
use forebay_engine::filter::Choice;
use forebay_engine::lengths::{self, LengthsOf, ShardSamples};
use forebay_engine::plan::{self, Bins as EpochBins, Epoch, LENGTHS_MAX, Lengths, Taker};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{BinRule, Binning, Mixture, Order};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::raise;
use crate::interruptible::interruptible;
use crate::locator::{Way, documents, indexed};
use crate::selection::Selection;

/// A rule, and the tokens of each sample that a job reads.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Cut(pub(crate) Arc<Binning>);

#[pymethods]
impl Cut {
    /// Reads the lengths that `wanted` (JSON) describes, of the samples of each data set: manifest
    /// and URLs. `selection` has those of all data sets that the job reads, if not all samples.
    /// `rule` (JSON) makes bins of them.
    #[new]
    #[pyo3(signature = (rule, wanted, parts, way, selection=None))]
    fn new(
        py: Python<'_>,
        rule: &str,
        wanted: &str,
        parts: Vec<(String, Vec<String>)>,
        way: Way,
        selection: Option<&Selection>,
    ) -> PyResult<Self> {
        let rule: BinRule = parsed(rule).map_err(|error| raise(py, &error))?;
        let wanted: LengthsOf = parsed(wanted).map_err(|error| raise(py, &error))?;
        let choices = selection.map(Selection::choices);
        let read = move || {
            let (mut lengths, mut first) = (Vec::new(), 0);
            for (manifest, urls) in &parts {
                let manifest = documents(manifest, way.clone())?;
                let chosen = choices.as_ref().map(|choices| &choices[first..first + urls.len()]);
                lengths.extend(lengths_of(&wanted, &manifest, urls, chosen)?);
                first += urls.len();
                if lengths.len() > LENGTHS_MAX {
                    let what = "a data set has too many samples for batches by tokens";
                    return Err(Error::new(ErrorKind::Invalid, what)
                        .at("limit", LENGTHS_MAX)
                        .advise("choose fewer by where=, or split the data set"));
                }
            }
            Ok(Self(Arc::new(Binning { rule, lengths })))
        };
        py.detach(|| interruptible("fb-lengths", read)).map_err(|failure| failure.raise(py))
    }

    /// The identity: 64 hex digits over the lengths.
    fn hash(&self, py: Python<'_>) -> String {
        py.detach(|| lengths::hash(&self.0.lengths))
    }
}

fn lengths_of(
    wanted: &LengthsOf,
    manifest: &Documents,
    urls: &[String],
    chosen: Option<&[Arc<Choice>]>,
) -> Result<Vec<u32>> {
    let advice = "write it with `forebay index URLS -o MANIFEST --members`";
    let (_, listed, index) = indexed(manifest, urls, advice)?;
    let samples = urls.iter().zip(&listed.numbers).enumerate();
    let shards: Vec<_> = samples
        .map(|(at, (url, number))| ShardSamples {
            url,
            number: *number,
            choice: chosen.map(|chosen| &chosen[at]),
        })
        .collect();
    wanted.read(&index, &shards)
}

/// The order of a job, as the loader knows it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ordered {
    order: Order,
    mixture: Mixture,
    counts: Vec<u64>,
}

/// Bins of a job, epoch by epoch.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Bins {
    ordered: Ordered,
    lengths: Arc<Lengths>,
    /// Bins of the epoch asked for last.
    latest: Mutex<Option<(u64, EpochBins)>>,
}

#[pymethods]
impl Bins {
    /// Makes the bins of an order (JSON).
    #[new]
    fn new(py: Python<'_>, ordered: &str, cut: &Cut) -> PyResult<Self> {
        let made = || {
            let ordered: Ordered = parsed(ordered)?;
            let lengths = Arc::new(Lengths::new(cut.0.clone(), Some(&ordered.counts))?);
            Ok(Self { ordered, lengths, latest: Mutex::default() })
        };
        made().map_err(|error| raise(py, &error))
    }

    /// The position after `batches` batches of each rank from the position `base` of an epoch on.
    fn after(&self, py: Python<'_>, epoch: u64, base: u64, batches: u64) -> PyResult<u64> {
        let bins = batches.saturating_mul(u64::from(self.ordered.order.world_size));
        self.of(py, epoch, |epoch| epoch.after(base, bins))
    }

    /// The batches of each rank from the position `base` of an epoch to its end.
    fn steps(&self, py: Python<'_>, epoch: u64, base: u64) -> PyResult<u64> {
        let taker = Taker::of(&self.ordered.order);
        self.of(py, epoch, |epoch| epoch.steps(base, taker))
    }

    /// True if an epoch is over before batch `batch` of each rank from the position `base` on.
    fn is_over(&self, py: Python<'_>, epoch: u64, base: u64, batch: u64) -> PyResult<bool> {
        let taker = Taker::of(&self.ordered.order);
        self.of(py, epoch, |epoch| epoch.is_over(base, batch, taker))
    }

    /// The end of the samples that are composed together with those at the position `base`.
    fn horizon(&self, py: Python<'_>, epoch: u64, base: u64) -> PyResult<u64> {
        self.of(py, epoch, |epoch| epoch.horizon(base))
    }
}

impl Bins {
    fn of<T: Send>(
        &self,
        py: Python<'_>,
        epoch: u64,
        ask: impl FnOnce(&mut EpochBins) -> T + Send,
    ) -> PyResult<T> {
        let asked = py.detach(|| {
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            if latest.as_ref().is_none_or(|(number, _)| *number != epoch) {
                *latest = Some((epoch, self.made(epoch)?));
            }
            let (_, bins) = latest.as_mut().expect("made above");
            Ok(ask(bins))
        });
        asked.map_err(|error: Error| raise(py, &error))
    }

    fn made(&self, number: u64) -> Result<EpochBins> {
        let Ordered { order, mixture, counts } = &self.ordered;
        plan::check(order, counts.len(), Some(counts))?;
        let shards = u32::try_from(counts.len()).expect("checked above");
        // As the daemon has them: streams have lanes of their own.
        let lanes = if mixture.is_empty() { plan::lanes(order, shards, true)? } else { 1 };
        let epoch = Epoch::new(order, (shards, Some(counts)), mixture, lanes, number)?;
        EpochBins::new(epoch, self.lengths.clone(), order, number)
    }
}

fn parsed<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| {
        let what = format!("the description of batches by tokens cannot be read: {error}");
        Error::new(ErrorKind::Invalid, what)
    })
}
