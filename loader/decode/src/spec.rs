//! What a caller asks for: output names, where each comes from, and how it is decoded.
//!
//! Its rule: a specification is refused as a whole before the first byte is read, with advice; a
//! checked one cannot fail later for its own sake. As JSON it is what the Python package sends.

use std::collections::HashSet;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::image::SIDE_MAX;

/// One output of a batch and the field of each sample it is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldSpec {
    /// The output's key in the batch.
    pub name: String,
    /// Field names to look for, lower case; the first that the sample has is taken.
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
    /// A JPEG or PNG image, to a tensor of pixels.
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
    /// UTF-8 text.
    Text,
    /// A JSON document, or the part of it at `path`, as JSON text.
    Json {
        /// The part wanted.
        #[serde(default)]
        path: Option<String>,
    },
    /// A NumPy array file, stacked where shapes and types agree over the batch.
    Npy {
        /// What becomes of arrays that cannot be stacked.
        #[serde(default)]
        ragged: Ragged,
    },
    /// The bytes as they are.
    Bytes,
}

/// What becomes of arrays whose shapes differ within a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ragged {
    /// A list with one tensor per sample.
    #[default]
    List,
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
        }
    }
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
        let source = source.split(';').map(str::trim).filter(|part| !part.is_empty());
        let source = source.map(str::to_lowercase).collect();
        Self { name: name.to_owned(), source, optional: false, kind }
    }

    /// The fields of a JSON list, as the Python package writes it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the text is not such a list. [`crate::Decoder::new`] checks the
    /// values.
    pub fn from_json(text: &str) -> Result<Vec<Self>> {
        serde_json::from_str(text)
            .map_err(|error| invalid(format!("the field specification cannot be read: {error}")))
    }

    /// Whether the fields make sense, each and together.
    pub(crate) fn check_all(fields: &[Self]) -> Result<()> {
        let mut names = HashSet::new();
        for field in fields {
            if !names.insert(&field.name) {
                return Err(invalid("two outputs have the same name").at("field", &field.name));
            }
            field.check().map_err(|error| error.at("field", &field.name))?;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.source.is_empty() {
            return Err(invalid("a field needs at least one source")
                .advise("name the file extension it comes from, as in \"jpg;jpeg;png\""));
        }
        match &self.kind {
            FieldKind::Image(image) => image.check(),
            FieldKind::Float { dtype: DType::Float32 | DType::Float64, path } => check_path(path),
            FieldKind::Float { dtype, .. } => Err(invalid("a number field has no such dtype")
                .at("dtype", dtype.name())
                .advise("use float32 or float64")),
            FieldKind::Int { path } | FieldKind::Json { path } => check_path(path),
            FieldKind::Text | FieldKind::Npy { .. } | FieldKind::Bytes => Ok(()),
        }
    }
}

fn check_path(path: &Option<String>) -> Result<()> {
    match path {
        Some(path) if path.split('.').any(str::is_empty) => {
            Err(invalid("a JSON path has an empty part")
                .at("path", path)
                .advise("separate keys by single dots, as in \"a.b\""))
        }
        _ => Ok(()),
    }
}

impl ImageSpec {
    fn check(&self) -> Result<()> {
        if let Some((height, width)) = self.size {
            check_side("height", height)?;
            check_side("width", width)?;
        }
        self.check_crop()?;
        self.check_values()
    }

    fn check_crop(&self) -> Result<()> {
        match (self.crop, self.size) {
            (Crop::Random { .. } | Crop::Center { resize: None }, None) => {
                Err(invalid("this crop needs a size").advise("give size=, as in size=224"))
            }
            (Crop::Random { scale, ratio }, _) => {
                check_range("scale", scale)?;
                check_range("ratio", ratio)?;
                if scale.1 > 1.0 {
                    return Err(invalid("a crop cannot be larger than its image")
                        .at("scale", scale.1)
                        .advise("keep the upper end of scale at or below 1"));
                }
                Ok(())
            }
            (Crop::Center { resize: Some(resize) }, size) => {
                check_side("resize", resize)?;
                match size {
                    Some((height, width)) if height.max(width) > resize => {
                        Err(invalid("the center crop is larger than the resized image")
                            .at("resize", resize)
                            .advise("make resize at least as large as size"))
                    }
                    _ => Ok(()),
                }
            }
            (Crop::Center { resize: None } | Crop::None, _) => Ok(()),
        }
    }

    fn check_values(&self) -> Result<()> {
        match self.dtype {
            DType::Uint8 | DType::Float16 | DType::Bfloat16 | DType::Float32 => {}
            other => {
                return Err(invalid("an image has no such dtype")
                    .at("dtype", other.name())
                    .advise("use uint8, float16, bfloat16 or float32"));
            }
        }
        match (self.mean, self.std) {
            (None, None) => Ok(()),
            (Some(_), Some(_)) if self.dtype == DType::Uint8 => {
                Err(invalid("uint8 pixels cannot be normalised")
                    .advise("drop mean= and std=, or ask for a float dtype"))
            }
            (Some(mean), Some(std)) => {
                let good = mean.iter().all(|value| value.is_finite())
                    && std.iter().all(|value| value.is_finite() && *value > 0.0);
                if good { Ok(()) } else { Err(bad_moments()) }
            }
            _ => Err(invalid("mean and std come together").advise("give both or neither")),
        }
    }
}

fn bad_moments() -> Error {
    invalid("mean and std must be finite and std above 0")
        .advise("give one value per channel on the 0…1 scale, as in std=(0.229, 0.224, 0.225)")
}

fn check_side(name: &str, pixels: u32) -> Result<()> {
    if (1..=SIDE_MAX).contains(&pixels) {
        return Ok(());
    }
    Err(invalid("an image's side is out of range")
        .at(name, pixels)
        .advise(format!("use 1 to {SIDE_MAX} pixels")))
}

fn check_range(name: &str, (low, high): (f64, f64)) -> Result<()> {
    if low > 0.0 && low <= high && high.is_finite() {
        return Ok(());
    }
    Err(invalid("a range must be positive and in order")
        .at(name, format!("({low}, {high})"))
        .advise("give the lower end first"))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
