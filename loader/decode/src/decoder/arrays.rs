//! Arrays of a batch, before it is known which of them are good.
//!
//! Elements are touched once, when they are written to their final place: by a device if they
//! can be copied unchanged, else here.

use forebay_error::Result;
use rayon::prelude::*;

use crate::array::Stored;
use crate::buffer::BufferPool;
use crate::column::{Column, Tensor};
use crate::dtype::DType;
use crate::routes::Reason;

/// Bytes worth handing to another thread: some ten microseconds of copying.
const SPAN: usize = 64 << 10;

/// One field's arrays, one per record of the batch, good or bad.
pub(super) struct Arrays<'a> {
    pub(super) rows: Vec<Option<Stored<'a>>>,
    /// Type and shape of every row, if known beforehand; a missing row is zeros.
    pub(super) all: Option<Form>,
    /// Form of a batch without rows; an empty list without it.
    pub(super) none: Option<Form>,
}

/// Bytes of rows; `None` where one is missing.
pub(super) type Slices<'a> = Vec<Option<&'a [u8]>>;

/// Type and shape of a row.
pub(super) type Form = (DType, Vec<usize>);

impl<'a> Arrays<'a> {
    /// Returns the form of the rows in `kept`, if they fit into one tensor.
    fn stacked(&self, kept: &[usize]) -> Option<Form> {
        if self.all.is_some() {
            return self.all.clone();
        }
        let mut rows = kept.iter().map(|&row| self.rows[row].as_ref());
        let Some(first) = rows.next() else { return self.none.clone() };
        let first = first?;
        let is_alike = |row: &Stored<'_>| (row.dtype, &row.shape) == (first.dtype, &first.shape);
        rows.all(|row| row.is_some_and(is_alike)).then(|| (first.dtype, first.shape.clone()))
    }

    /// Returns the form of the rows in `kept`, and their bytes, if copying these makes a tensor.
    ///
    /// # Errors
    /// The reason it does not.
    pub(super) fn plain(&self, kept: &[usize]) -> std::result::Result<(Form, Slices<'a>), Reason> {
        let form = self.stacked(kept).ok_or(Reason::Shapes)?;
        let rows = kept.iter().map(|&row| self.rows[row].as_ref().map(Stored::plain).transpose());
        Ok((form, rows.collect::<std::result::Result<_, _>>()?))
    }

    /// Returns the presence of the rows in `kept`.
    pub(super) fn present(&self, kept: &[usize]) -> Vec<bool> {
        kept.iter().map(|&row| self.rows[row].is_some()).collect()
    }

    /// Copies the rows in `kept` into one tensor, or one each if they do not fit, on the threads of
    /// the caller's pool.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::Full`] when there is no memory for them.
    pub(super) fn keep(&self, kept: &[usize], buffers: &BufferPool) -> Result<Column> {
        let Some((dtype, shape)) = self.stacked(kept) else {
            let empty =
                || Ok(Tensor { dtype: DType::Uint8, shape: vec![0], buffer: buffers.take(0)? });
            let rows = kept.par_iter().map(|&row| {
                self.rows[row].as_ref().map_or_else(empty, |stored| stored.tensor(buffers))
            });
            return rows.collect::<Result<_>>().map(Column::Tensors);
        };
        let row = shape.iter().product::<usize>() * dtype.size();
        let mut buffer = buffers.take(row.saturating_mul(kept.len()))?;
        if row > 0 {
            let slots = buffer.as_bytes_mut().par_chunks_exact_mut(row).zip(kept);
            slots.with_min_len(SPAN.div_ceil(row)).for_each(|(out, &row)| match &self.rows[row] {
                Some(stored) => stored.write(out),
                None => out.fill(0),
            });
        }
        let shape = std::iter::once(kept.len()).chain(shape).collect();
        Ok(Column::Tensor(Tensor { dtype, shape, buffer }))
    }
}
