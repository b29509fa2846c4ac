//! Errors as exceptions. Its rule: one class per kind, by the kind's own name, defined in Python
//! (`forebay/errors.py`), so that users can read, document and pickle them.

use forebay_error::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Error of a call from Python: our own, or one Python raised meanwhile (Ctrl-C).
pub(crate) enum Failure {
    Forebay(Error),
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Forebay(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl Failure {
    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Forebay(error) => raise(py, &error),
            Self::Python(error) => error,
        }
    }
}

/// The exception for `error`.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).map_or_else(|failed| failed, PyErr::from_value)
}

/// The exception for `error`, as an object that is not raised yet.
pub(crate) fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let module = CLASSES.get_or_try_init(py, || py.import("forebay.errors").map(Bound::unbind))?;
    let places = PyDict::new(py);
    for (name, value) in error.places() {
        // The innermost place comes first and is the most exact.
        if !places.contains(name)? {
            places.set_item(name, value)?;
        }
    }
    module.bind(py).getattr(error.kind().name())?.call1((error.to_string(), places))
}
