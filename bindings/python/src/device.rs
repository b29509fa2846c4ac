//! A GPU that decodes, as the package opens it for a loader.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::errors::Failure;
use crate::interruptible::interruptible;

/// An open GPU of this process.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Device(pub(crate) Arc<forebay_decode::Device>);

#[pymethods]
impl Device {
    /// Opens GPU `ordinal` of those that the process may see, with the first nvJPEG of `nvjpeg`
    /// that is there; without any, for arrays alone.
    #[new]
    fn new(py: Python<'_>, ordinal: usize, nvjpeg: Option<Vec<PathBuf>>) -> PyResult<Self> {
        // Making a context takes a driver up to seconds.
        let open = move || forebay_decode::Device::open(ordinal, nvjpeg.as_deref());
        let opened = py.detach(|| interruptible("fb-device", open));
        opened.map(Self).map_err(|failure: Failure| failure.raise(py))
    }
}
