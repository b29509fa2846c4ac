//! Validation of specifications. Rule: every rejection says what to write instead.

use std::collections::HashSet;

use forebay_error::{Error, Result};

use super::{Crop, FieldKind, FieldSpec, ImageSpec, Interpolation, Mode, Ragged, RawSpec, invalid};
use crate::array::{self, DIMENSIONS_MAX};
use crate::dtype::DType;
use crate::image::{PIXELS_MAX, SIDE_MAX};

/// Largest number of views of one image. Training on many crops of an image takes about ten.
pub const VIEWS_MAX: u32 = 64;

impl FieldSpec {
    /// Checks the fields, each and together.
    pub(crate) fn check_all(fields: &[Self]) -> Result<()> {
        let mut names = HashSet::new();
        for field in fields {
            if !names.insert(&field.name) {
                return Err(invalid("two outputs have the same name").at("field", &field.name));
            }
            field.check().map_err(|error| error.at("field", &field.name))?;
        }
        fields.iter().try_for_each(|field| field.check_leader(fields))
    }

    /// Checks that the field whose draws this one has is an image with draws of its own.
    fn check_leader(&self, fields: &[Self]) -> Result<()> {
        let FieldKind::Image(ImageSpec { crop_with: Some(leader), .. }) = &self.kind else {
            return Ok(());
        };
        let own = |field: &Self| match &field.kind {
            FieldKind::Image(image) => field.name == *leader && image.crop_with.is_none(),
            _ => false,
        };
        match fields.iter().any(own) {
            true => Ok(()),
            false => Err(invalid("crop_with names no image that is cropped by itself")
                .at("field", &self.name)
                .at("crop_with", leader)
                .advise("name another Image of fields=, without crop_with")),
        }
    }

    /// Checks the field by itself.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::Invalid`] with what to write instead.
    pub fn check(&self) -> Result<()> {
        if self.source.is_empty() {
            return Err(invalid("a field needs at least one source")
                .advise("name the file extension it comes from, as in \"jpg;jpeg;png\""));
        }
        match &self.kind {
            FieldKind::Image(image) => image.check(),
            FieldKind::Float { dtype: DType::Float32 | DType::Float64, path } => check_path(path),
            FieldKind::Float { dtype, .. } => Err(invalid("a number field cannot have this dtype")
                .at("dtype", dtype.name())
                .advise("use float32 or float64")),
            FieldKind::Label { classes, .. } if classes.is_empty() => {
                Err(invalid("a label needs classes").advise("name them, as in [\"cat\", \"dog\"]"))
            }
            FieldKind::Int { path } | FieldKind::Json { path } | FieldKind::Label { path, .. } => {
                check_path(path)
            }
            FieldKind::Text { ragged } => {
                ragged.check()?;
                ragged.check_value(DType::Uint8)
            }
            FieldKind::Npy { ragged, raw } => {
                ragged.check()?;
                raw.as_ref().map_or(Ok(()), |raw| raw.check(*ragged))
            }
            FieldKind::Bytes => Ok(()),
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

impl Ragged {
    fn check(self) -> Result<()> {
        match self {
            Self::Pad { max_len: Some(0), .. } | Self::Nested { max_len: Some(0) } => {
                Err(invalid("rows cannot have a length of 0").advise("give max_len= of 1 or more"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that rows of `dtype` can be padded with the value.
    fn check_value(self, dtype: DType) -> Result<()> {
        match self {
            Self::Pad { value, .. } if value.element(dtype).is_none() => {
                Err(invalid("rows cannot be padded with this value")
                    .at("pad_value", value)
                    .at("dtype", dtype.name())
                    .advise(format!("give a pad_value= that {} can hold", dtype.name())))
            }
            _ => Ok(()),
        }
    }
}

impl RawSpec {
    fn check(&self, ragged: Ragged) -> Result<()> {
        let shape = &self.shape;
        if shape.len() > DIMENSIONS_MAX {
            return Err(invalid("an array cannot have so many dimensions")
                .at("dimensions", shape.len())
                .advise(format!("use at most {DIMENSIONS_MAX}")));
        }
        if shape.iter().filter(|side| side.is_none()).count() > 1 {
            return Err(
                invalid("shape= has more than one open dimension").advise("use -1 once in shape=")
            );
        }
        if shape.contains(&Some(0)) {
            return Err(invalid("a dimension of 0 leaves no elements")
                .advise("use 1 or more in shape=, or -1"));
        }
        if array::bytes(self.dtype, shape.iter().map(|side| side.unwrap_or(1))).is_none() {
            return Err(
                invalid("arrays of this shape are too large").advise("use a smaller shape=")
            );
        }
        if ragged == Ragged::List {
            return Ok(());
        }
        if shape.is_empty() || shape[1..].contains(&None) {
            return Err(invalid("arrays are padded and joined along their first dimension only")
                .advise("give shape= a first dimension, and no -1 in another place"));
        }
        ragged.check_value(self.dtype)
    }
}

impl ImageSpec {
    fn check(&self) -> Result<()> {
        if let Some((height, width)) = self.size {
            check_side("height", height)?;
            check_side("width", width)?;
            let pixels = u64::from(height) * u64::from(width);
            if pixels > PIXELS_MAX {
                return Err(invalid("images of this size are too large")
                    .at("pixels", pixels)
                    .advise(format!("ask for a size of at most {PIXELS_MAX} pixels")));
            }
        }
        self.check_views()?;
        self.check_crop()?;
        self.check_values()
    }

    fn check_views(&self) -> Result<()> {
        let Some(views) = self.views else { return Ok(()) };
        if !(1..=VIEWS_MAX).contains(&views) {
            return Err(invalid("too many views, or none")
                .at("views", views)
                .advise(format!("ask for 1 to {VIEWS_MAX}")));
        }
        if self.size.is_none() {
            return Err(invalid("views of an image need a size")
                .advise("give size=, as in size=224: they are stacked"));
        }
        if views > 1 && !self.flip && !matches!(self.crop, Crop::Random { .. }) {
            return Err(invalid("all views of an image would be the same")
                .advise("set crop=\"random\" or flip=True, or drop views="));
        }
        Ok(())
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
            DType::Uint8 | DType::Uint16 => {}
            DType::Float16 | DType::Bfloat16 | DType::Float32 if self.mode != Mode::Palette => {}
            other => {
                return Err(invalid("an image cannot have this dtype")
                    .at("dtype", other.name())
                    .advise(match self.mode {
                        Mode::Palette => "use uint8 or uint16 for the numbers of a palette",
                        _ => "use uint8, uint16, float16, bfloat16 or float32",
                    }));
            }
        }
        if self.mode == Mode::Palette && self.interpolation != Interpolation::Nearest {
            return Err(invalid("numbers of a palette have no values between them")
                .advise("set interpolation=\"nearest\", or mode=\"gray\""));
        }
        match (self.mean, self.std) {
            (None, None) => Ok(()),
            (Some(_), Some(_)) if matches!(self.dtype, DType::Uint8 | DType::Uint16) => {
                Err(invalid("whole numbers cannot be normalised")
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
