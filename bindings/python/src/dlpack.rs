//! DLPack: memory handed to a framework without a copy.
//!
//! The capsule owns the memory. Whoever consumes it (or drops it unconsumed) calls the
//! deleter exactly once, from any thread, with or without the GIL, and the buffer goes home.
//!
//! The layout is that of DLPack 1.0 (`dlpack.h`); the unversioned structure is for consumers older
//! than that.

use std::ffi::{CStr, c_void};

use forebay_decode::{DType, Lent, Tensor};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// kDLCPU, device 0.
pub(crate) const CPU: (i32, i32) = (1, 0);

/// kDLCUDA, and which of them.
pub(crate) fn cuda(ordinal: usize) -> (i32, i32) {
    (2, ordinal as i32)
}

/// The version of the structures below.
const VERSION: Version = Version { major: 1, minor: 0 };

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    /// No bit set: writable, and not a copy.
    flags: u64,
    tensor: DlTensor,
}

/// A tensor that is handed over.
pub(crate) enum Memory {
    /// In the loader's memory.
    Host(Tensor),
    /// On a GPU.
    Device(Lent),
}

impl Memory {
    fn parts(&mut self) -> (*mut c_void, Device, DType, &[usize]) {
        match self {
            Self::Host(tensor) => {
                let data = tensor.buffer.as_mut_ptr().cast();
                (data, Device { kind: CPU.0, id: CPU.1 }, tensor.dtype, &tensor.shape)
            }
            Self::Device(lent) => {
                let tensor = lent.tensor();
                let (kind, id) = cuda(tensor.ordinal());
                (tensor.address() as *mut c_void, Device { kind, id }, tensor.dtype, &tensor.shape)
            }
        }
    }
}

/// Everything one hand-over needs, in one allocation that both structures point back to.
struct Handed {
    memory: Memory,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Handed {
    fn new(mut memory: Memory) -> Box<Self> {
        // A dimension counts elements that lie in memory: it fits an i64.
        let shape: Vec<i64> = memory.parts().3.iter().map(|n| *n as i64).collect();
        let mut strides = vec![1; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i].max(1);
        }
        Box::new(Self { memory, shape, strides })
    }

    /// Pointers into `self`, valid while the box lives: heap blocks stay where they are.
    fn describe(&mut self) -> DlTensor {
        let (data, device, dtype, _) = self.memory.parts();
        DlTensor {
            data,
            device,
            ndim: self.shape.len() as i32,
            dtype: data_type(dtype),
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }
}

fn data_type(dtype: DType) -> DataType {
    const INT: u8 = 0;
    const UINT: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;
    const COMPLEX: u8 = 5;
    const BOOL: u8 = 6;
    let code = match dtype {
        DType::Bool => BOOL,
        DType::Uint8 | DType::Uint16 | DType::Uint32 | DType::Uint64 => UINT,
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => INT,
        DType::Bfloat16 => BFLOAT,
        DType::Float16 | DType::Float32 | DType::Float64 => FLOAT,
        DType::Complex64 | DType::Complex128 => COMPLEX,
    };
    DataType { code, bits: (dtype.size() * 8) as u8, lanes: 1 }
}

/// A capsule that owns `memory`, for a consumer that reads DLPack up to `max_version`.
pub(crate) fn capsule(
    py: Python<'_>,
    memory: Memory,
    max_version: Option<(u32, u32)>,
) -> PyResult<Py<PyAny>> {
    let mut handed = Handed::new(memory);
    let tensor = handed.describe();
    let context = Box::into_raw(handed).cast();
    if max_version.is_some_and(|(major, _)| major >= VERSION.major) {
        let managed = Box::into_raw(Box::new(ManagedVersioned {
            version: VERSION,
            context,
            deleter: Some(delete_versioned),
            flags: 0,
            tensor,
        }));
        // SAFETY: the GIL is held; `managed` is live and not null, the name is a constant, and the
        // destructor expects just this pair.
        let made =
            unsafe { ffi::PyCapsule_New(managed.cast(), VERSIONED.as_ptr(), Some(drop_versioned)) };
        // SAFETY: `made` is a new reference or null with an exception set.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, made) };
        return made.map(Bound::unbind).inspect_err(|_| {
            // SAFETY: no capsule was made, so the pointers are still ours alone.
            unsafe { delete_versioned(managed) }
        });
    }
    let managed = Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(delete) }));
    // SAFETY: as above.
    let made = unsafe { ffi::PyCapsule_New(managed.cast(), LEGACY.as_ptr(), Some(drop_legacy)) };
    // SAFETY: as above.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) };
    // SAFETY: as above.
    made.map(Bound::unbind).inspect_err(|_| unsafe { delete(managed) })
}

/// On which stream the consumer of a GPU's tensor uses it: `None` is the one that all share, -1
/// says nothing.
///
/// The numbers are those of DLPack and the array API: 1 is the stream that all share, 2 each
/// thread's own, others are addresses. 0 would be ambiguous, they say.
pub(crate) fn consumer(stream: Option<i64>) -> PyResult<Option<u64>> {
    const SHARED: u64 = 1;
    match stream {
        None => Ok(Some(SHARED)),
        Some(-1) => Ok(None),
        Some(stream) if stream > 0 => Ok(Some(stream as u64)),
        Some(_) => {
            Err(PyBufferError::new_err("this is no stream of CUDA: pass 1, 2 or its address"))
        }
    }
}

/// Refuses what cannot be given: another device than `home`, or a copy (there is only the
/// original).
pub(crate) fn check(
    home: (i32, i32),
    stream: Option<i64>,
    device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<()> {
    if home == CPU && stream.is_some() {
        return Err(PyBufferError::new_err("memory of the CPU has no stream: pass stream=None"));
    }
    if device.is_some_and(|device| device != home) {
        let place = if home == CPU { "the CPU" } else { "a GPU" };
        return Err(PyBufferError::new_err(format!(
            "the tensor is on {place}: move it after the hand-over"
        )));
    }
    if copy == Some(true) {
        return Err(PyBufferError::new_err("no copy is made here: copy after the hand-over"));
    }
    Ok(())
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: DLPack calls this once, with the pointer that `capsule` made from boxes.
    drop(unsafe { Box::from_raw(Box::from_raw(managed).context.cast::<Handed>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as for `delete`.
    drop(unsafe { Box::from_raw(Box::from_raw(managed).context.cast::<Handed>()) });
}

unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: CPython passes the capsule that dies. A consumer renames the capsule it has taken
    // over, so under the first name the memory is still ours to free.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as for `drop_legacy`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
