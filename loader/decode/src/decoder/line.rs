//! A field whose rows are all known: what of it is put in line on the batch's device, and what is done already.
//!
//! Its rule: the bytes that the device needs of all fields go there together, before anything is made of them.

use super::arrays::{Form, Slices};
use crate::column::Column;
use crate::cuda::{Address, Failure, Picture, Staging, Submission};
use crate::image::ImagePlan;

/// The rows of a field.
pub(super) enum Line<'a> {
    /// Images: those that the device decodes, which of those that the CPU made become which row, and the rows of
    /// which there is none.
    Pictures {
        plan: &'a ImagePlan,
        pictures: Vec<Picture<'a>>,
        staging: Staging,
        staged: Vec<(usize, usize)>,
        absent: Vec<usize>,
        rows: usize,
    },
    /// Arrays of one form, whose bytes lie side by side in the tensor; zeros for those that are absent.
    Arrays { form: Form, rows: Slices<'a> },
    /// What the CPU made.
    Made(Column),
}

impl<'a> Line<'a> {
    /// What the device needs of the batch's memory.
    pub(super) fn files(&self) -> Vec<&'a [u8]> {
        match self {
            Self::Pictures { pictures, .. } => {
                pictures.iter().map(|picture| picture.file).collect()
            }
            Self::Arrays { rows, .. } => rows.iter().flatten().copied().collect(),
            Self::Made(_) => Vec::new(),
        }
    }

    /// Puts it in line; `files` are where [`Line::files`] lie on the device.
    pub(super) fn put(
        self,
        files: &mut impl Iterator<Item = Address>,
        submission: &mut Submission<'a>,
    ) -> Result<Column, Failure> {
        Ok(match self {
            Self::Pictures { plan, pictures, staging, staged, absent, rows } => {
                let files: Vec<Address> = files.take(pictures.len()).collect();
                let made = (staging, &staged[..]);
                Column::OnDevice(submission.images(
                    plan,
                    (&pictures, &files),
                    made,
                    &absent,
                    rows,
                )?)
            }
            Self::Arrays { form: (dtype, shape), rows } => {
                let rows: Vec<Option<Address>> =
                    rows.iter().map(|row| row.and_then(|_| files.next())).collect();
                Column::OnDevice(submission.arrays(dtype, &shape, &rows)?)
            }
            Self::Made(Column::Tensor(tensor)) => Column::OnDevice(submission.upload(&tensor)?),
            Self::Made(column) => column,
        })
    }
}
