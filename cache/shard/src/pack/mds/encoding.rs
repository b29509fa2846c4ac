//! Encodings of MDS columns, and what their values become.

use forebay_error::{Error, ErrorKind, Result};
use half::f16;

use super::{WORD, damaged, word_of};
use crate::pack::columns::Class;

/// First bytes of a NumPy file of version 1.0.
const NPY_MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

/// Alignment of the data in a NumPy file.
const NPY_ALIGNED: usize = 64;

/// Types of array elements: Streaming's name, its number in a value, NumPy's description, and the
/// element's bytes.
const ELEMENTS: [(&str, u8, &str, u64); 11] = [
    ("uint8", 8, "|u1", 1),
    ("int8", 9, "|i1", 1),
    ("uint16", 16, "<u2", 2),
    ("int16", 17, "<i2", 2),
    ("float16", 18, "<f2", 2),
    ("uint32", 32, "<u4", 4),
    ("int32", 33, "<i4", 4),
    ("float32", 34, "<f4", 4),
    ("uint64", 64, "<u8", 8),
    ("int64", 65, "<i8", 8),
    ("float64", 66, "<f8", 8),
];

/// Modes of raw images of one byte a channel, and their channels.
const MODES: [(&str, u64); 6] =
    [("L", 1), ("P", 1), ("RGB", 3), ("YCbCr", 3), ("RGBA", 4), ("CMYK", 4)];

/// A type of array elements.
type Element = &'static (&'static str, u8, &'static str, u64);

/// Encoding of a column.
#[derive(Debug)]
pub(super) enum Encoding {
    /// Bytes of any format.
    Bytes,
    /// Bytes that are a field as they are, with its ending.
    AsItIs(Class, &'static str),
    /// A number in binary.
    Number(Element),
    /// An array; what is not fixed is said in each value.
    Array { element: Option<Element>, shape: Option<Vec<u64>> },
    /// The pixels of an image.
    Pixels,
}

impl Encoding {
    /// Returns the encoding of that name, if its values can become fields.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let as_it_is = |class: Class| Some(Self::AsItIs(class, class.ending()));
        match text {
            "bytes" => Some(Self::Bytes),
            "str" => as_it_is(Class::Text),
            "json" => as_it_is(Class::Json),
            "pkl" => as_it_is(Class::Pickle),
            "str_int" => as_it_is(Class::Integer),
            "str_float" | "str_decimal" => as_it_is(Class::Real),
            "jpeg" => Some(Self::AsItIs(Class::File, "jpg")),
            "png" => Some(Self::AsItIs(Class::File, "png")),
            "pil" => Some(Self::Pixels),
            "int" => element("int64").map(Self::Number),
            "ndarray" => Some(Self::Array { element: None, shape: None }),
            _ => match text.strip_prefix("ndarray:") {
                Some(fixed) => array(fixed),
                None => element(text).map(Self::Number),
            },
        }
    }

    pub(super) fn class(&self) -> Class {
        match self {
            Self::Bytes => Class::File,
            Self::AsItIs(class, _) => *class,
            Self::Number(element) if element.0.starts_with("float") => Class::Real,
            Self::Number(_) => Class::Integer,
            Self::Array { .. } | Self::Pixels => Class::Array,
        }
    }

    /// A value as text, with its ending.
    pub(super) fn text(&self, bytes: &[u8]) -> Result<(String, &'static str)> {
        let text = match self {
            Self::Number(element) => number(element, bytes)?,
            Self::AsItIs(Class::Text | Class::Integer, _) => {
                std::str::from_utf8(bytes).map_err(|_| damaged("a text is not UTF-8"))?.to_owned()
            }
            _ => {
                let what = "a key is neither text nor an integer";
                return Err(Error::new(ErrorKind::Invalid, what)
                    .advise("name another column by --key, or none: samples are numbered"));
            }
        };
        Ok((text, self.class().ending()))
    }

    /// Length of what lies before the elements of an array, or the pixels, that begins with
    /// `bytes`.
    pub(super) fn header_bytes(&self, bytes: &[u8]) -> Result<u64> {
        Ok(match self {
            Self::Array { element, shape } => {
                let kind = u64::from(element.is_none());
                let shape = match shape {
                    Some(_) => 0,
                    None => shape_bytes(byte(bytes, kind)?),
                };
                kind + shape
            }
            Self::Pixels => 3 * WORD + u64::from(word_of(part(bytes, 2 * WORD, WORD)?)?),
            _ => 0,
        })
    }

    /// NumPy's header for a value of `len` bytes that begins with `head`.
    pub(super) fn npy_header(&self, head: &[u8], len: u64) -> Result<Vec<u8>> {
        let (description, width, shape) = match self {
            Self::Pixels => pixels(head)?,
            Self::Array { element, shape } => {
                let kind = match element {
                    Some(element) => element,
                    None => {
                        let number = byte(head, 0)?;
                        let known = ELEMENTS.iter().find(|element| element.1 == number);
                        known.ok_or_else(|| damaged("an array has an unknown type"))?
                    }
                };
                let shape = match shape {
                    Some(shape) => shape.clone(),
                    None => shape_of(head, u64::from(element.is_none()))?,
                };
                (kind.2, kind.3, shape)
            }
            _ => return Err(damaged("it is no array")),
        };
        let elements = shape.iter().try_fold(width, |size, &side| size.checked_mul(side));
        if elements != len.checked_sub(head.len() as u64) {
            return Err(damaged("an array is not as long as its shape says"));
        }
        Ok(npy(description, &shape))
    }
}

fn element(name: &str) -> Option<Element> {
    ELEMENTS.iter().find(|element| element.0 == name)
}

/// An array with a fixed type and perhaps a fixed shape, as in `float32:3,4`.
fn array(fixed: &str) -> Option<Encoding> {
    let (kind, shape) = match fixed.split_once(':') {
        None => (fixed, None),
        Some((kind, shape)) => {
            let sides: Option<Vec<u64>> = shape.split(',').map(|side| side.parse().ok()).collect();
            (kind, Some(sides?))
        }
    };
    Some(Encoding::Array { element: Some(element(kind)?), shape })
}

fn part(bytes: &[u8], offset: u64, len: u64) -> Result<&[u8]> {
    let end = offset.saturating_add(len);
    let range = offset as usize..end as usize;
    bytes.get(range).ok_or_else(|| damaged("a value ends within its head"))
}

fn byte(bytes: &[u8], at: u64) -> Result<u8> {
    part(bytes, at, 1).map(|bytes| bytes[0])
}

/// Length of a shape that begins with this byte: dimensions times four, and the logarithm of each
/// side's bytes.
fn shape_bytes(first: u8) -> u64 {
    1 + (u64::from(first >> 2) << (first & 3))
}

fn shape_of(head: &[u8], at: u64) -> Result<Vec<u64>> {
    let first = byte(head, at)?;
    let sides = part(head, at + 1, shape_bytes(first) - 1)?;
    let side = |bytes: &[u8]| bytes.iter().rev().fold(0, |side, &byte| side << 8 | u64::from(byte));
    Ok(sides.chunks_exact(1 << (first & 3)).map(side).collect())
}

fn pixels(head: &[u8]) -> Result<(&'static str, u64, Vec<u64>)> {
    let width = u64::from(word_of(part(head, 0, WORD)?)?);
    let height = u64::from(word_of(part(head, WORD, WORD)?)?);
    let mode = head.get(3 * WORD as usize..).unwrap_or_default();
    let known = MODES.iter().find(|(name, _)| name.as_bytes() == mode);
    let Some(&(_, channels)) = known else {
        return Err(Error::new(ErrorKind::Invalid, "an image has a mode that is not read")
            .at("mode", String::from_utf8_lossy(mode))
            .advise("write the column anew as png, or leave it out by --field COLUMN="));
    };
    let shape = match channels {
        1 => vec![height, width],
        _ => vec![height, width, channels],
    };
    Ok(("|u1", 1, shape))
}

fn number(element: Element, bytes: &[u8]) -> Result<String> {
    fn exact<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
        bytes.try_into().map_err(|_| damaged("a number has a wrong length"))
    }
    Ok(match element.0 {
        "uint8" => u8::from_le_bytes(exact(bytes)?).to_string(),
        "int8" => i8::from_le_bytes(exact(bytes)?).to_string(),
        "uint16" => u16::from_le_bytes(exact(bytes)?).to_string(),
        "int16" => i16::from_le_bytes(exact(bytes)?).to_string(),
        "float16" => f16::from_le_bytes(exact(bytes)?).to_string(),
        "uint32" => u32::from_le_bytes(exact(bytes)?).to_string(),
        "int32" => i32::from_le_bytes(exact(bytes)?).to_string(),
        "float32" => f32::from_le_bytes(exact(bytes)?).to_string(),
        "uint64" => u64::from_le_bytes(exact(bytes)?).to_string(),
        "int64" => i64::from_le_bytes(exact(bytes)?).to_string(),
        _ => f64::from_le_bytes(exact(bytes)?).to_string(),
    })
}

/// The header of a NumPy file, up to its data.
fn npy(description: &str, shape: &[u64]) -> Vec<u8> {
    let sides: String = shape.iter().map(|side| format!("{side}, ")).collect();
    let sides = if shape.len() == 1 { sides.trim_end() } else { sides.trim_end_matches(", ") };
    let mut text =
        format!("{{'descr': '{description}', 'fortran_order': False, 'shape': ({sides}), }}");
    // Magic, two bytes of length, text and a line feed.
    let bytes = NPY_MAGIC.len() + 2 + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', bytes.next_multiple_of(NPY_ALIGNED) - bytes));
    text.push('\n');
    let mut header = NPY_MAGIC.to_vec();
    // A shape has 63 sides at most, so the text is short.
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.as_bytes());
    header
}
