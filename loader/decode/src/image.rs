//! Images: from compressed bytes to pixels to tensor elements.
//!
//! Two steps, limited to what the result depends on. The decoder writes the pixels that the
//! crop needs as 8-bit RGB into the thread's scratch; one pass over those resizes, mirrors, scales,
//! normalises, converts and lays out the result in the batch itself. Sizes come from the header and
//! are checked before anything is allocated.

mod deep;
mod encode;
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
use crate::routes::{CPU, Reason};
use crate::spec::{ImageSpec, Interpolation, Layout, Mode, Quality};

use deep::Deep;
pub use encode::encode_jpeg;
pub(crate) use exif::Orientation;
use finish::Finish;
pub(crate) use jpeg::{MAGIC as JPEG_MAGIC, ends_after_its_scan};
use resize::Resize;
pub(crate) use taps::Taps;

/// Longest accepted side in pixels: libjpeg's own limit.
pub const SIDE_MAX: u32 = 65_500;

/// Most pixels accepted in one image. Equal to Pillow's limit, so that data accepted by today's
/// loaders is accepted here; at three bytes each they take 537 MB of scratch.
pub const PIXELS_MAX: u64 = 178_956_970;

/// Scratch kept between images: one poster in a data set of photographs must not cost its size on
/// every thread for good. 16 Mpx of RGB stay.
const SCRATCH_KEPT_MAX: usize = 48 << 20;

/// Red, green and blue.
const CHANNELS: usize = 3;

/// Memory limit of a PNG or WebP decoder: a full-size image with alpha at 16 bits.
const DECODER_BYTES_MAX: usize = PIXELS_MAX as usize * 8;

/// Factors by which a JPEG may be shrunk while decoding: its blocks of 8 become 1, 2 or 4 pixels
/// wide.
const SHRINKS: [u32; 3] = [8, 4, 2];

/// Prepared [`ImageSpec`] of one output, with its tables.
#[derive(Debug)]
pub(crate) struct ImagePlan {
    spec: ImageSpec,
    finish: Finish,
}

/// Memory that one thread reuses between images.
#[derive(Default)]
pub(crate) struct Scratch {
    jpeg: jpeg::Jpeg,
    pixels: Pixels,
    turned: Vec<u8>,
    deep: Deep,
    cuts: Vec<Cut>,
    resize: Resize,
}

/// Decoded part of an image: 8-bit RGB rows without gaps.
#[derive(Default)]
pub(crate) struct Pixels {
    /// The part, in pixels of the decoded image.
    part: Part,
    /// Factor by which it was shrunk while decoding, from 1.
    shrunk: u32,
    /// Pixels of the part; bytes after them are left from larger images.
    bytes: Vec<u8>,
}

/// Requested form of a file's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// 8 bits a channel.
    Color,
    /// As many bits as the file has.
    Full,
    /// The numbers that the file stores: of a palette, or gray.
    Stored,
}

/// Requested pixels of a file.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    part: Part,
    /// Factor by which the decoder may shrink the image.
    shrink: u32,
    /// True if slightly different pixels are acceptable for speed.
    is_fast: bool,
}

/// A file with parsed header.
enum Opened<'a> {
    Jpeg(jpeg::Opened<'a>),
    Png(Box<png::Opened<'a>>),
    Webp(Box<webp::Opened<'a>>),
}

/// One crop of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) placement: Placement,
    pub(crate) flip: bool,
}

/// An image in scratch; [`Ready::finish`] is the remaining step.
pub(crate) struct Ready<'s> {
    plan: &'s ImagePlan,
    /// Size of the whole image.
    image: Size,
    pixels: Decoded<'s>,
    cuts: &'s [Cut],
    resize: &'s mut Resize,
    /// Name of the decoder in the counts.
    pub(crate) decoder: &'static str,
}

/// Pixels by their depth.
#[derive(Clone, Copy)]
enum Decoded<'s> {
    /// 8 bits a channel.
    Eight(&'s Pixels),
    /// 16 bits.
    Sixteen(&'s Deep),
}

impl ImagePlan {
    pub(crate) fn new(spec: ImageSpec) -> Self {
        let finish = Finish::new(&spec);
        Self { spec, finish }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.spec.dtype
    }

    /// Returns the shape of every row, if all rows have one.
    pub(crate) fn row_shape(&self) -> Option<Vec<usize>> {
        self.spec.size.map(|size| self.shape_of(size))
    }

    /// Returns the shape of an image without pixels, which only shows the place of its channels.
    pub(crate) fn no_shape(&self) -> Vec<usize> {
        self.shape_of((0, 0))
    }

    fn shape_of(&self, (height, width): Size) -> Vec<usize> {
        let (height, width) = (height as usize, width as usize);
        let channels = self.spec.mode.channels();
        let one = match self.spec.layout {
            Layout::Nchw => [channels, height, width],
            Layout::Nhwc => [height, width, channels],
        };
        self.spec.views.iter().map(|views| *views as usize).chain(one).collect()
    }

    /// Decodes as much of `bytes` as the views need; `draw` is the first view's.
    pub(crate) fn prepare<'s>(
        &'s self,
        bytes: &[u8],
        draw: &Draw,
        scratch: &'s mut Scratch,
    ) -> Result<Ready<'s>> {
        let Scratch { jpeg, pixels, turned, deep, cuts, resize } = scratch;
        let is_fast = self.spec.quality == Quality::Fast;
        let opened = Opened::new(bytes, jpeg, self.form(), is_fast)?;
        let stored = opened.size();
        check_size(stored)?;
        let orientation = self.orientation(bytes);
        let image = orientation.size(stored);
        cuts.clear();
        for cut in self.cuts(image, draw) {
            check_size(cut.placement.canvas)?;
            cuts.push(cut);
        }
        let shrink = if is_fast { shrink(cuts) } else { 1 };
        let parts = cuts.iter().map(|cut| cut.placement.part(image));
        let part = match orientation.is_upright() {
            true => parts.reduce(Part::around).unwrap_or_default(),
            false => Part::whole(stored),
        };
        if opened.is_deep() {
            *deep = opened.decode_deep()?;
            if self.spec.dtype == DType::Uint8 {
                return Err(bad("the image has 16 bits, which uint8 cannot hold")
                    .advise("set dtype=\"uint16\""));
            }
            if self.spec.mode == Mode::Gray {
                deep.make_gray();
            }
            if !orientation.is_upright() {
                orientation.turn_deep(deep);
            }
            let pixels = Decoded::Sixteen(deep);
            return Ok(Ready { plan: self, image, pixels, cuts, resize, decoder: CPU });
        }
        let decoder = opened.decode(Wanted { part, shrink, is_fast }, pixels)?;
        if !orientation.is_upright() {
            orientation.apply(pixels, turned);
        }
        if self.spec.mode == Mode::Gray {
            pixels.make_gray();
        }
        Ok(Ready { plan: self, image, pixels: Decoded::Eight(pixels), cuts, resize, decoder })
    }

    /// Returns the form in which files are decoded.
    fn form(&self) -> Form {
        match (self.spec.mode, self.spec.dtype) {
            (Mode::Palette, _) => Form::Stored,
            (_, DType::Uint8) => Form::Color,
            _ => Form::Full,
        }
    }

    /// Returns the reason why a GPU makes none of its rows, if there is one.
    pub(crate) fn only_here(&self) -> Option<Reason> {
        let ImageSpec { mode, interpolation, dtype, .. } = self.spec;
        let is_plain = mode == Mode::Rgb && interpolation == Interpolation::Bilinear;
        (!is_plain || dtype == DType::Uint16).then_some(Reason::Mode)
    }

    /// Returns the orientation of the image in `bytes`.
    pub(crate) fn orientation(&self, bytes: &[u8]) -> Orientation {
        match self.spec.exif {
            true => Orientation::read(bytes),
            false => Orientation::default(),
        }
    }

    /// Returns the crops of an upright `image`; `draw` is the first view's.
    pub(crate) fn cuts(&self, image: Size, draw: &Draw) -> impl Iterator<Item = Cut> {
        (0..u64::from(self.spec.views.unwrap_or(1))).map(move |view| {
            let draw = Draw { view: draw.view + view, ..*draw };
            let placement = Placement::new(self.spec.crop, self.spec.size, image, &draw);
            let flip = self.spec.flip && draw.numbers(Purpose::Flip).below(2) == 1;
            Cut { placement, flip }
        })
    }

    /// Returns the layout: channels first or last.
    pub(crate) fn layout(&self) -> Layout {
        self.spec.layout
    }

    /// Returns the table of elements for each 8-bit value of each channel: three times 256
    /// elements.
    pub(crate) fn table(&self) -> &[u8] {
        self.finish.as_bytes()
    }
}

/// Returns the factor by which all views shrink the image anyway.
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
    /// Returns the finished row's shape.
    pub(crate) fn shape(&self) -> Vec<usize> {
        // Several views have a size, which is the canvas of each.
        self.plan.shape_of(self.cuts[0].placement.canvas)
    }

    /// Crops, resizes and writes the row: exactly its shape's elements.
    pub(crate) fn finish(self, out: &mut [u8]) {
        let Self { plan, image, pixels, cuts, resize, .. } = self;
        let each = out.len() / cuts.len();
        for (Cut { placement, flip }, out) in cuts.iter().zip(out.chunks_exact_mut(each)) {
            let pixels = match pixels {
                Decoded::Eight(pixels) => pixels,
                Decoded::Sixteen(deep) => {
                    deep.finish(&plan.spec, placement, *flip, out);
                    continue;
                }
            };
            let width = placement.canvas.1;
            let mut canvas = plan.finish.canvas(width, *flip, &plan.spec, out);
            resize.draw(pixels, image, placement, plan.spec.interpolation, &mut canvas);
        }
    }
}

impl Scratch {
    /// Frees memory above the limit, taken by one unusually large image.
    pub(crate) fn trim(&mut self) {
        if self.pixels.bytes.capacity() > SCRATCH_KEPT_MAX {
            self.pixels.bytes = Vec::new();
        }
        if self.turned.capacity() > SCRATCH_KEPT_MAX {
            self.turned = Vec::new();
        }
        if self.deep.values.capacity() * size_of::<u16>() > SCRATCH_KEPT_MAX {
            self.deep = Deep::default();
        }
        self.jpeg.trim(SCRATCH_KEPT_MAX);
        self.resize.trim(SCRATCH_KEPT_MAX);
    }
}

impl<'a> Opened<'a> {
    fn new(bytes: &'a [u8], jpeg: &'a mut jpeg::Jpeg, form: Form, is_fast: bool) -> Result<Self> {
        let is_png = bytes.starts_with(png::MAGIC);
        if form == Form::Stored && !is_png {
            Err(png::no_palette())
        } else if bytes.starts_with(jpeg::MAGIC) {
            jpeg.open(bytes, is_fast).map(Self::Jpeg)
        } else if is_png {
            png::open(bytes, form).map(Box::new).map(Self::Png)
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

    /// Returns true if its pixels come with 16 bits a channel.
    fn is_deep(&self) -> bool {
        matches!(self, Self::Png(opened) if opened.is_deep())
    }

    /// Decodes an image of 16 bits a channel.
    fn decode_deep(self) -> Result<Deep> {
        match self {
            Self::Png(opened) => opened.decode_deep(),
            Self::Jpeg(_) | Self::Webp(_) => Err(bad("the image has 8 bits")),
        }
    }

    /// Decodes at least the requested pixels of an image whose size has been checked; returns the
    /// decoder's name in the counts.
    fn decode(self, wanted: Wanted, into: &mut Pixels) -> Result<&'static str> {
        match self {
            Self::Jpeg(opened) => return opened.decode(wanted, into),
            Self::Png(opened) => opened.decode(into)?,
            Self::Webp(opened) => opened.decode(into)?,
        }
        Ok(CPU)
    }
}

impl Pixels {
    /// Makes room for `part` of an image shrunk by `shrunk`; the caller overwrites all bytes.
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

    /// Mixes red, green and blue to gray, by the weights of ITU-R 601, as Pillow does.
    fn make_gray(&mut self) {
        let len = byte_len(self.size());
        for pixel in self.bytes[..len].as_chunks_mut::<CHANNELS>().0 {
            let [red, green, blue] = pixel.map(u32::from);
            *pixel =
                [((red * 19_595 + green * 38_470 + blue * 7_471 + 0x8000) >> 16) as u8; CHANNELS];
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..byte_len(self.size())]
    }
}

/// Copies the colours of pixels of `N` bytes and drops the rest, such as alpha.
fn take_color<const N: usize>(raw: &[u8], pixels: &mut [u8]) {
    for (out, color) in pixels.chunks_exact_mut(CHANNELS).zip(raw.chunks_exact(N)) {
        out.copy_from_slice(&color[..CHANNELS]);
    }
}

/// Returns the bytes of an RGB image whose size has been checked.
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
