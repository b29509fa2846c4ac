//! Files of checkpoints, and waits for them. No byte is copied with the GIL held.

#![allow(clippy::needless_pass_by_value, reason = "what Python passes arrives owned")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_client::{
    Address, CheckpointPlace, CheckpointReader as Reader, CheckpointWriter as Writer, Commit,
    FileId, Launch, Level, Push, RuntimeDirectory, SaveConfig, Watch,
};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Options;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::raise;
use crate::logs;
use crate::tools::seconds;

/// Arguments that lead to a daemon: its address, the command that starts one, and seconds.
type Way = (Option<String>, Vec<OsString>, f64);

/// Signal that came during a wait.
type Interrupt = Arc<Mutex<Option<PyErr>>>;

/// A place, and the signal that ends waits there.
fn place(url: String, name: String, way: Way) -> Result<(CheckpointPlace, Interrupt)> {
    logs::begin();
    let (daemon, command, timeout) = way;
    let launch = Launch { command, directory: RuntimeDirectory::of_this_user() };
    let interrupt = Interrupt::default();
    let place = CheckpointPlace {
        address: Address::parse(daemon.as_deref(), launch)?,
        url,
        name,
        origin: Options::from_env().into_map(),
        timeout: seconds(timeout)?,
        watch: Watch::new({
            let interrupt = interrupt.clone();
            move || {
                Python::attach(|py| py.check_signals()).map_err(|error| {
                    *lock(&interrupt) = Some(error);
                    Error::new(ErrorKind::Closed, "a signal ended the wait")
                })
            }
        }),
    };
    Ok((place, interrupt))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exception for an error: that of the signal, if one came.
fn failed(py: Python<'_>, interrupt: &Interrupt, error: &Error) -> PyErr {
    lock(interrupt).take().unwrap_or_else(|| raise(py, error))
}

/// Does something at the place of a checkpoint, without the GIL.
fn at_place<T: Send>(
    py: Python<'_>,
    url: String,
    name: String,
    way: Way,
    work: impl FnOnce(&CheckpointPlace) -> Result<T> + Send,
) -> PyResult<T> {
    let (place, interrupt) = place(url, name, way).map_err(|error| raise(py, &error))?;
    let done = py.detach(|| work(&place));
    logs::tell(py)?;
    done.map_err(|error| failed(py, &interrupt, &error))
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the file is closed")
}

/// A file that is being saved.
#[pyclass(module = "forebay._native")]
pub(crate) struct CheckpointWriter {
    writer: Mutex<Option<Writer>>,
    interrupt: Interrupt,
}

#[pymethods]
impl CheckpointWriter {
    /// Begins a file. `id`: 16 random bytes.
    #[new]
    fn new(
        py: Python<'_>,
        target: (String, String),
        id: FileId,
        expected: u64,
        is_lone: bool,
        job: String,
        way: Way,
    ) -> PyResult<Self> {
        let (url, name) = target;
        let (place, interrupt) = place(url, name, way).map_err(|error| raise(py, &error))?;
        let config = SaveConfig { place, id, expected, is_lone, job };
        let opened = py.detach(|| Writer::open(config));
        logs::tell(py)?;
        let writer = opened.map_err(|error| failed(py, &interrupt, &error))?;
        Ok(Self { writer: Mutex::new(Some(writer)), interrupt })
    }

    /// Appends the bytes of an object; returns their number.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = Buffer::of(data, false)?;
        let bytes = buffer.bytes();
        let written = py.detach(|| {
            let mut writer = lock(&self.writer);
            writer.as_mut().ok_or_else(closed)?.write(bytes).map(|()| bytes.len())
        });
        logs::tell(py)?;
        written.map_err(|error| failed(py, &self.interrupt, &error))
    }

    /// Makes the file durable; returns its length. `files`: all other files of the checkpoint, if
    /// this one makes it visible.
    fn finish(
        &self,
        py: Python<'_>,
        files: Option<Vec<FileId>>,
        step: Option<u64>,
        overwrite: bool,
    ) -> PyResult<u64> {
        let commit = files.map(|files| Commit { files, step, overwrite });
        let finished = py.detach(|| {
            let writer = lock(&self.writer).take().ok_or_else(closed)?;
            writer.finish(commit)
        });
        logs::tell(py)?;
        finished.map_err(|error| failed(py, &self.interrupt, &error))
    }

    /// Gives the file up: nothing of it stays.
    fn abandon(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.writer).take()));
    }
}

/// A file of a published checkpoint.
#[pyclass(module = "forebay._native")]
pub(crate) struct CheckpointReader {
    reader: Mutex<Option<Reader>>,
    interrupt: Interrupt,
    #[pyo3(get)]
    len: u64,
}

#[pymethods]
impl CheckpointReader {
    #[new]
    fn new(py: Python<'_>, url: String, name: String, way: Way) -> PyResult<Self> {
        let (place, interrupt) = place(url, name, way).map_err(|error| raise(py, &error))?;
        let opened = py.detach(|| Reader::open(&place));
        logs::tell(py)?;
        let reader = opened.map_err(|error| failed(py, &interrupt, &error))?;
        let len = reader.len();
        Ok(Self { reader: Mutex::new(Some(reader)), interrupt, len })
    }

    /// Fills an object with the bytes from an offset on; returns their number.
    fn read_into(&self, py: Python<'_>, offset: u64, into: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Buffer::of(into, true)?;
        let bytes = buffer.bytes_mut();
        let read = py.detach(|| {
            let mut reader = lock(&self.reader);
            reader.as_mut().ok_or_else(closed)?.read_at(offset, bytes)
        });
        logs::tell(py)?;
        read.map_err(|error| failed(py, &self.interrupt, &error))
    }

    /// Asks for bytes that will be read soon.
    fn prefetch(&self, py: Python<'_>, offset: u64, size: u64) -> PyResult<()> {
        let asked = py.detach(|| {
            let mut reader = lock(&self.reader);
            reader.as_mut().ok_or_else(closed)?.prefetch(offset, size)
        });
        asked.map_err(|error| failed(py, &self.interrupt, &error))
    }

    /// Ends the connection.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.reader).take()));
    }
}

/// Waits until a checkpoint has reached a level.
#[pyfunction]
pub(crate) fn checkpoint_wait(
    py: Python<'_>,
    url: String,
    name: String,
    level: &str,
    way: Way,
) -> PyResult<()> {
    let level = match level {
        "staged" => Level::Staged,
        "replicated" => Level::Replicated,
        "uploaded" => Level::Uploaded,
        _ => Level::Published,
    };
    at_place(py, url, name, way, |place| place.wait(level))
}

/// Returns the newest published checkpoint below a folder.
#[pyfunction]
pub(crate) fn checkpoint_latest(py: Python<'_>, url: String, way: Way) -> PyResult<Option<String>> {
    at_place(py, url, String::new(), way, CheckpointPlace::latest)
}

/// Saves all files of a folder, and has them published as one checkpoint.
#[pyfunction]
#[pyo3(signature = (folder, url, step, overwrite, job, way))]
pub(crate) fn checkpoint_push(
    py: Python<'_>,
    folder: PathBuf,
    url: String,
    step: Option<u64>,
    overwrite: bool,
    job: String,
    way: Way,
) -> PyResult<()> {
    at_place(py, url, String::new(), way, |place| {
        Push { folder: &folder, place, step, overwrite, job: &job }.run(&mut |_, _| {})
    })
}

/// Copies all files of a published checkpoint to a new folder.
#[pyfunction]
pub(crate) fn checkpoint_restore(
    py: Python<'_>,
    url: String,
    folder: PathBuf,
    way: Way,
) -> PyResult<()> {
    at_place(py, url, String::new(), way, |place| place.restore(&folder, &mut |_, _| {}))
}

/// Removes a checkpoint: what waits on this node, and what is published.
#[pyfunction]
pub(crate) fn checkpoint_remove(py: Python<'_>, url: String, way: Way) -> PyResult<()> {
    at_place(py, url, String::new(), way, |place| place.remove(false).map(drop))
}
