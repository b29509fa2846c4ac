//! JPEG files of given pixels, by libjpeg-turbo's compressor: for made-up data sets.
//!
//! Every call gets a buffer as large as the library says that the result can become.

#![allow(unsafe_code, reason = "libjpeg-turbo's compressor has no safe interface")]

use std::ffi::c_int;
use std::ptr::NonNull;

use forebay_error::{Error, ErrorKind, Result};
use turbojpeg_sys as c;

use super::turbo::said;
use super::{CHANNELS, SIDE_MAX};

/// One file's compressor.
struct Compressor(NonNull<std::ffi::c_void>);

/// Returns a JPEG file of `pixels`, `width` × `height` × RGB, with chroma at half the resolution,
/// as cameras write it.
///
/// # Errors
/// `Invalid` if the sides are none or beyond [`SIDE_MAX`], if `pixels` has another length, or if
/// `quality` is not 1 to 100.
pub fn encode_jpeg(pixels: &[u8], (width, height): (u32, u32), quality: u8) -> Result<Vec<u8>> {
    let invalid = |what: &str| Error::new(ErrorKind::Invalid, what.to_owned());
    let sides = 1..=SIDE_MAX;
    if !sides.contains(&width) || !sides.contains(&height) {
        return Err(invalid("a JPEG file's sides are 1 to 65500 pixels"));
    }
    if pixels.len() != width as usize * height as usize * CHANNELS {
        return Err(invalid("the pixels do not fill the image"));
    }
    let side = |pixels: u32| c_int::try_from(pixels).expect("checked above");
    let (width, height) = (side(width), side(height));
    let compressor = Compressor::new().map_err(|told| invalid(&told))?;
    compressor
        .compress(pixels, (width, height), c_int::from(quality))
        .map_err(|told| invalid(&told))
}

impl Compressor {
    fn new() -> Result<Self, String> {
        // SAFETY: it takes no memory of ours, and its result is checked.
        let handle = unsafe { c::tj3Init(c::TJINIT_TJINIT_COMPRESS as c_int) };
        NonNull::new(handle).map(Self).ok_or_else(|| said(std::ptr::null_mut()))
    }

    fn compress(
        &self,
        pixels: &[u8],
        (width, height): (c_int, c_int),
        quality: c_int,
    ) -> Result<Vec<u8>, String> {
        let settings = [
            (c::TJPARAM_TJPARAM_QUALITY, quality),
            (c::TJPARAM_TJPARAM_SUBSAMP, c::TJSAMP_TJSAMP_420),
            (c::TJPARAM_TJPARAM_NOREALLOC, 1),
        ];
        for (parameter, value) in settings {
            // SAFETY: the handle lives.
            self.outcome(unsafe { c::tj3Set(self.0.as_ptr(), parameter as c_int, value) })?;
        }
        // SAFETY: it computes with three numbers.
        let most = unsafe { c::tj3JPEGBufSize(width, height, c::TJSAMP_TJSAMP_420) };
        let mut file = vec![0; usize::try_from(most).map_err(|_| "the image is too large")?];
        let (mut start, mut length) = (file.as_mut_ptr(), most);
        // SAFETY: the handle lives; `pixels` has `height` rows of `width` pixels of three bytes;
        // `file` has the length given, which suffices for any result, and is never moved.
        let compressed = unsafe {
            c::tj3Compress8(
                self.0.as_ptr(),
                pixels.as_ptr(),
                width,
                0,
                height,
                c::TJPF_TJPF_RGB,
                &raw mut start,
                &raw mut length,
            )
        };
        self.outcome(compressed)?;
        file.truncate(usize::try_from(length).map_err(|_| "the image is too large")?);
        Ok(file)
    }

    fn outcome(&self, returned: c_int) -> Result<(), String> {
        if returned == 0 { Ok(()) } else { Err(said(self.0.as_ptr())) }
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: the handle lives until here, without another owner.
        unsafe { c::tj3Destroy(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::turbo::{Decompressor, Format};
    use super::*;
    use crate::crop::Part;

    #[test]
    fn encoded_image_decodes_to_its_colour() {
        let pixels = [200, 60, 90].repeat(40 * 24);
        let file = encode_jpeg(&pixels, (40, 24), 90).unwrap();
        let mut decompressor = Decompressor::new(100).unwrap();
        let header = decompressor.header(&file).unwrap();
        assert_eq!(header.size(), (24, 40));
        let mut decoded = vec![0; pixels.len()];
        let whole = Part::whole(header.size());
        decompressor.decode(&file, &header, whole, Format::Rgb, &mut decoded).unwrap();
        assert!(pixels.iter().zip(&decoded).all(|(one, other)| one.abs_diff(*other) <= 3));
    }

    #[test]
    fn impossible_images_are_refused() {
        let refused = |pixels: &[u8], sides, quality| {
            encode_jpeg(pixels, sides, quality).map_err(|error| error.kind())
        };
        assert_eq!(refused(&[], (0, 5), 90), Err(ErrorKind::Invalid));
        assert_eq!(refused(&[0; 11], (2, 2), 90), Err(ErrorKind::Invalid));
        assert_eq!(refused(&[0; 12], (2, 2), 101), Err(ErrorKind::Invalid));
        assert_eq!(refused(&[0; 12], (2, SIDE_MAX + 1), 90), Err(ErrorKind::Invalid));
    }
}
