//! The GPU's kernels compiled for the CPU, and image planes to test them on.
//!
//! The source is the one that the GPU runs; no part of it is copied.

#![allow(unsafe_code, reason = "C, and libjpeg-turbo's planes, which have no safe interface")]

use std::ffi::{c_int, c_void};

use turbojpeg_sys as turbo;

/// Largest number of components of an image.
const COMPONENTS: usize = 3;

unsafe extern "C" {
    /// Runs `forebay_pixels` of the kernels' source on one view.
    ///
    /// # Safety
    /// `view` is one of the source's `View`s, whose pointers are all good, and `table` has three
    /// times 256 elements of `element` (1, 2 or 4) bytes.
    pub fn forebay_pixels(view: *const c_void, table: *const u8, element: u32);

    /// Runs `forebay_gather` of the kernels' source on one move, spread over this many threads.
    ///
    /// # Safety
    /// `of` is one of the source's `Move`s: from where `length` bytes are to where there is room
    /// for them.
    pub fn forebay_gather(of: *const c_void, length: u64, threads: u64);
}

/// One component of an image as it is stored.
#[derive(Debug)]
pub struct Plane {
    /// Values, row after row.
    pub values: Vec<u8>,
    /// Values from row to row: its columns, of brightness rounded up to whole colours.
    pub pitch: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// Decodes a JPEG to its components with libjpeg-turbo, before upsampling and colour conversion.
///
/// # Panics
/// If it cannot be decoded.
#[must_use]
pub fn planes(jpeg: &[u8]) -> Vec<Plane> {
    // SAFETY: a handle that is checked, ended once and known to nobody else; each plane has the
    // bytes that the library says it needs.
    unsafe {
        let handle = turbo::tj3Init(turbo::TJINIT_TJINIT_DECOMPRESS as c_int);
        assert!(!handle.is_null());
        assert_eq!(turbo::tj3DecompressHeader(handle, jpeg.as_ptr(), jpeg.len() as _), 0);
        let get = |what: turbo::TJPARAM| turbo::tj3Get(handle, what as c_int);
        let (width, height) =
            (get(turbo::TJPARAM_TJPARAM_JPEGWIDTH), get(turbo::TJPARAM_TJPARAM_JPEGHEIGHT));
        let sampling = get(turbo::TJPARAM_TJPARAM_SUBSAMP);
        let count = if sampling == turbo::TJSAMP_TJSAMP_GRAY { 1 } else { COMPONENTS };
        let mut planes: Vec<Plane> = (0..count as c_int)
            .map(|component| {
                let pitch = turbo::tj3YUVPlaneWidth(component, width, sampling) as u32;
                let rows = turbo::tj3YUVPlaneHeight(component, height, sampling) as u32;
                let values = vec![0; (pitch * rows) as usize];
                let is_bright = component == 0;
                let width = if is_bright { width as u32 } else { pitch };
                let height = if is_bright { height as u32 } else { rows };
                Plane { values, pitch, width, height }
            })
            .collect();
        let mut at = [std::ptr::null_mut(); COMPONENTS];
        for (at, plane) in at.iter_mut().zip(&mut planes) {
            *at = plane.values.as_mut_ptr();
        }
        let decoded = turbo::tj3DecompressToYUVPlanes8(
            handle,
            jpeg.as_ptr(),
            jpeg.len() as _,
            at.as_mut_ptr(),
            std::ptr::null_mut(),
        );
        turbo::tj3Destroy(handle);
        assert_eq!(decoded, 0, "the planes cannot be decoded");
        planes
    }
}
