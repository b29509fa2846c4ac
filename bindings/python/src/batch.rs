//! One batch to Python objects, column by column.
//!
//! Tensors are handed over, views are lent, and only `bytes` are copied, without the GIL.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_client::{Extent, Rows, View as Lent};
use forebay_decode::{BufferPool, Column, DType, Tensor as Decoded};
use forebay_error::Error;
use pyo3::exceptions::PyIndexError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyString};

use crate::errors::{exception, raise};
use crate::tensor::Tensor;

/// A column's kind, its rows, and which of them are there if some may not be.
type Objects = (&'static str, Py<PyAny>, Option<Vec<bool>>);

/// A column's name before that.
type Named = (String, &'static str, Py<PyAny>, Option<Vec<bool>>);

/// A batch whose columns have not been taken yet.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Batch {
    keys: Arc<Vec<String>>,
    urls: (Arc<[String]>, Arc<Vec<u32>>),
    offsets: Vec<u64>,
    valid: Vec<bool>,
    errors: Vec<Error>,
    /// Memory of all its views.
    lent: Vec<Extent>,
    columns: Mutex<Vec<(String, Rows)>>,
}

impl Batch {
    pub(crate) fn new(batch: forebay_client::Batch, urls: Arc<[String]>) -> Self {
        let views = batch.columns.iter().filter_map(|(_, rows)| match rows {
            Rows::Views(views) => Some(views.iter().flatten()),
            _ => None,
        });
        Self {
            lent: Extent::of(views.flatten()),
            keys: Arc::new(batch.keys),
            urls: (urls, Arc::new(batch.urls)),
            offsets: batch.offsets,
            valid: batch.valid,
            errors: batch.errors,
            columns: Mutex::new(batch.columns),
        }
    }

    fn columns(&self) -> MutexGuard<'_, Vec<(String, Rows)>> {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Batch {
    /// The samples' keys, one per row.
    fn keys(&self) -> Texts {
        Texts(Source::Keys(self.keys.clone()))
    }

    /// The samples' shards, one per row.
    fn urls(&self) -> Texts {
        let (urls, rows) = self.urls.clone();
        Texts(Source::Urls(urls, rows))
    }

    /// Start of the samples in their shards, in bytes, one per row; none if the daemon's release
    /// does not report it.
    fn offsets(&self) -> Vec<u64> {
        self.offsets.clone()
    }

    /// Rows that are samples rather than padding: bool, shape (rows,).
    fn valid(&self, py: Python<'_>) -> PyResult<Tensor> {
        flags(py, &self.valid)
    }

    /// Number of samples, padding left out.
    fn samples(&self) -> usize {
        self.valid.iter().filter(|valid| **valid).count()
    }

    /// The flags of an optional field: bool, shape (rows,).
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value, reason = "what Python passes arrives owned")]
    fn flags(py: Python<'_>, of: Vec<bool>) -> PyResult<Tensor> {
        flags(py, &of)
    }

    /// Reasons for missing samples of this batch, as exceptions.
    fn errors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.errors.iter().map(|error| exception(py, error)).collect()
    }

    /// Memory that views are slices of; none if the batch has no views.
    fn lent(&self) -> Vec<View> {
        self.lent.iter().cloned().map(View).collect()
    }

    /// The columns, once: they are gone from here afterwards. Views are numbers of the pieces of
    /// lent memory that they lie in, none if all rows are there and lie in the first, and slices of
    /// it.
    fn take_columns(&self, py: Python<'_>) -> PyResult<Vec<Named>> {
        let columns = std::mem::take(&mut *self.columns());
        columns
            .into_iter()
            .map(|(name, rows)| {
                let (kind, rows, present) = objects(py, rows, &self.lent)?;
                Ok((name, kind, rows, present))
            })
            .collect()
    }
}

fn objects(py: Python<'_>, rows: Rows, lent: &[Extent]) -> PyResult<Objects> {
    let list = |list: Bound<'_, PyList>| list.into_any().unbind();
    Ok(match rows {
        Rows::Views(views) => {
            let mut pieces = Vec::with_capacity(views.len());
            let slices = views.iter().map(|view| {
                let placed = view.as_ref().and_then(|view| {
                    let mut of = (0_u8..).zip(lent);
                    of.find_map(|(piece, extent)| Some((piece, extent.place(view)?)))
                });
                // A node has fewer tiers than a byte counts.
                pieces.push(placed.as_ref().map_or(0, |(piece, _)| *piece));
                // A map is far smaller than what an isize counts.
                placed.map(|(_, at)| PySlice::new(py, at.start as isize, at.end as isize, 1))
            });
            let slices = slices.collect::<Vec<_>>();
            if slices.iter().all(Option::is_some) && pieces.iter().all(|piece| *piece == 0) {
                pieces.clear();
            }
            let slices = PyList::new(py, slices)?;
            let rows = (PyBytes::new(py, &pieces), slices).into_pyobject(py)?;
            ("views", rows.into_any().unbind(), None)
        }
        Rows::Bytes(views) => ("bytes", list(copy(py, &views)?), None),
        Rows::Decoded { column, present } => match column {
            Column::Tensor(tensor) => {
                ("tensor", Py::new(py, Tensor::new(tensor))?.into_any(), present)
            }
            Column::OnDevice(tensor) => {
                ("tensor", Py::new(py, Tensor::on_device(tensor))?.into_any(), present)
            }
            Column::Tensors(tensors) => {
                let tensors = tensors.into_iter().map(Tensor::new);
                ("tensors", list(PyList::new(py, tensors.collect::<Vec<_>>())?), present)
            }
            Column::Padded { values, lengths } => ("padded", ragged(py, values, lengths)?, present),
            Column::Nested { values, lengths } => ("nested", ragged(py, values, lengths)?, present),
            Column::Text(texts) => ("text", list(PyList::new(py, texts)?), present),
            Column::Json(texts) => ("json", list(PyList::new(py, texts)?), present),
            Column::Bytes(_) => ("bytes", list(PyList::empty(py)), present),
        },
    })
}

/// Rows that differ in length, and their lengths.
fn ragged(py: Python<'_>, values: Decoded, lengths: Decoded) -> PyResult<Py<PyAny>> {
    let pair = (Tensor::new(values), Tensor::new(lengths)).into_pyobject(py)?;
    Ok(pair.into_any().unbind())
}

/// A list of `bytes` (or `None`), the payload copied while other Python threads run.
fn copy<'py>(py: Python<'py>, views: &[Option<Lent>]) -> PyResult<Bound<'py, PyList>> {
    let mut objects = Vec::with_capacity(views.len());
    let mut places = Vec::with_capacity(views.len());
    for view in views {
        let Some(view) = view else {
            objects.push(py.None().into_bound(py));
            continue;
        };
        // SAFETY: the GIL is held; a length that is a slice's fits. The result is a new reference
        // to an object with that many bytes not set yet, or null with an exception set.
        let object = unsafe {
            let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), view.len() as isize);
            Bound::from_owned_ptr_or_err(py, object)?
        };
        // SAFETY: `object` is a bytes object, made just above.
        places.push((unsafe { ffi::PyBytes_AsString(object.as_ptr()) } as usize, view));
        objects.push(object);
    }
    py.detach(|| {
        for (to, from) in places {
            // SAFETY: the objects are kept by `objects`, each as long as its view and unknown to
            // anyone else: CPython shares only the empty one, into which nothing is written, and
            // the garbage collector, through which another thread could come by one, does not
            // track bytes.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        }
    });
    PyList::new(py, objects)
}

fn flags(py: Python<'_>, of: &[bool]) -> PyResult<Tensor> {
    let buffer = BufferPool::new(0).take(of.len());
    let mut buffer = buffer.map_err(|error| raise(py, &error))?;
    for (to, from) in buffer.as_bytes_mut().iter_mut().zip(of) {
        *to = u8::from(*from);
    }
    Ok(Tensor::new(Decoded { dtype: DType::Bool, shape: vec![of.len()], buffer }))
}

/// Memory with views of one batch, kept for as long as this object lives.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct View(Extent);

#[pymethods]
impl View {
    /// Address of the bytes.
    #[getter]
    fn address(&self) -> usize {
        self.0.address()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// Texts that become Python strings when looked at.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Texts(Source);

enum Source {
    Keys(Arc<Vec<String>>),
    Urls(Arc<[String]>, Arc<Vec<u32>>),
}

#[pymethods]
impl Texts {
    fn __len__(&self) -> usize {
        match &self.0 {
            Source::Keys(keys) => keys.len(),
            Source::Urls(_, rows) => rows.len(),
        }
    }

    /// The text at `row`, counted from 0.
    fn get<'py>(&self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyString>> {
        let text = match &self.0 {
            Source::Keys(keys) => keys.get(row),
            Source::Urls(urls, rows) => rows.get(row).and_then(|url| urls.get(*url as usize)),
        };
        let text = text.ok_or_else(|| PyIndexError::new_err("no such row"))?;
        Ok(PyString::new(py, text))
    }
}
