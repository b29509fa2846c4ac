//! Element types of tensors. Rule: names and sizes are NumPy's.

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Type of a tensor's elements, in the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bits.
    Uint8,
    /// Unsigned, 16 bits.
    Uint16,
    /// Unsigned, 32 bits.
    Uint32,
    /// Unsigned, 64 bits.
    Uint64,
    /// Signed, 8 bits.
    Int8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
    /// IEEE half precision.
    Float16,
    /// The upper half of a [`DType::Float32`].
    Bfloat16,
    /// IEEE single precision.
    Float32,
    /// IEEE double precision.
    Float64,
    /// Real and imaginary part, each a [`DType::Float32`].
    Complex64,
    /// Real and imaginary part, each a [`DType::Float64`].
    Complex128,
}

impl DType {
    /// Every type, in the order of error messages.
    pub const ALL: [Self; 15] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Float16,
        Self::Bfloat16,
        Self::Float32,
        Self::Float64,
        Self::Complex64,
        Self::Complex128,
    ];

    /// Returns the bytes per element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }

    /// Returns the bytes per number: a complex element has two.
    #[must_use]
    pub fn number_size(self) -> usize {
        match self {
            Self::Complex64 | Self::Complex128 => self.size() / 2,
            _ => self.size(),
        }
    }

    /// Returns the name used by NumPy and torch.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
        }
    }

    /// Returns the type called `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] listing the names, if none matches exactly.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|dtype| dtype.name()).collect();
            Error::new(ErrorKind::Invalid, format!("unknown dtype {name:?}"))
                .advise(format!("use one of {}", names.join(", ")))
        })
    }
}

impl TryFrom<String> for DType {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::parse(&name)
    }
}

impl From<DType> for &'static str {
    fn from(dtype: DType) -> Self {
        dtype.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_names_parse_and_an_error_lists_them() {
        for dtype in DType::ALL {
            assert_eq!(DType::parse(dtype.name()).unwrap(), dtype);
        }
        let error = DType::parse("fp16").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("float16, bfloat16"), "{error}");
    }
}
