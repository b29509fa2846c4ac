//! Treatment of rows of different length. Rule: a padding value is exact, or rejected.

use forebay_error::{Error, Result};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::invalid;
use crate::dtype::DType;

/// Treatment of rows that differ in their first dimension within a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase", deny_unknown_fields)]
pub enum Ragged {
    /// They are listed one by one; arrays that agree in shape and type become one tensor.
    #[default]
    List,
    /// All are padded to the longest of the batch, or to `max_len`.
    Pad {
        /// Value after the end of a row.
        #[serde(default)]
        value: PadValue,
        /// Length of every row; longer ones are cut.
        #[serde(default)]
        max_len: Option<u32>,
    },
    /// They follow each other without a gap.
    Nested {
        /// Length at which rows are cut.
        #[serde(default)]
        max_len: Option<u32>,
    },
}

/// Padding value of rows. In JSON it is a text, because JSON has neither NaN nor all integers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PadValue {
    /// A whole number.
    Whole(i128),
    /// Any other number, or NaN.
    Real(f64),
}

impl Default for PadValue {
    fn default() -> Self {
        Self::Whole(0)
    }
}

impl PadValue {
    /// Returns the bytes of an element of this value; `None` if the type cannot hold it. Floats
    /// take the nearest, but no infinity in place of a number.
    pub(crate) fn element(self, dtype: DType) -> Option<Vec<u8>> {
        let real = match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        };
        let near = |found: f64| found.is_finite() || !real.is_finite();
        let whole = match self {
            Self::Whole(whole) => Some(whole),
            // Beyond 2^63 in size no integer type below i128 is possible, and the saturating cast
            // loses none.
            Self::Real(real) => (real.fract() == 0.0).then_some(real as i128),
        };
        macro_rules! integer {
            ($type:ty) => {
                <$type>::try_from(whole?).ok()?.to_ne_bytes().to_vec()
            };
        }
        Some(match dtype {
            DType::Bool => match whole? {
                flag @ (0 | 1) => vec![flag as u8],
                _ => return None,
            },
            DType::Uint8 => integer!(u8),
            DType::Uint16 => integer!(u16),
            DType::Uint32 => integer!(u32),
            DType::Uint64 => integer!(u64),
            DType::Int8 => integer!(i8),
            DType::Int16 => integer!(i16),
            DType::Int32 => integer!(i32),
            DType::Int64 => integer!(i64),
            DType::Float16 => {
                let found = f16::from_f64(real);
                near(found.to_f64()).then(|| found.to_ne_bytes().to_vec())?
            }
            DType::Bfloat16 => {
                let found = bf16::from_f64(real);
                near(found.to_f64()).then(|| found.to_ne_bytes().to_vec())?
            }
            DType::Float32 => {
                let found = real as f32;
                near(found.into()).then(|| found.to_ne_bytes().to_vec())?
            }
            DType::Float64 => real.to_ne_bytes().to_vec(),
            // The imaginary part is 0.
            DType::Complex64 => [self.element(DType::Float32)?, vec![0; 4]].concat(),
            DType::Complex128 => [self.element(DType::Float64)?, vec![0; 8]].concat(),
        })
    }
}

impl TryFrom<String> for PadValue {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let whole = text.parse().map(Self::Whole);
        whole.or_else(|_| text.parse().map(Self::Real)).map_err(|_| {
            invalid(format!("{text:?} is not a number to pad with"))
                .advise("give a number, as in \"0\"")
        })
    }
}

impl From<PadValue> for String {
    fn from(value: PadValue) -> Self {
        match value {
            PadValue::Whole(whole) => whole.to_string(),
            PadValue::Real(real) => real.to_string(),
        }
    }
}

impl std::fmt::Display for PadValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> PadValue {
        text.to_owned().try_into().unwrap()
    }

    #[test]
    fn pad_value_must_be_representable_in_its_dtype() {
        assert_eq!(value("-100").element(DType::Int64), Some((-100_i64).to_ne_bytes().to_vec()));
        assert_eq!(value("-100.0").element(DType::Int8), Some(vec![0x9c]));
        assert_eq!(value("255").element(DType::Uint8), Some(vec![255]));
        let most = u64::MAX.to_string();
        assert_eq!(value(&most).element(DType::Uint64), Some(vec![255; 8]));
        assert_eq!(value("1").element(DType::Bool), Some(vec![1]));
        assert_eq!(value("0.1").element(DType::Float32), Some(0.1_f32.to_ne_bytes().to_vec()));
        assert_eq!(
            value("2").element(DType::Bfloat16),
            Some(bf16::from_f32(2.0).to_ne_bytes().into())
        );
        for dtype in [DType::Float16, DType::Bfloat16, DType::Float32, DType::Float64] {
            for text in ["nan", "inf", "-inf"] {
                assert!(value(text).element(dtype).is_some(), "{text} {dtype:?}");
            }
        }
        let none = [
            ("-1", DType::Uint8),
            ("256", DType::Uint8),
            ("2", DType::Bool),
            ("0.5", DType::Int64),
            ("nan", DType::Int64),
            ("inf", DType::Uint64),
            ("1e300", DType::Int64),
            ("65520", DType::Float16),
            ("1e39", DType::Float32),
            ("1e39", DType::Bfloat16),
        ];
        for (text, dtype) in none {
            assert_eq!(value(text).element(dtype), None, "{text} {dtype:?}");
        }
    }

    #[test]
    fn pad_value_survives_json_and_non_numbers_are_rejected() {
        for text in ["0", "-170141183460469231731687303715884105728", "0.1", "inf", "1e300"] {
            let json = serde_json::to_string(&value(text)).unwrap();
            assert_eq!(serde_json::from_str::<PadValue>(&json).unwrap(), value(text), "{json}");
        }
        for text in ["", "x", "0x1", "1,5"] {
            assert!(PadValue::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }
}
