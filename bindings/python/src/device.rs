//! A GPU that decodes, as the package opens it for a loader.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_decode::{Backend, WithNvjpeg};
use pyo3::prelude::*;

use crate::errors::{Failure, raise};
use crate::interruptible::interruptible;
use crate::logs;

/// An open GPU of this process.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Device {
    /// Only the drop takes it.
    opened: Option<Arc<forebay_decode::Device>>,
}

impl Device {
    /// Returns it for a loader.
    pub(crate) fn opened(&self) -> Option<Arc<forebay_decode::Device>> {
        self.opened.clone()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let opened = self.opened.take();
        // The last owner waits for the device's work; other threads of Python go on.
        Python::try_attach(|py| py.detach(|| drop(opened)));
    }
}

#[pymethods]
impl Device {
    /// Opens GPU `ordinal` of those that the process may see, with the first nvJPEG of `nvjpeg`
    /// that starts, and by its `backend` if one is numbered; without any, for arrays alone.
    #[new]
    #[pyo3(signature = (ordinal, nvjpeg, backend=None))]
    fn new(
        py: Python<'_>,
        ordinal: usize,
        nvjpeg: Option<Vec<PathBuf>>,
        backend: Option<i32>,
    ) -> PyResult<Self> {
        logs::begin();
        let backend = backend.map(Backend::numbered).transpose();
        let backend = backend.map_err(|error| raise(py, &error))?;
        let nvjpeg = nvjpeg.map(|paths| WithNvjpeg { paths, backend });
        // Making a context takes a driver up to seconds.
        let open = move || forebay_decode::Device::open(ordinal, nvjpeg.as_ref());
        let opened = py.detach(|| interruptible("fb-device", open));
        logs::tell(py)?;
        opened
            .map(|device| Self { opened: Some(device) })
            .map_err(|failure: Failure| failure.raise(py))
    }

    /// Returns the number of GPUs that the process may see; 0 without a driver.
    #[staticmethod]
    fn count(py: Python<'_>) -> usize {
        py.detach(forebay_decode::Device::count)
    }
}
