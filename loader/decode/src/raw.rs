//! Arrays without a header: type and shape are known beforehand. Rule: bytes that do not make whole
//! arrays are rejected.

use forebay_error::Result;

use crate::array::{self, Stored};
use crate::record::bad;
use crate::spec::RawSpec;

impl RawSpec {
    /// Returns the array in `bytes`, which are little-endian.
    pub(crate) fn read<'a>(&self, bytes: &'a [u8]) -> Result<Stored<'a>> {
        let wrong = || {
            bad("the number of bytes does not fit the shape")
                .at("bytes", bytes.len())
                .at("shape", self.shown())
        };
        // Bytes of one step along the open dimension, if any; a checked specification has such.
        let step = array::bytes(self.dtype, self.shape.iter().map(|side| side.unwrap_or(1)));
        let step = step.filter(|step| bytes.len().is_multiple_of(*step)).ok_or_else(wrong)?;
        let steps = bytes.len() / step;
        if steps != 1 && !self.shape.contains(&None) {
            return Err(wrong());
        }
        Ok(Stored {
            dtype: self.dtype,
            swapped: cfg!(target_endian = "big"),
            fortran_order: false,
            shape: self.shape.iter().map(|side| side.unwrap_or(steps)).collect(),
            elements: bytes,
        })
    }

    /// Returns the shape of all rows, if it is known.
    pub(crate) fn row_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().copied().collect()
    }

    /// Returns the shape of a row of length 0 along the open dimension.
    pub(crate) fn no_shape(&self) -> Vec<usize> {
        self.shape.iter().map(|side| side.unwrap_or(0)).collect()
    }

    /// Formats it as the user wrote it.
    fn shown(&self) -> String {
        let sides = self.shape.iter().map(|side| side.map_or("-1".to_owned(), |n| n.to_string()));
        format!("{} ({})", self.dtype.name(), sides.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dtype::DType;

    fn spec(shape: &[Option<usize>]) -> RawSpec {
        RawSpec { dtype: DType::Uint16, shape: shape.to_vec() }
    }

    #[test]
    fn bytes_must_match_the_declared_array() {
        let bytes: Vec<u8> = (0..12).collect();
        let whole = spec(&[Some(2), Some(3)]).read(&bytes).unwrap();
        assert_eq!((whole.dtype, &whole.shape[..]), (DType::Uint16, &[2, 3][..]));
        assert_eq!(whole.elements, bytes);
        assert_eq!(spec(&[Some(3), None]).read(&bytes).unwrap().shape, [3, 2]);
        assert_eq!(spec(&[None]).read(&[]).unwrap().shape, [0]);
        assert!(spec(&[]).read(&[7, 0]).unwrap().shape.is_empty());
        for shape in [&[Some(2)][..], &[Some(4), None], &[Some(12)], &[]] {
            let error = spec(shape).read(&bytes).unwrap_err();
            assert_eq!(error.kind().name(), "BadSample", "{shape:?}");
            assert_eq!(error.place("bytes"), Some("12"));
        }
        let error = spec(&[Some(4), None]).read(&bytes).unwrap_err();
        assert_eq!(error.place("shape"), Some("uint16 (4, -1)"));
        assert!(spec(&[Some(1)]).read(&[]).is_err(), "nothing is no whole array");
    }

    proptest! {
        #[test]
        fn any_bytes_fit_the_shape_exactly_or_are_rejected(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            sides in proptest::collection::vec(1_usize..5, 0..4),
            open in any::<Option<usize>>(),
            dtype in 0..DType::ALL.len(),
        ) {
            let mut shape: Vec<_> = sides.iter().copied().map(Some).collect();
            if let (Some(at), false) = (open, shape.is_empty()) {
                let at = at % shape.len();
                shape[at] = None;
            }
            let spec = RawSpec { dtype: DType::ALL[dtype], shape };
            let step = spec.dtype.size() * spec.shape.iter().flatten().product::<usize>();
            let fits = if spec.shape.contains(&None) { bytes.len() % step == 0 } else { bytes.len() == step };
            let found = spec.read(&bytes);
            prop_assert_eq!(found.is_ok(), fits);
            if let Ok(stored) = found {
                prop_assert_eq!(stored.shape.iter().product::<usize>() * spec.dtype.size(), bytes.len());
                prop_assert!(spec.shape.iter().zip(&stored.shape).all(|(want, have)| want.is_none_or(|want| want == *have)));
            }
        }
    }
}
