//! Rows of different length in contiguous memory: padded, or one after the other.
//!
//! All lengths are known before memory is taken, and each row is written once, in its final
//! place. The common form of a batch is that of most rows: one odd sample is bad wherever it
//! stands, and never spoils the others.

use std::collections::HashMap;

use forebay_error::Result;
use rayon::prelude::*;

use crate::array::Stored;
use crate::buffer::{Buffer, BufferPool};
use crate::column::{Column, Tensor};
use crate::dtype::DType;
use crate::record::bad;
use crate::spec::{PadValue, Ragged};

/// Packing of rows of different length into a batch.
#[derive(Debug, Clone, Copy)]
pub(super) enum Packing {
    Padded { value: PadValue, max_len: Option<usize> },
    Nested { max_len: Option<usize> },
}

/// Common form of all rows of a batch: everything but their length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Form {
    pub(super) dtype: DType,
    /// Elements per dimension after the first.
    pub(super) rest: Vec<usize>,
}

/// Written rows, one per record of the batch, good or bad.
pub(super) struct RaggedRows {
    form: Form,
    buffer: Buffer,
    /// Length of each; 0 for bad or missing ones.
    lengths: Vec<usize>,
    present: Vec<bool>,
    room: RowWidth,
}

/// Memory of each row.
#[derive(Clone, Copy)]
enum RowWidth {
    /// The width of the longest, or the requested one.
    Same { width: usize, is_fixed: bool },
    /// Own length.
    Own,
}

impl Packing {
    /// Returns the packing; `None` for listed rows.
    pub(super) fn of(ragged: Ragged) -> Option<Self> {
        // A u32 fits.
        let whole = |max_len: Option<u32>| max_len.map(|len| len as usize);
        match ragged {
            Ragged::List => None,
            Ragged::Pad { value, max_len } => Some(Self::Padded { value, max_len: whole(max_len) }),
            Ragged::Nested { max_len } => Some(Self::Nested { max_len: whole(max_len) }),
        }
    }

    /// Returns the length at which rows are cut.
    pub(super) fn len_max(&self) -> usize {
        let (Self::Padded { max_len, .. } | Self::Nested { max_len }) = self;
        max_len.unwrap_or(usize::MAX)
    }

    /// Checks that an array can be a row, whatever the others are.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::BadSample`] with the reason.
    pub(super) fn check(&self, stored: &Stored<'_>) -> Result<()> {
        let Some((_, rest)) = stored.shape.split_first() else {
            return Err(bad("a single number has no length")
                .advise("store arrays of at least one dimension, or use ragged=\"list\""));
        };
        // Such rows may claim any length without a single byte.
        if rest.contains(&0) {
            return Err(bad("the array has a length but no elements").at("has", shown(stored)));
        }
        match self {
            Self::Padded { value, .. } if value.element(stored.dtype).is_none() => {
                Err(bad("the array's dtype cannot hold the padding value")
                    .at("pad_value", value)
                    .at("dtype", stored.dtype.name())
                    .advise("choose a pad_value= that all arrays can hold"))
            }
            _ => Ok(()),
        }
    }

    /// Writes the rows, each of `form`, to contiguous memory.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::Full`] when there is no memory for them.
    pub(super) fn rows(
        self,
        form: Option<Form>,
        rows: &[Option<Stored<'_>>],
        buffers: &BufferPool,
    ) -> Result<RaggedRows> {
        let form = form.unwrap_or_else(|| self.unknown());
        let unit = form.unit();
        let length = |row: &Option<Stored<'_>>| {
            row.as_ref().map_or(0, |row| row.shape[0].min(self.len_max()))
        };
        let lengths: Vec<usize> = rows.iter().map(length).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let (room, bytes) = match self {
            Self::Padded { max_len, .. } => {
                let width = max_len.unwrap_or(longest);
                let bytes = width.saturating_mul(unit).saturating_mul(rows.len());
                (RowWidth::Same { width, is_fixed: max_len.is_some() }, bytes)
            }
            // At most the bytes the rows were read from.
            Self::Nested { .. } => (RowWidth::Own, lengths.iter().sum::<usize>() * unit),
        };
        let mut buffer = buffers.take(bytes).map_err(|full| {
            full.at("longest", longest)
                .advise("give max_len=, or use a smaller batch_size, or more memory")
        })?;
        let pad = match self {
            Self::Padded { value, .. } => value.element(form.dtype).unwrap_or_default(),
            Self::Nested { .. } => Vec::new(),
        };
        let mut left = buffer.as_bytes_mut();
        let slots: Vec<&mut [u8]> = lengths
            .iter()
            .map(|length| {
                let slot = left.split_off_mut(..room.of(*length) * unit);
                slot.expect("the buffer holds all slots")
            })
            .collect();
        slots.into_par_iter().zip(rows).zip(&lengths).with_max_len(1).for_each(
            |((slot, row), length)| {
                let (own, rest) = slot.split_at_mut(length * unit);
                if let Some(row) = row {
                    row.write(own);
                }
                fill(rest, &pad);
            },
        );
        let present = rows.iter().map(Option::is_some).collect();
        Ok(RaggedRows { form, buffer, lengths, present, room })
    }

    /// Returns the form of a batch without rows: torch's default type, or the one that holds every
    /// padding value.
    fn unknown(&self) -> Form {
        let dtype = match self {
            Self::Padded { value, .. } if value.element(DType::Float32).is_none() => DType::Float64,
            _ => DType::Float32,
        };
        Form { dtype, rest: Vec::new() }
    }
}

impl Form {
    /// Returns the most frequent form of the rows; among equals the first.
    pub(super) fn of_most<'a>(rows: impl Iterator<Item = &'a Stored<'a>>) -> Option<Self> {
        let mut counts: HashMap<(DType, &[usize]), (usize, usize)> = HashMap::new();
        for (at, row) in rows.enumerate() {
            counts.entry((row.dtype, &row.shape[1..])).or_insert((0, at)).0 += 1;
        }
        let most =
            counts.into_iter().max_by_key(|(_, (count, first))| (*count, usize::MAX - first));
        most.map(|((dtype, rest), _)| Self { dtype, rest: rest.to_vec() })
    }

    /// Checks that a row has this form.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::BadSample`] with the row's form.
    pub(super) fn check(&self, row: &Stored<'_>) -> Result<()> {
        if self.dtype == row.dtype && self.rest == row.shape[1..] {
            return Ok(());
        }
        let rest: String = self.rest.iter().map(|side| format!(", {side}")).collect();
        Err(bad("the array differs from most of its batch in dtype or shape")
            .at("has", shown(row))
            .at("expected", format!("{} (*{rest})", self.dtype.name()))
            .advise("store arrays of one dtype that differ only in their first dimension"))
    }

    /// Returns the bytes of one step along the first dimension: at most those of an existing row.
    fn unit(&self) -> usize {
        self.rest.iter().product::<usize>() * self.dtype.size()
    }
}

impl RowWidth {
    /// Returns the steps along the first dimension reserved for a row of `length`.
    fn of(self, length: usize) -> usize {
        match self {
            Self::Same { width, .. } => width,
            Self::Own => length,
        }
    }
}

impl RaggedRows {
    /// Returns the rows in `kept` (ascending) without gaps, no wider than needed, and their
    /// presence.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::Full`] when there is no memory for their lengths.
    pub(super) fn keep(self, kept: &[usize], buffers: &BufferPool) -> Result<(Column, Vec<bool>)> {
        let Self { form, mut buffer, lengths, present, room } = self;
        let unit = form.unit();
        let mut starts = Vec::with_capacity(lengths.len());
        let mut end = 0;
        for length in &lengths {
            starts.push(end);
            end += room.of(*length) * unit;
        }
        let present = kept.iter().map(|&row| present[row]).collect();
        let longest = kept.iter().map(|&row| lengths[row]).max().unwrap_or(0);
        let closed = match room {
            RowWidth::Same { is_fixed: false, .. } => {
                RowWidth::Same { width: longest, is_fixed: false }
            }
            other => other,
        };
        let bytes = buffer.as_bytes_mut();
        let mut to = 0;
        for &row in kept {
            let size = closed.of(lengths[row]) * unit;
            // A row moves to the front or stays, so it never overwrites one that is still to move.
            if to != starts[row] {
                bytes.copy_within(starts[row]..starts[row] + size, to);
            }
            to += size;
        }
        buffer.truncate(to);
        let lengths: Vec<usize> = kept.iter().map(|&row| lengths[row]).collect();
        let first = match closed {
            RowWidth::Same { width, .. } => vec![kept.len(), width],
            RowWidth::Own => vec![lengths.iter().sum()],
        };
        let shape = [first, form.rest].concat();
        let values = Tensor { dtype: form.dtype, shape, buffer };
        let lengths = integers(&lengths, buffers)?;
        let column = match closed {
            RowWidth::Same { .. } => Column::Padded { values, lengths },
            RowWidth::Own => Column::Nested { values, lengths },
        };
        Ok((column, present))
    }
}

/// Returns lengths of rows as a tensor.
fn integers(lengths: &[usize], buffers: &BufferPool) -> Result<Tensor> {
    let mut buffer = buffers.take(lengths.len() * DType::Int64.size())?;
    for (length, out) in lengths.iter().zip(buffer.as_bytes_mut().as_chunks_mut().0) {
        // A length counts elements in memory: it fits an i64.
        *out = (*length as i64).to_ne_bytes();
    }
    Ok(Tensor { dtype: DType::Int64, shape: vec![lengths.len()], buffer })
}

/// Repeats an element of `pad` over `out`.
fn fill(out: &mut [u8], pad: &[u8]) {
    match pad {
        [first, others @ ..] if others.iter().all(|byte| byte == first) => out.fill(*first),
        [] => {}
        _ => out.chunks_exact_mut(pad.len()).for_each(|element| element.copy_from_slice(pad)),
    }
}

/// Formats a row's type and shape as Python does.
fn shown(row: &Stored<'_>) -> String {
    let sides: Vec<_> = row.shape.iter().map(usize::to_string).collect();
    let comma = if sides.len() == 1 { "," } else { "" };
    format!("{} ({}{comma})", row.dtype.name(), sides.join(", "))
}
