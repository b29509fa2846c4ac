//! Bytes of Python objects: contiguous memory, borrowed for one call.
//!
//! The buffer protocol is in Python's stable interface since 3.11. Before that the structure and
//! the functions were the same, so this declares them for 3.10 as well.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;

/// Request for contiguous bytes without a shape,
const SIMPLE: c_int = 0;

/// and for such that may be written.
const WRITABLE: c_int = 1;

/// A buffer as Python describes it (`Py_buffer`).
#[repr(C)]
struct View {
    start: *mut c_void,
    object: *mut PyObject,
    len: isize,
    item_len: isize,
    is_readonly: c_int,
    dimensions: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// Borrowed bytes of an object, which cannot be freed or resized meanwhile.
pub(crate) struct Buffer(View);

// SAFETY: the memory stays where it is until the view is released, on whichever thread; releasing
// needs the GIL, which `release` asks for.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Borrows an object's bytes.
    pub(crate) fn of(object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Self> {
        let mut view = MaybeUninit::uninit();
        let flags = if is_written { WRITABLE } else { SIMPLE };
        // SAFETY: the object is alive, and the view is memory for one.
        let code = unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if code != 0 {
            let what = || PyBufferError::new_err("an object without contiguous bytes");
            return Err(PyErr::take(object.py()).unwrap_or_else(what));
        }
        // SAFETY: a successful call fills the view.
        Ok(Self(unsafe { view.assume_init() }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let len = usize::try_from(self.0.len).unwrap_or(0);
        if len == 0 {
            return &[];
        }
        // SAFETY: the view describes so many contiguous bytes, which stay until it is released. As
        // with every function of Python that reads a buffer without the GIL, a caller who changes
        // the bytes meanwhile gets some of them.
        unsafe { std::slice::from_raw_parts(self.0.start.cast(), len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = usize::try_from(self.0.len).unwrap_or(0);
        if len == 0 || self.0.is_readonly != 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`; the view was asked for to be written.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.cast(), len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the view was filled by `PyObject_GetBuffer` and is released once, with the GIL.
        Python::attach(|_| unsafe { PyBuffer_Release(&raw mut self.0) });
    }
}
