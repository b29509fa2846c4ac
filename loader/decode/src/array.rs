//! An array as a sample stores it, and its way into memory. Rule: the result is in C order and the
//! machine's byte order, however it was stored.

use forebay_error::Result;

use crate::buffer::BufferPool;
use crate::column::Tensor;
use crate::dtype::DType;
use crate::routes::Reason;

/// NumPy's own limit on the number of dimensions.
pub(crate) const DIMENSIONS_MAX: usize = 64;

/// An array whose elements have not been touched yet.
#[derive(Debug)]
pub(crate) struct Stored<'a> {
    pub(crate) dtype: DType,
    /// True if its bytes are not in the machine's order.
    pub(crate) swapped: bool,
    pub(crate) fortran_order: bool,
    pub(crate) shape: Vec<usize>,
    /// As many bytes as [`bytes`] returns.
    pub(crate) elements: &'a [u8],
}

impl<'a> Stored<'a> {
    /// Returns its bytes, if they equal the output of [`Stored::write`].
    ///
    /// # Errors
    /// The reason they differ.
    pub(crate) fn plain(&self) -> std::result::Result<&'a [u8], Reason> {
        if self.dtype == DType::Bool {
            return Err(Reason::Booleans);
        }
        let is_turned = self.fortran_order && self.shape.len() > 1;
        let is_swapped = self.swapped && self.dtype.size() > 1;
        if is_turned || is_swapped { Err(Reason::Order) } else { Ok(self.elements) }
    }

    /// Copies the whole array to memory of its own.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::Full`] when there is no memory for it.
    pub(crate) fn tensor(&self, pool: &BufferPool) -> Result<Tensor> {
        let mut buffer = pool.take(self.elements.len())?;
        self.write(buffer.as_bytes_mut());
        Ok(Tensor { dtype: self.dtype, shape: self.shape.clone(), buffer })
    }

    /// Writes as many of its elements, the first in C order, as fit into `out`, which is at most as
    /// long.
    pub(crate) fn write(&self, out: &mut [u8]) {
        if self.fortran_order && self.shape.len() > 1 {
            reorder(self.elements, out, &self.shape, self.dtype.size());
        } else {
            out.copy_from_slice(&self.elements[..out.len()]);
        }
        if self.swapped {
            out.chunks_exact_mut(self.dtype.number_size()).for_each(<[u8]>::reverse);
        }
        if self.dtype == DType::Bool {
            // Frameworks read a boolean byte as 0 or 1; any other value would be undefined there.
            out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
    }
}

/// Returns the bytes of an array; `None` if that exceeds the address space. As in NumPy, empty
/// dimensions count as one here: arithmetic on the others must not overflow either.
pub(crate) fn bytes(dtype: DType, shape: impl IntoIterator<Item = usize>) -> Option<usize> {
    let mut is_empty = false;
    let mut bytes = dtype.size();
    for side in shape {
        is_empty |= side == 0;
        bytes = bytes.checked_mul(side.max(1)).filter(|bytes| isize::try_from(*bytes).is_ok())?;
    }
    Some(if is_empty { 0 } else { bytes })
}

/// Copies elements from first-index-fastest to last-index-fastest order, as many as `to` has room
/// for.
fn reorder(from: &[u8], to: &mut [u8], shape: &[usize], size: usize) {
    let mut strides = vec![size; shape.len()];
    for axis in 1..shape.len() {
        strides[axis] = strides[axis - 1] * shape[axis - 1];
    }
    let mut index = vec![0; shape.len()];
    for element in to.chunks_exact_mut(size) {
        let at: usize = index.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
        element.copy_from_slice(&from[at..at + size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaddressable_array_has_no_byte_count_even_if_empty() {
        assert_eq!(bytes(DType::Float32, [2, 3]), Some(24));
        assert_eq!(bytes(DType::Float32, []), Some(4));
        assert_eq!(bytes(DType::Float32, [0, 3]), Some(0));
        for shape in [[usize::MAX, 0], [0, usize::MAX], [1 << 61, 2], [1 << 40, 1 << 40]] {
            assert_eq!(bytes(DType::Float32, shape), None, "{shape:?}");
        }
    }

    #[test]
    fn first_elements_follow_c_order() {
        let elements: Vec<u8> = (0..12).collect();
        let of = |fortran_order, swapped| Stored {
            dtype: DType::Uint16,
            swapped,
            fortran_order,
            shape: vec![3, 2],
            elements: &elements,
        };
        let first = |stored: Stored<'_>| {
            let mut out = [0; 8];
            stored.write(&mut out);
            out
        };
        assert_eq!(first(of(false, false)), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(first(of(true, false)), [0, 1, 6, 7, 2, 3, 8, 9]);
        assert_eq!(first(of(true, true)), [1, 0, 7, 6, 3, 2, 9, 8]);
    }
}
