//! What a caller asks for: output names, where each comes from, and how it is decoded.
//!
//! Its rule: a specification is refused as a whole before the first byte is read, with advice; a
//! checked one cannot fail later for its own sake. As JSON it is what the Python package sends.

mod check;
mod ragged;

pub use check::VIEWS_MAX;
pub use ragged::{PadValue, Ragged};

use std::collections::BTreeMap;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::dtype::DType;

/// One output of a batch and the field of each sample it is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldSpec {
    /// The output's key in the batch.
    pub name: String,
    /// Field names to look for, lower case; the first that the sample has is taken. As JSON they are
    /// one text, "jpg;jpeg;png".
    #[serde(serialize_with = "joined", deserialize_with = "alternatives")]
    pub source: Vec<String>,
    /// Whether a sample without any of them is fine (its row is then marked absent).
    #[serde(default)]
    pub optional: bool,
    /// What the bytes are and what they become.
    pub kind: FieldKind,
}

/// What a field's bytes are and what they become.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum FieldKind {
    /// A JPEG, PNG or WebP image, to a tensor of pixels.
    Image(ImageSpec),
    /// A decimal integer, to int64; with `path` ("a.b.0"), one inside a JSON document.
    Int {
        /// Where in a JSON document the integer stands.
        #[serde(default)]
        path: Option<String>,
    },
    /// A decimal number, to float32 unless `dtype` says otherwise; with `path`, inside JSON.
    Float {
        /// Where in a JSON document the number stands.
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
        /// Where in a JSON document the name stands.
        #[serde(default)]
        path: Option<String>,
    },
    /// UTF-8 text: as texts, or as its bytes where rows are padded or joined.
    Text {
        /// What becomes of rows whose lengths differ.
        #[serde(default)]
        ragged: Ragged,
    },
    /// A JSON document, or the part of it at `path`, as JSON text.
    Json {
        /// The part wanted.
        #[serde(default)]
        path: Option<String>,
    },
    /// An array: a NumPy file, or bytes of a type and shape known beforehand. Arrays are stacked where
    /// shapes and types agree over the batch.
    Npy {
        /// What becomes of arrays whose shapes differ.
        #[serde(default)]
        ragged: Ragged,
        /// What the bytes are, where they are no NumPy file.
        #[serde(default)]
        raw: Option<RawSpec>,
    },
    /// The bytes as they are.
    Bytes,
}

/// What bytes without a header are: elements in C order, little-endian.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSpec {
    /// What an element is.
    pub dtype: DType,
    /// Elements per dimension, the outermost first; `None`, at one place at most, is as many as there are.
    pub shape: Vec<Option<usize>>,
}

/// How an image becomes a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageSpec {
    /// Height and width of the result in pixels; `None` keeps what the crop leaves.
    pub size: Option<(u32, u32)>,
    /// Which part of the image is taken.
    pub crop: Crop,
    /// Whether half of the samples, drawn at random, are mirrored left to right.
    pub flip: bool,
    /// uint8 (0…255), or float16, bfloat16 or float32 (0…1, then normalised).
    pub dtype: DType,
    /// Whether channels come first or last.
    pub layout: Layout,
    /// Subtracted per channel (red, green, blue) on the 0…1 scale; given with `std` or not at all.
    pub mean: Option<[f32; 3]>,
    /// Divides per channel after the subtraction.
    pub std: Option<[f32; 3]>,
    /// How many crops are made of one image, each by draws of its own; the row then has a dimension for them,
    /// the outermost. `None` makes one, and no dimension.
    pub views: Option<u32>,
    /// Whether pixels may differ a little where that is quicker.
    pub quality: Quality,
    /// Whether photos are turned as their EXIF notes say.
    pub exif: bool,
}

impl Default for ImageSpec {
    fn default() -> Self {
        Self {
            size: None,
            crop: Crop::None,
            flip: false,
            dtype: DType::Uint8,
            layout: Layout::Nchw,
            mean: None,
            std: None,
            views: None,
            quality: Quality::Exact,
            exif: false,
        }
    }
}

/// How close pixels are to what libjpeg's defaults and an antialiased resize give.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// The same.
    #[default]
    Exact,
    /// A JPEG that is shrunk to less than a half anyway is decoded at a half, a quarter or an eighth, and colours
    /// that were stored at half the resolution are spread without smoothing.
    Fast,
}

/// Which part of an image is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase", deny_unknown_fields)]
pub enum Crop {
    /// The whole image (squeezed to `size`, if one is given).
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

/// The order of a tensor's dimensions.
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
    /// An output `name` made from the first of `source`'s alternatives ("jpg;jpeg;png") present.
    #[must_use]
    pub fn new(name: &str, source: &str, kind: FieldKind) -> Self {
        Self { name: name.to_owned(), source: split(source), optional: false, kind }
    }

    /// The members that `fields` are made from: each a list of alternatives, as a daemon is asked.
    #[must_use]
    pub fn wanted(fields: &[Self]) -> Vec<Vec<String>> {
        fields.iter().map(|field| field.source.clone()).collect()
    }

    /// The field of a JSON object, as the Python package writes it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the text is not such an object; its values are not checked yet.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| invalid(format!("the field specification cannot be read: {error}")))
    }
}

/// The alternatives in "jpg;jpeg;png". Extensions are often written with their dot, which names in
/// a shard do not have.
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
