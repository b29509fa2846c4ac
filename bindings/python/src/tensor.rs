//! A decoded tensor on its way to a framework. Its rule: it is handed over once, whole; after that
//! the memory is the framework's to read and write.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_decode::{DType, DeviceTensor, Tensor as Decoded};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::dlpack::{self, Memory};
use crate::errors::raise;

/// A dense array in the loader's memory or on its GPU, for `from_dlpack`.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Tensor {
    inner: Mutex<Option<Inner>>,
    #[pyo3(get)]
    shape: Vec<usize>,
    #[pyo3(get)]
    address: usize,
    /// GPU index; None for the CPU.
    #[pyo3(get)]
    device: Option<usize>,
    dtype: DType,
}

enum Inner {
    Host(Decoded),
    Device(DeviceTensor),
}

impl Tensor {
    pub(crate) fn new(tensor: Decoded) -> Self {
        Self {
            shape: tensor.shape.clone(),
            address: tensor.buffer.as_ptr() as usize,
            device: None,
            dtype: tensor.dtype,
            inner: Mutex::new(Some(Inner::Host(tensor))),
        }
    }

    pub(crate) fn on_device(tensor: DeviceTensor) -> Self {
        Self {
            shape: tensor.shape.clone(),
            address: tensor.address() as usize,
            device: Some(tensor.ordinal()),
            dtype: tensor.dtype,
            inner: Mutex::new(Some(Inner::Device(tensor))),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> PyResult<Inner> {
        self.inner().take().ok_or_else(|| {
            PyBufferError::new_err("the tensor was handed over already: keep what you were given")
        })
    }
}

#[pymethods]
impl Tensor {
    /// NumPy's name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Hands the same bytes over as uint16: for frameworks that cannot name bfloat16 in DLPack.
    fn as_uint16(&self) -> PyResult<()> {
        match self.inner().as_mut() {
            Some(Inner::Host(tensor)) if tensor.dtype.size() == DType::Uint16.size() => {
                tensor.dtype = DType::Uint16;
                Ok(())
            }
            _ => Err(PyBufferError::new_err("only a 16-bit tensor not handed over yet can do so")),
        }
    }

    /// Copies a GPU's tensor to memory of the same GPU at `address`, in line on `stream` (0 is the
    /// one that all share). The memory has as many bytes, and its owner orders its use by that
    /// stream.
    fn copy_to(&self, py: Python<'_>, address: u64, stream: u64) -> PyResult<()> {
        let Inner::Device(tensor) = self.take()? else {
            return Err(PyBufferError::new_err("the tensor is on the CPU: take it by DLPack"));
        };
        // SAFETY: the package calls this with what its framework allocated for just this tensor, on
        // the stream that the framework orders it by.
        let copied = py.detach(|| unsafe { tensor.copy_to(address, stream) });
        copied.map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        dlpack::check(self.__dlpack_device__(), stream, dl_device, copy)?;
        let memory = match self.take()? {
            Inner::Host(tensor) => Memory::Host(tensor),
            Inner::Device(tensor) => {
                let stream = dlpack::consumer(stream)?;
                // SAFETY: a consumer of DLPack names a stream that it uses the tensor by, and keeps
                // it as long.
                let lent = py.detach(|| unsafe { tensor.lend(stream) });
                Memory::Device(lent.map_err(|error| raise(py, &error))?)
            }
        };
        dlpack::capsule(py, memory, max_version)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.device.map_or(dlpack::CPU, dlpack::cuda)
    }

    fn __repr__(&self) -> String {
        format!("forebay._native.Tensor(shape={:?}, dtype={})", self.shape, self.dtype.name())
    }
}
