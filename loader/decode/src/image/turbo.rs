//! libjpeg-turbo's decompressor through its own C interface: the calls that the crate `turbojpeg`
//! wraps, and regions, which it does not.
//!
//! Nothing else here calls C but the compressor (`encode.rs`), and no call gets a buffer smaller
//! than the library fills. Sizes come from the header of the very bytes that are decoded.

#![allow(unsafe_code, reason = "libjpeg-turbo's regions have no safe interface")]

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use forebay_jpeg::segments;
use turbojpeg_sys as c;

use crate::crop::{Part, Size};

const NOT_SHRUNK: c::tjscalingfactor = c::tjscalingfactor { num: 1, denom: 1 };

/// One thread's decompressor.
pub(super) struct Decompressor(NonNull<std::ffi::c_void>);

// SAFETY: the handle is memory with no other owner; the library keeps none of it in thread-local
// storage.
unsafe impl Send for Decompressor {}

/// Facts of a file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) height: u32,
    /// True if its colours are inks.
    pub(super) is_inks: bool,
    /// Alignment of a region's left side in pixels; `None` if only the whole can be decoded.
    pub(super) step: Option<u32>,
}

impl Header {
    pub(super) fn size(&self) -> Size {
        (self.height, self.width)
    }

    /// Returns the header of the image shrunk by `by`, with the library's rounding.
    pub(super) fn shrunk(&self, by: u32) -> Self {
        Self {
            width: self.width.div_ceil(by),
            height: self.height.div_ceil(by),
            step: self.step.map(|step| step.div_ceil(by)),
            ..*self
        }
    }
}

/// Meaning of a pixel's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Rgb,
    Cmyk,
}

impl Format {
    fn bytes(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Cmyk => 4,
        }
    }

    fn code(self) -> c_int {
        match self {
            Self::Rgb => c::TJPF_TJPF_RGB,
            Self::Cmyk => c::TJPF_TJPF_CMYK,
        }
    }
}

/// Pixels of a block's side.
const BLOCK: u32 = 8;

/// Returns the width of the blocks of `bytes` that are decoded as one; `None` if the library does
/// not know the file's chroma subsampling.
///
/// The library tells 4:4:4 of files whose components all have twice the blocks of others, too. Then
/// its own check is of fewer pixels than a region's left side needs.
fn step(subsampling: c_int, bytes: &[u8]) -> Option<u32> {
    match subsampling {
        c::TJSAMP_TJSAMP_UNKNOWN => None,
        // Their blocks are coded one by one.
        c::TJSAMP_TJSAMP_GRAY => Some(BLOCK),
        _ => widest_sampling(bytes).map(|blocks| blocks * BLOCK),
    }
}

/// Returns the largest number of blocks side by side that a component of a file has.
fn widest_sampling(bytes: &[u8]) -> Option<u32> {
    // Frames, not tables (DHT, DAC) and an extension (JPG).
    let is_frame = |marker| matches!(marker, 0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc));
    let (_, frame) = segments(bytes).find(|(marker, _)| is_frame(*marker))?;
    // Precision, sides, and the number of components before them.
    frame.get(6..)?.chunks_exact(3).map(|component| u32::from(component[1] >> 4)).max()
}

impl Decompressor {
    /// Makes a decompressor that fails after `scans_max` scans.
    ///
    /// # Errors
    /// The library's message.
    pub(super) fn new(scans_max: c_int) -> Result<Self, String> {
        // SAFETY: it takes no memory of ours, and its result is checked.
        let handle = unsafe { c::tj3Init(c::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let Some(handle) = NonNull::new(handle) else { return Err(said(std::ptr::null_mut())) };
        let this = Self(handle);
        // SAFETY: the handle lives.
        let set =
            unsafe { c::tj3Set(this.raw(), c::TJPARAM_TJPARAM_SCANLIMIT as c_int, scans_max) };
        this.outcome(set)?;
        Ok(this)
    }

    /// Reads the header of `bytes`.
    ///
    /// # Errors
    /// The library's message.
    pub(super) fn header(&mut self, bytes: &[u8]) -> Result<Header, String> {
        // SAFETY: the handle lives, and pointer and length are those of a slice.
        let read =
            unsafe { c::tj3DecompressHeader(self.raw(), bytes.as_ptr(), bytes.len() as c::size_t) };
        self.outcome(read)?;
        // SAFETY: the handle lives.
        let set = unsafe { c::tj3SetScalingFactor(self.raw(), NOT_SHRUNK) };
        self.outcome(set)?;
        let side = |parameter| u32::try_from(self.get(parameter));
        let (Ok(width), Ok(height)) =
            (side(c::TJPARAM_TJPARAM_JPEGWIDTH), side(c::TJPARAM_TJPARAM_JPEGHEIGHT))
        else {
            return Err("it has no size".to_owned());
        };
        let colours = self.get(c::TJPARAM_TJPARAM_COLORSPACE);
        let is_inks = matches!(colours as c::TJCS, c::TJCS_TJCS_CMYK | c::TJCS_TJCS_YCCK);
        let is_lossless = self.get(c::TJPARAM_TJPARAM_LOSSLESS) != 0;
        let subsampling = self.get(c::TJPARAM_TJPARAM_SUBSAMP);
        let step = step(subsampling, bytes).filter(|_| !is_lossless);
        Ok(Header { width, height, is_inks, step })
    }

    /// Shrinks the next decoding of the image whose `header` was read last by 1, 2, 4 or 8; returns
    /// its header then.
    ///
    /// # Errors
    /// The library's message.
    pub(super) fn shrink(&mut self, header: &Header, by: u32) -> Result<Header, String> {
        let factor = c::tjscalingfactor { num: 1, denom: by as c_int };
        // SAFETY: the handle lives.
        let set = unsafe { c::tj3SetScalingFactor(self.raw(), factor) };
        self.outcome(set)?;
        Ok(header.shrunk(by))
    }

    /// Chooses the fastest chroma upsampling instead of the smooth one.
    ///
    /// # Errors
    /// The library's message.
    pub(super) fn be_quick(&mut self, quick: bool) -> Result<(), String> {
        // SAFETY: the handle lives.
        let set = unsafe {
            c::tj3Set(self.raw(), c::TJPARAM_TJPARAM_FASTUPSAMPLE as c_int, c_int::from(quick))
        };
        self.outcome(set)
    }

    /// Decodes `region` of `bytes`, whose `header` was read last, shrunk or not, into `pixels`, row
    /// after row.
    ///
    /// # Errors
    /// The library's message, which may be a warning about an image that it decoded.
    ///
    /// # Panics
    /// If `pixels` does not match the region, or the region leaves the image: mistakes of ours.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        region: Part,
        format: Format,
        pixels: &mut [u8],
    ) -> Result<(), String> {
        let whole = Part::whole(header.size());
        assert!(header.step.is_some() || region == whole, "this image has no regions");
        let (right, bottom) = (region.left + region.width, region.top + region.height);
        assert!(right <= whole.width && bottom <= whole.height, "a region lies in its image");
        let row_bytes = region.width as usize * format.bytes();
        assert_eq!(pixels.len(), region.height as usize * row_bytes);
        let side = |pixels: u32| c_int::try_from(pixels).expect("the image type's values fit");
        // The library takes zeros for the whole. If it supports regions, it gets the whole
        // explicitly, too: then it writes no more than that, whatever the bytes say when it reads
        // them again.
        let asked = if header.step.is_none() { Part::default() } else { region };
        let asked = c::tjregion {
            x: side(asked.left),
            y: side(asked.top),
            w: side(asked.width),
            h: side(asked.height),
        };
        // SAFETY: the handle lives.
        let set = unsafe { c::tj3SetCroppingRegion(self.raw(), asked) };
        self.outcome(set)?;
        let pitch = c_int::try_from(row_bytes).expect("an image's sides fit 16 bits");
        // SAFETY: the handle lives, pointer and length of the input are those of a slice. The
        // library writes `region.height` rows of `pitch` bytes, as many as `pixels` has, or all of
        // an image without regions, whose size it reads from the same bytes again.
        let decoded = unsafe {
            c::tj3Decompress8(
                self.raw(),
                bytes.as_ptr(),
                bytes.len() as c::size_t,
                pixels.as_mut_ptr(),
                pitch,
                format.code(),
            )
        };
        self.outcome(decoded)
    }

    fn raw(&self) -> c::tjhandle {
        self.0.as_ptr()
    }

    fn get(&self, parameter: c::TJPARAM) -> c_int {
        // SAFETY: the handle lives.
        unsafe { c::tj3Get(self.raw(), parameter as c_int) }
    }

    fn outcome(&self, returned: c_int) -> Result<(), String> {
        if returned == 0 { Ok(()) } else { Err(said(self.raw())) }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the handle lives until here, without another owner.
        unsafe { c::tj3Destroy(self.raw()) }
    }
}

/// Returns the library's message about its last failure with `handle`, or about creating one.
pub(super) fn said(handle: c::tjhandle) -> String {
    // SAFETY: the text is zero-terminated and valid until the next call with this handle, or in
    // this thread.
    unsafe { CStr::from_ptr(c::tj3GetErrorStr(handle)) }.to_string_lossy().into_owned()
}
