//! A column that may still have gaps. Rule: closing them moves bytes, in order.

use forebay_error::Result;

use super::ragged::RaggedRows;
use crate::buffer::{Buffer, BufferPool};
use crate::column::{Column, Tensor};
use crate::dtype::DType;

/// One field's rows, one per record of the batch, good or bad.
pub(super) enum Rows {
    /// Adjacent rows of one shape.
    Fixed {
        dtype: DType,
        shape: Vec<usize>,
        buffer: Buffer,
        present: Vec<bool>,
    },
    /// One tensor each; `none` is the type and shape of a batch without rows, if known.
    Tensors {
        rows: Vec<Option<Tensor>>,
        none: Option<(DType, Vec<usize>)>,
    },
    Ragged(RaggedRows),
    Text(Vec<Option<String>>),
    Json(Vec<Option<String>>),
    Bytes(Vec<Option<usize>>),
}

impl Rows {
    /// Returns the rows in `kept` (ascending), and their presence.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::Full`] when there is no memory to stack them in.
    pub(super) fn keep(self, kept: &[usize], buffers: &BufferPool) -> Result<(Column, Vec<bool>)> {
        Ok(match self {
            Self::Fixed { dtype, shape, buffer, present } => {
                let tensor = close(dtype, shape, buffer, kept);
                (Column::Tensor(tensor), kept.iter().map(|&row| present[row]).collect())
            }
            Self::Tensors { rows, none } => tensors(pick(rows, kept), none, buffers)?,
            Self::Ragged(rows) => rows.keep(kept, buffers)?,
            Self::Text(rows) => texts(pick(rows, kept), Column::Text),
            Self::Json(rows) => texts(pick(rows, kept), Column::Json),
            Self::Bytes(rows) => {
                let rows = pick(rows, kept);
                let present = presence(&rows);
                (Column::Bytes(rows), present)
            }
        })
    }
}

/// Moves the rows in `kept` to the front.
fn close(dtype: DType, shape: Vec<usize>, mut buffer: Buffer, kept: &[usize]) -> Tensor {
    let row = shape.iter().product::<usize>() * dtype.size();
    let bytes = buffer.as_bytes_mut();
    for (to, &from) in kept.iter().enumerate() {
        if to != from {
            bytes.copy_within(from * row..(from + 1) * row, to * row);
        }
    }
    buffer.truncate(kept.len() * row);
    let shape = std::iter::once(kept.len()).chain(shape).collect();
    Tensor { dtype, shape, buffer }
}

fn pick<T>(mut rows: Vec<Option<T>>, kept: &[usize]) -> Vec<Option<T>> {
    kept.iter().map(|&row| rows[row].take()).collect()
}

fn presence<T>(rows: &[Option<T>]) -> Vec<bool> {
    rows.iter().map(Option::is_some).collect()
}

fn texts(rows: Vec<Option<String>>, column: fn(Vec<String>) -> Column) -> (Column, Vec<bool>) {
    let present = presence(&rows);
    (column(rows.into_iter().map(Option::unwrap_or_default).collect()), present)
}

/// Stacks rows into one tensor if all agree in type and shape, else returns one each.
fn tensors(
    rows: Vec<Option<Tensor>>,
    none: Option<(DType, Vec<usize>)>,
    buffers: &BufferPool,
) -> Result<(Column, Vec<bool>)> {
    let present = presence(&rows);
    let absent = || {
        let buffer = buffers.take(0)?;
        Ok(Tensor { dtype: DType::Uint8, shape: vec![0], buffer })
    };
    let rows = rows.into_iter().map(|row| row.map_or_else(absent, Ok));
    let rows: Vec<Tensor> = rows.collect::<Result<_>>()?;
    let alike = rows
        .windows(2)
        .all(|pair| pair[0].dtype == pair[1].dtype && pair[0].shape == pair[1].shape);
    let column = match (rows.first(), none) {
        (None, Some((dtype, shape))) => {
            let shape = std::iter::once(0).chain(shape).collect();
            Column::Tensor(Tensor { dtype, shape, buffer: buffers.take(0)? })
        }
        (Some(first), _) if alike && present.iter().all(|present| *present) => {
            Column::Tensor(stack(first, &rows, buffers)?)
        }
        _ => Column::Tensors(rows),
    };
    Ok((column, present))
}

fn stack(first: &Tensor, rows: &[Tensor], buffers: &BufferPool) -> Result<Tensor> {
    let row = first.buffer.len();
    let mut buffer = buffers.take(row.saturating_mul(rows.len()))?;
    if row > 0 {
        for (out, tensor) in buffer.as_bytes_mut().chunks_exact_mut(row).zip(rows) {
            out.copy_from_slice(tensor.buffer.as_bytes());
        }
    }
    let shape = std::iter::once(rows.len()).chain(first.shape.iter().copied()).collect();
    Ok(Tensor { dtype: first.dtype, shape, buffer })
}
