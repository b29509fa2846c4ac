//! A job's batches. Its rule: no wait holds the GIL, and every wait looks for signals, so that
//! Ctrl-C ends it at once.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_client::{
    Address, Launch, LoaderConfig, Next, Parts, Passing, RuntimeDirectory, SessionConfig, TRACE,
    Tally, Trace,
};
use forebay_decode::{Device, FieldSpec};
use forebay_engine::plan;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Options;
use forebay_wire::fork::Generation;
use forebay_wire::leases::{LogPosition, Sharing};
use forebay_wire::message::{
    Bad, Begin, Binning, Chosen, Extent, Joined, Mixture, Open, Order, Picked, SlowSample,
};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::batch::Batch;
use crate::binning::Cut;
use crate::device::Device as Gpu;
use crate::errors::{Failure, exception, raise};
use crate::interruptible::interruptible;
use crate::locator::Locator;
use crate::logs;
use crate::selection::Selection;
use crate::tools::{seconds, stats_json};

/// Settings from the Python side, in its own names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Shards of the order, and behind them those that complete them.
    urls: Vec<String>,
    joined: Vec<Joined>,
    counts: Option<Vec<u64>>,
    /// Bytes of each shard.
    bytes: Option<Vec<u64>>,
    /// The first rank on this node, and how many there are.
    ranks: (u32, u32),
    mixture: Mixture,
    order: Order,
    /// Version of the order, which gives the lanes that `order` leaves unset.
    order_version: u32,
    fields: Option<Vec<FieldSpec>>,
    views: Vec<String>,
    prefetch: u32,
    threads: usize,
    timeout: f64,
    #[serde(default)]
    serves_changes: bool,
    #[serde(default)]
    borrows: bool,
    allow_pipe: bool,
    /// True if runs lease their shards.
    #[serde(default)]
    leases: bool,
    job: String,
    daemon: Option<String>,
    command: Vec<String>,
}

impl Settings {
    fn into_config(
        self,
        device: Option<Arc<Device>>,
        trace: Option<Trace>,
        (chosen, binning): (Option<Arc<[Chosen]>>, Option<Arc<Binning>>),
        parts: Option<Parts>,
    ) -> Result<LoaderConfig> {
        let timeout = seconds(self.timeout)?;
        // Those of bins do not depend on the ranks.
        let lanes = if binning.is_some() { self.order.lanes } else { self.lanes() };
        let order = Order { lanes, ..self.order.clone() };
        let launch = Launch {
            command: self.command.into_iter().map(OsString::from).collect(),
            directory: RuntimeDirectory::of_this_user(),
        };
        Ok(LoaderConfig {
            session: SessionConfig {
                address: Address::parse(self.daemon.as_deref(), launch)?,
                open: Open {
                    job: self.job,
                    urls: self.urls,
                    counts: self.counts,
                    origin: Options::from_env().into_map(),
                    order,
                    fields: self.fields.as_deref().map(FieldSpec::wanted),
                    prefetch: self.prefetch,
                    // As long as the time limit allows.
                    patience_ms: u64::MAX,
                },
                mixture: self.mixture,
                joined: self.joined,
                chosen,
                binning,
                parts,
                extent: self.bytes.map(|bytes| Extent { bytes, ranks: self.ranks }),
                timeout,
                serves_changes: self.serves_changes,
                borrows: self.borrows,
                allow_pipe: self.allow_pipe,
            },
            fields: self.fields,
            views: self.views,
            threads: self.threads,
            device,
            trace,
            looks_ahead: true,
        })
    }
}

impl Settings {
    /// Returns the lanes to ask for. A daemon gives those of version 1 where they are unset, as it
    /// does to each stream of a mixture, whose ranks never take whole lanes.
    fn lanes(&self) -> Option<u32> {
        let is_dealt = self.mixture.is_empty() && !self.leases;
        if self.order.lanes.is_some() || !is_dealt || self.order_version < plan::ORDER_VERSION {
            return self.order.lanes;
        }
        let others = self.joined.iter().map(|join| join.shards as usize * (join.parts.len() - 1));
        let planned = self.urls.len() - others.sum::<usize>();
        // The daemon rejects longer lists.
        let shards = u32::try_from(planned).unwrap_or(u32::MAX);
        Some(plan::default_lanes(&self.order, shards, self.counts.is_some()))
    }
}

/// A part in a queue, as the Python side writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Share {
    group: String,
    rank: u32,
    world_size: u32,
    is_spread: bool,
    epoch: u64,
    take: u64,
    member: u64,
    from: Option<LogPosition>,
    keeper: Option<String>,
}

impl From<Share> for Sharing {
    fn from(share: Share) -> Self {
        let Share { group, rank, world_size, is_spread, epoch, take, member, from, keeper } = share;
        Self {
            group,
            rank,
            world_size,
            is_spread,
            epoch,
            take,
            member,
            batch: 0,
            done: 0,
            from,
            log: None,
            acknowledged: Vec::new(),
            received: Vec::new(),
            number: 0,
            keeper,
        }
    }
}

/// An open job of this process.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Loader {
    inner: Mutex<Option<Arc<forebay_client::Loader>>>,
    urls: Arc<[String]>,
    closed: AtomicBool,
    tally: Tally,
    trace: Option<Trace>,
    made_in: Generation,
}

#[pymethods]
impl Loader {
    /// Opens the job that `settings` (JSON) describe, starting a daemon if that is needed. It goes
    /// on counting where the loader `before` it, which was closed, stopped. `device` is the GPU
    /// that decodes; `selection` has the samples of a filtered job, `cut` the lengths of one whose
    /// batches are cut by tokens, `locator` the places of all samples, if parts of shards may be
    /// read.
    #[new]
    #[pyo3(signature = (settings, before=None, device=None, selection=None, cut=None, locator=None))]
    fn new(
        py: Python<'_>,
        settings: &str,
        before: Option<&Self>,
        device: Option<&Gpu>,
        selection: Option<&Selection>,
        cut: Option<&Cut>,
        locator: Option<&Locator>,
    ) -> PyResult<Self> {
        logs::begin();
        let settings: Settings = serde_json::from_str(settings).map_err(|error| {
            let what = format!("the loader's settings cannot be read: {error}");
            raise(py, &Error::new(ErrorKind::Invalid, what))
        })?;
        let urls = settings.urls.clone().into();
        // Reaching and starting a daemon waits on locks and sockets.
        let tally = before.map(|before| before.tally.clone()).unwrap_or_default();
        let counting = tally.clone();
        let device = device.and_then(|device| device.opened());
        // Later loaders of the same process continue a loader's run.
        let begun = before.filter(|before| before.made_in.is_now());
        let trace = match begun.and_then(|before| before.trace.clone()) {
            Some(trace) => Some(trace),
            None => trace_of(&settings.job).map_err(|error| raise(py, &error))?,
        };
        let following = trace.clone();
        let chosen = selection.map(|selection| selection.chosen.clone());
        let samples = (chosen, cut.map(|cut| cut.0.clone()));
        let parts = parts_of(&settings, selection, locator);
        let open = move || {
            let parts = parts.map(|parts| parts()).transpose()?;
            forebay_client::Loader::open_after(
                settings.into_config(device, following, samples, parts)?,
                counting,
            )
        };
        let opened = py.detach(|| interruptible("fb-open", open));
        logs::tell(py)?;
        let loader = opened.map_err(|failure| failure.raise(py))?;
        Ok(Self {
            inner: Mutex::new(Some(Arc::new(loader))),
            urls,
            closed: AtomicBool::new(false),
            tally,
            trace,
            made_in: Generation::now(),
        })
    }

    /// Plays `epoch` from the sample at position `base` on, and from there from `batch` on.
    fn start(&self, py: Python<'_>, epoch: u64, base: u64, batch: u64, step: u64) -> PyResult<()> {
        let begin = Begin { epoch, base, batch, step };
        let started = self.get().and_then(|loader| py.detach(|| loader.start(begin)));
        started.map_err(|error| raise(py, &error))
    }

    /// Asks for samples by their places, each (index in the data set, shard, place in it), as one
    /// batch. With a `locator`, only these samples are read of shards that are not in the cache.
    #[pyo3(signature = (samples, locator=None))]
    fn pick(
        &self,
        py: Python<'_>,
        samples: Vec<(u64, u32, u64)>,
        locator: Option<&Locator>,
    ) -> PyResult<()> {
        let picked = |(position, shard, ordinal)| Picked { position, shard, ordinal };
        let samples: Vec<_> = samples.into_iter().map(picked).collect();
        let loader = self.get().map_err(|error| raise(py, &error))?;
        let places = locator.map(|locator| locator.0.clone());
        let ask = move || {
            let located = places.map(|places| places.locate(&samples)).transpose()?;
            loader.pick_located(samples, located.unwrap_or_default())
        };
        // The index may lie in a store.
        let asked = py.detach(|| match locator {
            Some(_) => interruptible("fb-locate", ask),
            None => Ok(ask()?),
        });
        asked.map_err(|failure| failure.raise(py))
    }

    /// Begins an epoch whose shards are leased, as `sharing` (JSON) says, or goes on with it.
    fn share(&self, py: Python<'_>, sharing: &str) -> PyResult<()> {
        let sharing: Share = serde_json::from_str(sharing).map_err(|error| {
            let what = format!("the loader's part in a queue cannot be read: {error}");
            raise(py, &Error::new(ErrorKind::Invalid, what))
        })?;
        let shared = self.get().and_then(|loader| py.detach(|| loader.share(sharing.into())));
        shared.map_err(|error| raise(py, &error))
    }

    /// Says that the first `batches` batches since [`Loader::share`] are done with.
    fn acknowledge(&self, py: Python<'_>, batches: u64) -> PyResult<()> {
        let told = self.get().map(|loader| py.detach(|| loader.acknowledge(batches)));
        told.map_err(|error| raise(py, &error))
    }

    /// The same, and where the lease log stands then, as JSON.
    fn place(&self, py: Python<'_>, batches: u64) -> PyResult<String> {
        let loader = self.get().map_err(|error| raise(py, &error))?;
        let look = || -> Result<(), Failure> { Ok(Python::attach(|py| py.check_signals())?) };
        let place =
            py.detach(|| loader.place(batches, look)).map_err(|failure| failure.raise(py))?;
        serde_json::to_string(&place).map_err(|error| {
            raise(
                py,
                &Error::new(ErrorKind::Invalid, format!("a place cannot be written: {error}")),
            )
        })
    }

    /// The next batch; at the epoch's end `(samples, errors)` instead: those of
    /// the epoch over all ranks.
    fn next(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let loader = self.get().map_err(|error| raise(py, &error))?;
        let look = || -> Result<(), Failure> {
            if self.closed.load(Ordering::Relaxed) {
                return Err(closed().into());
            }
            Ok(Python::attach(|py| py.check_signals())?)
        };
        let next = py.detach(|| loader.next(look));
        logs::tell(py)?;
        match next.map_err(|failure| failure.raise(py))? {
            Next::Batch(batch) => {
                Ok(Py::new(py, Batch::new(*batch, self.urls.clone()))?.into_any())
            }
            Next::End(end) => {
                let errors: Vec<_> =
                    end.errors.iter().map(|error| exception(py, error)).collect::<PyResult<_>>()?;
                Ok((end.samples, errors).into_pyobject(py)?.into_any().unbind())
            }
        }
    }

    /// Returns true if [`Loader::next`] would not wait.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.get().map_err(|error| raise(py, &error))?.is_ready())
    }

    /// Samples of each shard, once an epoch without a manifest has passed them all and none was
    /// broken.
    fn learnt(&self, py: Python<'_>) -> PyResult<Option<Vec<u64>>> {
        Ok(self.get().map_err(|error| raise(py, &error))?.learnt().map(<[u64]>::to_vec))
    }

    /// Tells the daemon what could not be used so far, as JSON.
    fn tell(&self, py: Python<'_>, bad: &str) -> PyResult<()> {
        let bad: Bad = serde_json::from_str(bad).map_err(|error| {
            let what = format!("what could not be used cannot be read: {error}");
            raise(py, &Error::new(ErrorKind::Invalid, what))
        })?;
        let told = self.get().map(|loader| py.detach(|| loader.tell(bad)));
        told.map_err(|error| raise(py, &error))
    }

    /// Notes samples that took long in user code, as JSON.
    fn note_slow(&self, py: Python<'_>, slow: &str) -> PyResult<()> {
        let slow: Vec<SlowSample> = serde_json::from_str(slow).map_err(|error| {
            let what = format!("slow samples cannot be read: {error}");
            raise(py, &Error::new(ErrorKind::Invalid, what))
        })?;
        let noted = self.get().map(|loader| loader.note_slow(&slow));
        noted.map_err(|error| raise(py, &error))
    }

    /// Lanes in use.
    fn lanes(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get().map_err(|error| raise(py, &error))?.opened().lanes)
    }

    /// Returns the counters so far, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        // The counters may be in use for as long as a report takes to be sent.
        let stats = self.get().and_then(|loader| py.detach(|| stats_json(&loader.stats())));
        stats.map_err(|error| raise(py, &error))
    }

    /// Ends the job. A thread that waits in `next` gets `Closed`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.closed.store(true, Ordering::Relaxed);
        py.detach(|| self.forget_or_drop());
        logs::tell(py)
    }
}

impl Loader {
    fn inner(&self) -> MutexGuard<'_, Option<Arc<forebay_client::Loader>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Result<Arc<forebay_client::Loader>> {
        if !self.made_in.is_now() {
            return Err(Error::new(ErrorKind::Closed, "the loader belongs to another process")
                .advise("use the DataLoader itself: it opens again after a fork"));
        }
        self.inner().clone().ok_or_else(closed)
    }

    fn forget_or_drop(&self) {
        let loader = self.inner().take();
        if !self.made_in.is_now() {
            // The threads that may have held its locks at the fork are not here to let go.
            std::mem::forget(loader);
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Ending its threads takes as long as a batch is decoded; other threads of Python go on.
        let dropped = Python::try_attach(|py| py.detach(|| self.forget_or_drop()));
        if dropped.is_none() {
            self.forget_or_drop();
        }
    }
}

/// Returns a function that looks the places up which a job reads, unless it leases its shards.
fn parts_of(
    settings: &Settings,
    selection: Option<&Selection>,
    locator: Option<&Locator>,
) -> Option<impl FnOnce() -> Result<Parts> + Send + use<>> {
    let locator = locator.filter(|_| !settings.leases)?.0.clone();
    let fields = settings.fields.as_deref().map(FieldSpec::wanted);
    let passing = selection.map(|selection| -> Passing {
        let choices = selection.choices.clone();
        Arc::new(move |shard| {
            choices.of(shard).map(|all| all.places().collect()).unwrap_or_default()
        })
    });
    Some(move || {
        let estimate = locator.estimate(passing.as_ref(), fields.as_deref())?;
        Ok(Parts { locator, passing, estimate })
    })
}

/// The trace that the environment asks for.
fn trace_of(job: &str) -> Result<Option<Trace>> {
    let path = std::env::var_os(TRACE).filter(|path| !path.is_empty());
    path.map(|path| Trace::create(Path::new(&path), job)).transpose()
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the loader is closed").advise("make a new one")
}
