//! A field whose rows are all known: the part queued on the batch's device, and the part already
//! done.
//!
//! Bytes that the device needs of all fields are copied together, before anything is made of
//! them.

use super::arrays::{Form, Slices};
use crate::column::Column;
use crate::cuda::{Address, Failure, Picture, Staging, Submission};
use crate::image::ImagePlan;

/// Rows of a field.
pub(super) enum Line<'a> {
    /// Images: those the device decodes, the rows of those the CPU decoded, and the missing rows.
    Pictures {
        plan: &'a ImagePlan,
        pictures: Vec<Picture<'a>>,
        staging: Option<Staging>,
        staged: Vec<(usize, usize)>,
        absent: Vec<usize>,
        rows: usize,
    },
    /// Arrays of one form, whose bytes are adjacent in the tensor; zeros for missing ones.
    Arrays { form: Form, rows: Slices<'a> },
    /// Column made by the CPU.
    Made(Column),
}

impl<'a> Line<'a> {
    /// Returns the parts of the batch's memory that the device needs; not those of images if they
    /// are decoded from the host's memory.
    pub(super) fn files(&self, from_host: bool) -> Vec<&'a [u8]> {
        match self {
            Self::Pictures { .. } if from_host => Vec::new(),
            Self::Pictures { pictures, .. } => {
                pictures.iter().map(|picture| picture.file).collect()
            }
            Self::Arrays { rows, .. } => rows.iter().flatten().copied().collect(),
            Self::Made(_) => Vec::new(),
        }
    }

    /// Queues it; `files` are the device addresses of [`Line::files`].
    pub(super) fn put(
        self,
        files: &mut impl Iterator<Item = Address>,
        from_host: bool,
        submission: &mut Submission<'a>,
    ) -> Result<Column, Failure> {
        Ok(match self {
            Self::Pictures { plan, pictures, staging, staged, absent, rows } => {
                let files: Vec<Address> = if from_host {
                    pictures.iter().map(|picture| picture.file.as_ptr() as Address).collect()
                } else {
                    files.take(pictures.len()).collect()
                };
                let made = (staging, &staged[..]);
                Column::OnDevice(submission.images(
                    plan,
                    (pictures, &files),
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
