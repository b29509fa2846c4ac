//! Parts of a decoded batch. Rule: rows are contiguous and in the batch's order.

use std::ops::Range;

use forebay_error::Error;

use crate::buffer::Buffer;
use crate::cuda::{DeviceTensor, Done};
use crate::dtype::DType;
use crate::routes::Routes;

/// A decoded batch: its columns, and the records that failed.
#[derive(Debug)]
pub struct Decoded {
    /// One per field, in the requested order, each with exactly `kept.len()` rows.
    pub outputs: Vec<Output>,
    /// Index of each row's record in the batch, ascending.
    pub kept: Vec<usize>,
    /// Records without a row, ascending by index.
    pub bad: Vec<BadSample>,
    /// Decoders of image and array rows, with reasons.
    pub routes: Routes,
    /// Event after which the records' memory is no longer read; `None` if it already is not.
    pub done: Option<Done>,
    /// Time in which the thread copied bytes to a device, in nanoseconds of the node's monotonic
    /// clock; empty without a device.
    pub brought: Range<u64>,
    /// Decodes that took longest, the slowest first; a few.
    pub slowest: Vec<SlowSample>,
}

/// Time that a field of a record took to decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowSample {
    /// Index of the record in the batch.
    pub index: usize,
    /// The field's name.
    pub field: String,
    /// Nanoseconds.
    pub ns: u64,
}

/// One named column of a batch.
#[derive(Debug)]
pub struct Output {
    /// The output's key.
    pub name: String,
    /// Rows.
    pub column: Column,
    /// For an optional field, the presence of the field in each row's sample; a missing row is
    /// zeros, empty text, an empty tensor, of length 0 or `None`.
    pub present: Option<Vec<bool>>,
}

/// The rows of one field.
#[derive(Debug)]
pub enum Column {
    /// All rows in one tensor, whose first dimension counts them.
    Tensor(Tensor),
    /// The same on a device.
    OnDevice(DeviceTensor),
    /// One tensor per row, because shapes or types differ.
    Tensors(Vec<Tensor>),
    /// Rows of different length in one tensor (rows, longest, …), padded at their ends.
    Padded {
        /// The rows.
        values: Tensor,
        /// Length of each, as int64.
        lengths: Tensor,
    },
    /// Rows of different length, one after the other in one tensor (all lengths together, …).
    Nested {
        /// The rows.
        values: Tensor,
        /// Length of each, as int64.
        lengths: Tensor,
    },
    /// Text.
    Text(Vec<String>),
    /// JSON documents as text.
    Json(Vec<String>),
    /// Indexes into the record's own `fields`; no bytes are copied.
    Bytes(Vec<Option<usize>>),
}

/// A dense array in C order.
#[derive(Debug)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Elements per dimension, the outermost first.
    pub shape: Vec<usize>,
    /// Elements: exactly the shape's product times the element size in bytes.
    pub buffer: Buffer,
}

/// A record that could not be decoded.
#[derive(Debug)]
pub struct BadSample {
    /// Index in the batch.
    pub index: usize,
    /// Reason: of kind `BadSample`, naming field, key and url; or of kind `Full`, with every
    /// record.
    pub error: Error,
}
