//! Requested outputs: their names, sources and decoding.
//!
//! A specification is rejected as a whole before the first byte is read, with advice; a
//! checked one cannot fail later by itself. The Python package sends it as JSON.

mod check;
mod ragged;

pub use check::VIEWS_MAX;
pub use ragged::{PadValue, Ragged};

use std::collections::BTreeMap;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::dtype::DType;

/// One output of a batch and its source field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldSpec {
    /// The output's key in the batch.
    pub name: String,
    /// Field names to look for, in lower case; the first one present is used. In JSON they are one
    /// text, "jpg;jpeg;png".
    #[serde(serialize_with = "joined", deserialize_with = "alternatives")]
    pub source: Vec<String>,
    /// True if a sample may lack all of them (its row is then marked absent).
    #[serde(default)]
    pub optional: bool,
    /// Kind of the bytes and of the output.
    pub kind: FieldKind,
}

/// Kind of a field's bytes and of its output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum FieldKind {
    /// A JPEG, PNG or WebP image, to a tensor of pixels.
    Image(ImageSpec),
    /// A decimal integer, to int64; with `path` ("a.b.0"), one inside a JSON document.
    Int {
        /// Path of the integer in a JSON document.
        #[serde(default)]
        path: Option<String>,
    },
    /// A decimal number, to float32 unless `dtype` says otherwise; with `path`, inside JSON.
    Float {
        /// Path of the number in a JSON document.
        #[serde(default)]
        path: Option<String>,
        /// float32 or float64.
        #[serde(default = "float_dtype")]
        dtype: DType,
    },
    /// One of several names, to its number as int64; with `path`, one inside a JSON document.
    Label {
        /// Each name's number.
        classes: BTreeMap<String, i64>,
        /// Path of the name in a JSON document.
        #[serde(default)]
        path: Option<String>,
    },
    /// UTF-8 text: as texts, or as its bytes where rows are padded or joined.
    Text {
        /// Treatment of rows of different length.
        #[serde(default)]
        ragged: Ragged,
    },
    /// A JSON document, or the part of it at `path`, as JSON text.
    Json {
        /// Path of the requested part.
        #[serde(default)]
        path: Option<String>,
    },
    /// An array: a NumPy file, or bytes of a type and shape known beforehand. Arrays are stacked
    /// where shapes and types agree over the batch.
    Npy {
        /// Treatment of arrays of different shape.
        #[serde(default)]
        ragged: Ragged,
        /// Type and shape of bytes that are not a NumPy file.
        #[serde(default)]
        raw: Option<RawSpec>,
    },
    /// The bytes unchanged.
    Bytes,
}

/// Layout of bytes without a header: elements in C order, little-endian.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSpec {
    /// Element type.
    pub dtype: DType,
    /// Elements per dimension, the outermost first; `None`, in at most one place, follows from the
    /// number of bytes.
    pub shape: Vec<Option<usize>>,
}

/// Conversion of an image to a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageSpec {
    /// Height and width of the result in pixels; `None` keeps the size of the crop.
    pub size: Option<(u32, u32)>,
    /// Part of the image that is taken.
    pub crop: Crop,
    /// True mirrors half of the samples, drawn at random, left to right.
    pub flip: bool,
    /// uint8 (0…255), uint16 (0…65535), or float16, bfloat16 or float32 (0…1, then normalised).
    pub dtype: DType,
    /// Channels of the result.
    pub mode: Mode,
    /// Values between pixels.
    pub interpolation: Interpolation,
    /// Name of the field whose draws this one has.
    pub crop_with: Option<String>,
    /// Channels first or last.
    pub layout: Layout,
    /// Subtracted per channel (red, green, blue) on the 0…1 scale; given with `std` or not at all.
    pub mean: Option<[f32; 3]>,
    /// Divides per channel after the subtraction.
    pub std: Option<[f32; 3]>,
    /// Number of crops of one image, each with its own draws; the row then has an outermost
    /// dimension for them. `None` makes one, without that dimension.
    pub views: Option<u32>,
    /// Exactness of pixels.
    pub quality: Quality,
    /// True applies the EXIF orientation.
    pub exif: bool,
}

impl Default for ImageSpec {
    fn default() -> Self {
        Self {
            size: None,
            crop: Crop::None,
            flip: false,
            dtype: DType::Uint8,
            mode: Mode::Rgb,
            interpolation: Interpolation::Bilinear,
            crop_with: None,
            layout: Layout::Nchw,
            mean: None,
            std: None,
            views: None,
            quality: Quality::Exact,
            exif: false,
        }
    }
}

/// Channels of an image's result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Red, green and blue.
    #[default]
    Rgb,
    /// Brightness.
    Gray,
    /// The numbers that a PNG with a palette, or in gray, stores, such as those of classes.
    Palette,
}

/// Values between pixels of a resized image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// Weighted means of neighbours, with antialias.
    #[default]
    Bilinear,
    /// The value of the nearest pixel.
    Nearest,
}

/// Exactness of pixels, compared with libjpeg's defaults and an antialiased resize.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// Equal.
    #[default]
    Exact,
    /// A JPEG shrunk to less than a half anyway is decoded at a half, a quarter or an eighth, and
    /// colours stored at half the resolution are spread without smoothing.
    Fast,
}

/// Part of an image that is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase", deny_unknown_fields)]
pub enum Crop {
    /// The whole image (squeezed to `size`, if given).
    #[default]
    None,
    /// The middle: resize so that the shorter side is `resize` pixels, then cut `size`.
    Center {
        /// Length of the shorter side in pixels before the cut; `None` cuts without a resize and
        /// pads smaller images with black.
        #[serde(default)]
        resize: Option<u32>,
    },
    /// A random part of random size and shape, resized to `size`: torchvision's
    /// `RandomResizedCrop`.
    Random {
        /// Lowest and highest share of the image's area.
        #[serde(default = "random_scale")]
        scale: (f64, f64),
        /// Lowest and highest width divided by height.
        #[serde(default = "random_ratio")]
        ratio: (f64, f64),
    },
}

/// Order of a tensor's dimensions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Layout {
    /// Channel, height, width.
    #[default]
    Nchw,
    /// Height, width, channel.
    Nhwc,
}

fn float_dtype() -> DType {
    DType::Float32
}

/// torchvision's defaults.
fn random_scale() -> (f64, f64) {
    (0.08, 1.0)
}

/// torchvision's defaults.
fn random_ratio() -> (f64, f64) {
    (3.0 / 4.0, 4.0 / 3.0)
}

impl FieldSpec {
    /// Makes an output `name` from the first present alternative of `source` ("jpg;jpeg;png").
    #[must_use]
    pub fn new(name: &str, source: &str, kind: FieldKind) -> Self {
        Self { name: name.to_owned(), source: split(source), optional: false, kind }
    }

    /// Returns the members that `fields` need, each a list of alternatives, as a daemon takes them.
    #[must_use]
    pub fn wanted(fields: &[Self]) -> Vec<Vec<String>> {
        fields.iter().map(|field| field.source.clone()).collect()
    }

    /// Parses the field from a JSON object, as the Python package writes it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the text is not such an object; its values are not checked yet.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| invalid(format!("the field specification cannot be read: {error}")))
    }
}

/// Splits "jpg;jpeg;png" into alternatives. Extensions are often written with their dot, which
/// names in a shard do not have.
fn split(source: &str) -> Vec<String> {
    let parts = source.split(';').map(|part| part.trim().trim_start_matches('.'));
    parts.filter(|part| !part.is_empty()).map(str::to_lowercase).collect()
}

fn alternatives<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<String>, D::Error> {
    Ok(split(&String::deserialize(from)?))
}

fn joined<S: Serializer>(source: &[String], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(&source.join(";"))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
