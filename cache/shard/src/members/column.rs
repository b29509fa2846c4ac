//! One column's values of one block of samples.

use forebay_error::Result;

use super::coding::{Bytes, put, put_packed, put_text, unzigzag, wrong, zigzag};
use super::directory::ColumnKind;
use super::values::{TEXT_MAX, Value};

/// Forms of a block's values: the first byte of the block.
const EMPTY: u8 = 0;
const INTS: u8 = 1;
const FLOATS_32: u8 = 2;
const FLOATS_64: u8 = 3;
const TEXTS: u8 = 4;

/// Marks in the second byte: all samples have a value, or a bitmap tells which.
const ALL: u8 = 0;
const SOME: u8 = 1;

/// Values of a block, without gaps.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// No sample has one.
    Empty,
    /// Integers.
    Ints(Vec<i64>),
    /// Numbers, of which one at least is no integer; never NaN.
    Floats(Vec<f64>),
    /// Texts.
    Texts(Vec<String>),
}

impl Values {
    pub(super) fn kind(&self) -> ColumnKind {
        match self {
            Self::Empty => ColumnKind::Empty,
            Self::Ints(_) => ColumnKind::Int,
            Self::Floats(_) => ColumnKind::Float,
            Self::Texts(_) => ColumnKind::Text,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Ints(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Texts(values) => values.len(),
        }
    }
}

/// One column of a block of samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// True for each sample that has a value.
    pub present: Vec<bool>,
    /// The values of those samples, in order.
    pub values: Values,
}

impl Column {
    /// Returns the values in a form that holds all of them; None where texts and numbers meet.
    pub(super) fn of(values: &[Value]) -> Option<Self> {
        let present = values.iter().map(|value| *value != Value::Absent).collect();
        let has = |is: fn(&Value) -> bool| values.iter().any(is);
        let (texts, floats, ints) = (
            has(|value| matches!(value, Value::Text(_))),
            has(|value| matches!(value, Value::Float(_))),
            has(|value| matches!(value, Value::Int(_))),
        );
        let values = match (texts, floats, ints) {
            (false, false, false) => Values::Empty,
            (false, false, true) => Values::Ints(values.iter().filter_map(int).collect()),
            (false, true, _) => Values::Floats(values.iter().filter_map(float).collect()),
            (true, false, false) => Values::Texts(values.iter().filter_map(text).collect()),
            (true, ..) => return None,
        };
        Some(Self { present, values })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        let narrow = |values: &[f64]| values.iter().all(|value| f64::from(*value as f32) == *value);
        into.push(match &self.values {
            Values::Empty => return vec![EMPTY],
            Values::Ints(_) => INTS,
            Values::Floats(values) if narrow(values) => FLOATS_32,
            Values::Floats(_) => FLOATS_64,
            Values::Texts(_) => TEXTS,
        });
        match self.present.iter().all(|present| *present) {
            true => into.push(ALL),
            false => {
                into.push(SOME);
                let byte = |eight: &[bool]| {
                    let bit = |(at, present): (usize, &bool)| u8::from(*present) << at;
                    eight.iter().enumerate().map(bit).sum::<u8>()
                };
                into.extend(self.present.chunks(u8::BITS as usize).map(byte));
            }
        }
        match &self.values {
            Values::Empty => {}
            Values::Ints(values) => {
                let least = values.iter().copied().min().unwrap_or(0);
                put(zigzag(least), &mut into);
                // Exact: the difference of two i64 fits u64.
                let above = |value: &i64| value.wrapping_sub(least) as u64;
                put_packed(&values.iter().map(above).collect::<Vec<_>>(), &mut into);
            }
            Values::Floats(values) if into[0] == FLOATS_32 => {
                into.extend(values.iter().flat_map(|value| (*value as f32).to_le_bytes()));
            }
            Values::Floats(values) => into.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            Values::Texts(values) => values.iter().for_each(|text| put_text(text, &mut into)),
        }
        into
    }

    /// Reads the values of `samples` samples.
    ///
    /// # Errors
    /// `Corrupt` for bytes that [`Column::encode`] does not write.
    pub(super) fn decode(bytes: &[u8], samples: usize) -> Result<Self> {
        let mut bytes = Bytes(bytes);
        let form = bytes.byte()?;
        if form == EMPTY {
            bytes.end()?;
            return Ok(Self { present: vec![false; samples], values: Values::Empty });
        }
        let present = match bytes.byte()? {
            ALL => vec![true; samples],
            SOME => {
                let bits = bytes.take(samples.div_ceil(u8::BITS as usize))?;
                let bit = |at: usize| bits[at / 8] >> (at % 8) & 1 == 1;
                (0..samples).map(bit).collect()
            }
            _ => return Err(wrong("a column has an unknown mark")),
        };
        let count = present.iter().filter(|present| **present).count();
        let values = match form {
            INTS => {
                let least = unzigzag(bytes.number()?);
                let value = |above: u64| {
                    let value = least.checked_add_unsigned(above);
                    value.ok_or_else(|| wrong("an integer overflows"))
                };
                Values::Ints(bytes.packed(count)?.into_iter().map(value).collect::<Result<_>>()?)
            }
            FLOATS_32 => Values::Floats(
                (0..count)
                    .map(|_| Ok(f64::from(f32::from_le_bytes(bytes.array()?))))
                    .collect::<Result<_>>()?,
            ),
            FLOATS_64 => Values::Floats(
                (0..count)
                    .map(|_| Ok(f64::from_le_bytes(bytes.array()?)))
                    .collect::<Result<_>>()?,
            ),
            TEXTS => Values::Texts(
                (0..count).map(|_| bytes.text().map(str::to_owned)).collect::<Result<_>>()?,
            ),
            _ => return Err(wrong("a column has an unknown form")),
        };
        bytes.end()?;
        match &values {
            Values::Floats(values) if values.iter().any(|value| value.is_nan()) => {
                return Err(wrong("a number is none"));
            }
            Values::Texts(values) if values.iter().any(|text| text.len() > TEXT_MAX) => {
                return Err(wrong("a text is too long"));
            }
            _ => {}
        }
        debug_assert_eq!(values.len(), count);
        Ok(Self { present, values })
    }
}

fn int(value: &Value) -> Option<i64> {
    if let Value::Int(value) = value { Some(*value) } else { None }
}

fn float(value: &Value) -> Option<f64> {
    match value {
        // A column of both is one of floats: the nearest is what JSON readers take, too.
        Value::Int(value) => Some(*value as f64),
        Value::Float(value) => Some(*value),
        Value::Absent | Value::Text(_) => None,
    }
}

fn text(value: &Value) -> Option<String> {
    if let Value::Text(value) = value { Some(value.clone()) } else { None }
}
