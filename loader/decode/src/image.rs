//! Images: compressed bytes to pixels to tensor elements.
//!
//! Its rule: three steps, each touching a pixel once, and none that the result does not depend on. The decoder
//! writes what the crop needs as 8-bit RGB into the thread's own scratch; the resize filter reads that; one pass
//! mirrors, scales, normalises, converts and lays out the result in the batch itself. Sizes come from the
//! header and are refused before anything is allocated.

mod finish;
mod jpeg;
#[cfg(test)]
mod parity;
mod png;
mod resize;
mod turbo;

use forebay_error::{Error, Result};

use crate::crop::{Part, Placement, Size};
use crate::draw::{Draw, Purpose};
use crate::dtype::DType;
use crate::record::bad;
use crate::spec::{ImageSpec, Layout};

use finish::Finish;
use resize::Resize;

/// The longest side accepted, in pixels: what libjpeg itself can hold.
pub const SIDE_MAX: u32 = 65_500;

/// The most pixels accepted in one image. Pillow refuses the same number, so that data which passes
/// through today's loaders passes here; three bytes for each are 537 MB of scratch.
pub const PIXELS_MAX: u64 = 178_956_970;

/// Scratch above this is given back after use: one poster in a data set of photographs must not
/// cost its size on every thread for good. 16 Mpx of RGB stay.
const SCRATCH_KEPT_MAX: usize = 48 << 20;

/// Red, green and blue.
const CHANNELS: usize = 3;

/// How to make one output's images: an [`ImageSpec`] with its tables worked out.
#[derive(Debug)]
pub(crate) struct ImagePlan {
    spec: ImageSpec,
    finish: Finish,
}

/// What one thread reuses from image to image.
#[derive(Default)]
pub(crate) struct Scratch {
    jpeg: jpeg::Jpeg,
    pixels: Pixels,
    resize: Resize,
}

/// A decoded part of an image: 8-bit RGB rows without gaps.
#[derive(Default)]
pub(crate) struct Pixels {
    part: Part,
    /// Bytes past the part are left from larger ones.
    bytes: Vec<u8>,
}

/// A file whose header has been read.
enum Opened<'a> {
    Jpeg(jpeg::Opened<'a>),
    Png(Box<png::Opened<'a>>),
}

/// An image in scratch, cropped and resized; what remains is [`Ready::finish`].
pub(crate) struct Ready<'s> {
    plan: &'s ImagePlan,
    pixels: &'s [u8],
    size: Size,
    flip: bool,
}

impl ImagePlan {
    pub(crate) fn new(spec: ImageSpec) -> Self {
        let finish = Finish::new(&spec);
        Self { spec, finish }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.spec.dtype
    }

    /// The shape of every row, if all rows have one.
    pub(crate) fn row_shape(&self) -> Option<[usize; 3]> {
        self.spec.size.map(|size| self.shape_of(size))
    }

    /// The shape of an image without pixels, which says no more than where its channels are.
    pub(crate) fn no_shape(&self) -> Vec<usize> {
        self.shape_of((0, 0)).to_vec()
    }

    fn shape_of(&self, (height, width): Size) -> [usize; 3] {
        let (height, width) = (height as usize, width as usize);
        match self.spec.layout {
            Layout::Nchw => [CHANNELS, height, width],
            Layout::Nhwc => [height, width, CHANNELS],
        }
    }

    /// Decodes, crops and resizes `bytes` in `scratch`.
    pub(crate) fn prepare<'s>(
        &'s self,
        bytes: &[u8],
        draw: &Draw,
        scratch: &'s mut Scratch,
    ) -> Result<Ready<'s>> {
        let opened = Opened::new(bytes, &mut scratch.jpeg)?;
        let image = opened.size();
        check_size(image)?;
        let placement = Placement::new(self.spec.crop, self.spec.size, image, draw);
        check_size(placement.canvas)?;
        opened.decode(placement.part(image), &mut scratch.pixels)?;
        let flip = self.spec.flip && draw.numbers(Purpose::Flip).below(2) == 1;
        let pixels = scratch.resize.run(&scratch.pixels, image, &placement)?;
        Ok(Ready { plan: self, pixels, size: placement.canvas, flip })
    }
}

impl Ready<'_> {
    /// The finished row's shape.
    pub(crate) fn shape(&self) -> [usize; 3] {
        self.plan.shape_of(self.size)
    }

    /// Writes the row: exactly its shape's elements.
    pub(crate) fn finish(&self, out: &mut [u8]) {
        let width = self.size.1 as usize;
        self.plan.finish.write(self.pixels, width, self.flip, self.plan.spec.layout, out);
    }
}

impl Scratch {
    /// Gives back what one unusually large image made it grow to.
    pub(crate) fn trim(&mut self) {
        if self.pixels.bytes.capacity() > SCRATCH_KEPT_MAX {
            self.pixels.bytes = Vec::new();
        }
        self.resize.trim(SCRATCH_KEPT_MAX);
    }
}

impl<'a> Opened<'a> {
    fn new(bytes: &'a [u8], jpeg: &'a mut jpeg::Jpeg) -> Result<Self> {
        if bytes.starts_with(jpeg::MAGIC) {
            jpeg.open(bytes).map(Self::Jpeg)
        } else if bytes.starts_with(png::MAGIC) {
            png::open(bytes).map(Box::new).map(Self::Png)
        } else {
            Err(bad("this is neither a JPEG nor a PNG image")
                .at("bytes", bytes.len())
                .advise("decode other formats with Bytes(map=…)"))
        }
    }

    fn size(&self) -> Size {
        match self {
            Self::Jpeg(opened) => opened.size(),
            Self::Png(opened) => opened.size(),
        }
    }

    /// Decodes at least `part` of an image whose size has been checked.
    fn decode(self, part: Part, into: &mut Pixels) -> Result<()> {
        match self {
            Self::Jpeg(opened) => opened.decode(part, into),
            Self::Png(opened) => opened.decode(into),
        }
    }
}

impl Pixels {
    /// Room for `part`, whose bytes the caller overwrites in full.
    fn make_room(&mut self, part: Part) -> &mut [u8] {
        self.part = part;
        let len = byte_len(self.size());
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[..len]
    }

    fn size(&self) -> Size {
        (self.part.height, self.part.width)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..byte_len(self.size())]
    }
}

/// Bytes of an RGB image whose size has been checked.
fn byte_len((height, width): Size) -> usize {
    height as usize * width as usize * CHANNELS
}

fn check_size((height, width): Size) -> Result<()> {
    let shown = |error: Error| error.at("height", height).at("width", width);
    if height == 0 || width == 0 {
        return Err(shown(bad("the image is empty")));
    }
    if height > SIDE_MAX || width > SIDE_MAX || u64::from(height) * u64::from(width) > PIXELS_MAX {
        let limits = format!("at most {SIDE_MAX} a side and {PIXELS_MAX} pixels are decoded");
        return Err(shown(bad("the image is too large")).advise(limits));
    }
    Ok(())
}
