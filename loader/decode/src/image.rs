//! Images: compressed bytes to pixels to tensor elements.
//!
//! Its rule: two steps, and none that the result does not depend on. The decoder writes what the crop needs as
//! 8-bit RGB into the thread's own scratch; one pass over that resizes, mirrors, scales, normalises, converts and
//! lays out the result in the batch itself. Sizes come from the header and are refused before anything is
//! allocated.

mod exif;
mod finish;
mod jpeg;
#[cfg(test)]
mod parity;
mod png;
mod resize;
mod taps;
mod turbo;
mod webp;

use forebay_error::{Error, Result};

use crate::crop::{Part, Placement, Size};
use crate::draw::{Draw, Purpose};
use crate::dtype::DType;
use crate::record::bad;
use crate::spec::{ImageSpec, Layout, Quality};

pub(crate) use exif::Orientation;
use finish::Finish;
pub(crate) use jpeg::{MAGIC as JPEG_MAGIC, ends_after_its_scan};
use resize::Resize;
pub(crate) use taps::Taps;

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

/// Bytes that a decoder of PNG or WebP may take for itself: a full-size image with alpha at 16 bits.
const DECODER_BYTES_MAX: usize = PIXELS_MAX as usize * 8;

/// By how much a JPEG may be shrunk while it is decoded: its blocks of 8 become 1, 2 or 4 pixels wide.
const SHRINKS: [u32; 3] = [8, 4, 2];

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
    turned: Vec<u8>,
    cuts: Vec<Cut>,
    resize: Resize,
}

/// A decoded part of an image: 8-bit RGB rows without gaps.
#[derive(Default)]
pub(crate) struct Pixels {
    /// The part, in pixels of the image as it was decoded.
    part: Part,
    /// By how much it was shrunk on the way, from 1.
    shrunk: u32,
    /// Bytes past the part are left from larger ones.
    bytes: Vec<u8>,
}

/// What is wanted of a file's pixels.
#[derive(Clone, Copy)]
struct Wanted {
    part: Part,
    /// By how much the decoder may shrink the image.
    shrink: u32,
    /// Whether it may be quick where pixels come out a little different.
    is_fast: bool,
}

/// A file whose header has been read.
enum Opened<'a> {
    Jpeg(jpeg::Opened<'a>),
    Png(Box<png::Opened<'a>>),
    Webp(Box<webp::Opened<'a>>),
}

/// One of the crops that are made of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) placement: Placement,
    pub(crate) flip: bool,
}

/// An image in scratch; what remains is [`Ready::finish`].
pub(crate) struct Ready<'s> {
    plan: &'s ImagePlan,
    /// The size of the whole image.
    image: Size,
    pixels: &'s Pixels,
    cuts: &'s [Cut],
    resize: &'s mut Resize,
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
    pub(crate) fn row_shape(&self) -> Option<Vec<usize>> {
        self.spec.size.map(|size| self.shape_of(size))
    }

    /// The shape of an image without pixels, which says no more than where its channels are.
    pub(crate) fn no_shape(&self) -> Vec<usize> {
        self.shape_of((0, 0))
    }

    fn shape_of(&self, (height, width): Size) -> Vec<usize> {
        let (height, width) = (height as usize, width as usize);
        let one = match self.spec.layout {
            Layout::Nchw => [CHANNELS, height, width],
            Layout::Nhwc => [height, width, CHANNELS],
        };
        self.spec.views.iter().map(|views| *views as usize).chain(one).collect()
    }

    /// Decodes as much of `bytes` as the views need, of which `draw` is the first's.
    pub(crate) fn prepare<'s>(
        &'s self,
        bytes: &[u8],
        draw: &Draw,
        scratch: &'s mut Scratch,
    ) -> Result<Ready<'s>> {
        let Scratch { jpeg, pixels, turned, cuts, resize } = scratch;
        let opened = Opened::new(bytes, jpeg)?;
        let stored = opened.size();
        check_size(stored)?;
        let orientation = self.orientation(bytes);
        let image = orientation.size(stored);
        cuts.clear();
        for cut in self.cuts(image, draw) {
            check_size(cut.placement.canvas)?;
            cuts.push(cut);
        }
        let is_fast = self.spec.quality == Quality::Fast;
        let shrink = if is_fast { shrink(cuts) } else { 1 };
        let parts = cuts.iter().map(|cut| cut.placement.part(image));
        let part = match orientation.is_upright() {
            true => parts.reduce(Part::around).unwrap_or_default(),
            false => Part::whole(stored),
        };
        opened.decode(Wanted { part, shrink, is_fast }, pixels)?;
        if !orientation.is_upright() {
            orientation.apply(pixels, turned);
        }
        Ok(Ready { plan: self, image, pixels, cuts, resize })
    }

    /// How the image in `bytes` is to be turned.
    pub(crate) fn orientation(&self, bytes: &[u8]) -> Orientation {
        match self.spec.exif {
            true => Orientation::read(bytes),
            false => Orientation::default(),
        }
    }

    /// The crops of an upright `image`, of which `draw` is the first's.
    pub(crate) fn cuts(&self, image: Size, draw: &Draw) -> impl Iterator<Item = Cut> {
        (0..u64::from(self.spec.views.unwrap_or(1))).map(move |view| {
            let draw = Draw { view: draw.view + view, ..*draw };
            let placement = Placement::new(self.spec.crop, self.spec.size, image, &draw);
            let flip = self.spec.flip && draw.numbers(Purpose::Flip).below(2) == 1;
            Cut { placement, flip }
        })
    }

    /// Whether channels come first or last.
    pub(crate) fn layout(&self) -> Layout {
        self.spec.layout
    }

    /// What each 8-bit value of each channel becomes: three times 256 elements.
    pub(crate) fn table(&self) -> &[u8] {
        self.finish.as_bytes()
    }
}

/// By how much all views shrink the image anyway.
fn shrink(cuts: &[Cut]) -> u32 {
    let can = |by: u32| {
        cuts.iter().all(|Cut { placement, .. }| {
            let by = f64::from(by);
            placement.source.width / by >= f64::from(placement.content.1)
                && placement.source.height / by >= f64::from(placement.content.0)
        })
    };
    SHRINKS.into_iter().find(|by| can(*by)).unwrap_or(1)
}

impl Ready<'_> {
    /// The finished row's shape.
    pub(crate) fn shape(&self) -> Vec<usize> {
        // With several views there is a size, which is the canvas of each.
        self.plan.shape_of(self.cuts[0].placement.canvas)
    }

    /// Crops, resizes and writes the row: exactly its shape's elements.
    pub(crate) fn finish(self, out: &mut [u8]) {
        let Self { plan, image, pixels, cuts, resize } = self;
        let each = out.len() / cuts.len();
        for (Cut { placement, flip }, out) in cuts.iter().zip(out.chunks_exact_mut(each)) {
            let width = placement.canvas.1;
            let mut canvas = plan.finish.canvas(width, *flip, plan.spec.layout, out);
            resize.draw(pixels, image, placement, &mut canvas);
        }
    }
}

impl Scratch {
    /// Gives back what one unusually large image made it grow to.
    pub(crate) fn trim(&mut self) {
        if self.pixels.bytes.capacity() > SCRATCH_KEPT_MAX {
            self.pixels.bytes = Vec::new();
        }
        if self.turned.capacity() > SCRATCH_KEPT_MAX {
            self.turned = Vec::new();
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
        } else if webp::is_one(bytes) {
            webp::open(bytes).map(Box::new).map(Self::Webp)
        } else {
            Err(bad("this is no JPEG, PNG or WebP image")
                .at("bytes", bytes.len())
                .advise("decode other formats with Bytes(map=…)"))
        }
    }

    fn size(&self) -> Size {
        match self {
            Self::Jpeg(opened) => opened.size(),
            Self::Png(opened) => opened.size(),
            Self::Webp(opened) => opened.size(),
        }
    }

    /// Decodes at least what is wanted of an image whose size has been checked.
    fn decode(self, wanted: Wanted, into: &mut Pixels) -> Result<()> {
        match self {
            Self::Jpeg(opened) => opened.decode(wanted, into),
            Self::Png(opened) => opened.decode(into),
            Self::Webp(opened) => opened.decode(into),
        }
    }
}

impl Pixels {
    /// Room for `part` of an image shrunk by `shrunk`, whose bytes the caller overwrites in full.
    fn make_room(&mut self, part: Part, shrunk: u32) -> &mut [u8] {
        (self.part, self.shrunk) = (part, shrunk);
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

/// Copies the colours of pixels of `N` bytes; what follows them, as alpha does, is dropped.
fn take_color<const N: usize>(raw: &[u8], pixels: &mut [u8]) {
    for (out, color) in pixels.chunks_exact_mut(CHANNELS).zip(raw.chunks_exact(N)) {
        out.copy_from_slice(&color[..CHANNELS]);
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
