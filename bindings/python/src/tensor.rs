//! A decoded tensor on its way to a framework. Its rule: it is handed over once, whole; after that
//! the memory is the framework's to read and write.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_decode::{DType, Tensor as Decoded};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::dlpack;

/// A dense array in the loader's memory, for `from_dlpack`.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Tensor {
    inner: Mutex<Option<Decoded>>,
    #[pyo3(get)]
    shape: Vec<usize>,
    #[pyo3(get)]
    address: usize,
    dtype: DType,
}

impl Tensor {
    pub(crate) fn new(tensor: Decoded) -> Self {
        Self {
            shape: tensor.shape.clone(),
            address: tensor.buffer.as_ptr() as usize,
            dtype: tensor.dtype,
            inner: Mutex::new(Some(tensor)),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Option<Decoded>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Tensor {
    /// What an element is, by NumPy's name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Hands the same bytes over as uint16: for frameworks that cannot name bfloat16 in DLPack.
    fn as_uint16(&self) -> PyResult<()> {
        match self.inner().as_mut() {
            Some(tensor) if tensor.dtype.size() == DType::Uint16.size() => {
                tensor.dtype = DType::Uint16;
                Ok(())
            }
            _ => Err(PyBufferError::new_err("only a 16-bit tensor not handed over yet can do so")),
        }
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        dlpack::check(stream, dl_device, copy)?;
        let tensor = self.inner().take();
        let tensor = tensor.ok_or_else(|| {
            PyBufferError::new_err("the tensor was handed over already: keep what you were given")
        })?;
        dlpack::capsule(py, tensor, max_version)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    fn __repr__(&self) -> String {
        format!("forebay._native.Tensor(shape={:?}, dtype={})", self.shape, self.dtype.name())
    }
}
