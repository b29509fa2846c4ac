//! What a decoded batch is made of. The one rule: rows are contiguous and in the batch's order.

use std::ops::Range;

use forebay_error::Error;

use crate::buffer::Buffer;
use crate::cuda::{DeviceTensor, Done};
use crate::dtype::DType;
use crate::routes::Routes;

/// A decoded batch: its columns, and what could not be decoded.
#[derive(Debug)]
pub struct Decoded {
    /// One per field, in the order they were asked for. Each has exactly `kept.len()` rows.
    pub outputs: Vec<Output>,
    /// For each row, the index of its record in the batch; ascending.
    pub kept: Vec<usize>,
    /// The records that are not among the rows; ascending by index.
    pub bad: Vec<BadSample>,
    /// Who made the rows of images and arrays, and why.
    pub routes: Routes,
    /// When the records' memory is no longer read; nothing if it is not any more.
    pub done: Option<Done>,
    /// From when until when the thread brought bytes to a device, in nanoseconds of the node's monotonic clock;
    /// empty without one.
    pub brought: Range<u64>,
}

/// One named column of a batch.
#[derive(Debug)]
pub struct Output {
    /// The output's key.
    pub name: String,
    /// Its rows.
    pub column: Column,
    /// For an optional field, whether each row's sample has it; where not, the row is zeros, empty
    /// text, an empty tensor, of length 0 or `None`.
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
    /// Rows that differ in length, in one tensor (rows, longest, …): what follows a row's end is padding.
    Padded {
        /// The rows.
        values: Tensor,
        /// How long each is, as int64.
        lengths: Tensor,
    },
    /// Rows that differ in length, one after the other in one tensor (all lengths together, …).
    Nested {
        /// The rows.
        values: Tensor,
        /// How long each is, as int64.
        lengths: Tensor,
    },
    /// Text.
    Text(Vec<String>),
    /// JSON documents as text.
    Json(Vec<String>),
    /// Where the bytes are: the index into the record's own `fields`; nothing was copied.
    Bytes(Vec<Option<usize>>),
}

/// A dense array in C order.
#[derive(Debug)]
pub struct Tensor {
    /// What an element is.
    pub dtype: DType,
    /// Elements per dimension, the outermost first.
    pub shape: Vec<usize>,
    /// The elements: exactly the shape's product times the element size in bytes.
    pub buffer: Buffer,
}

/// A record that could not be decoded.
#[derive(Debug)]
pub struct BadSample {
    /// Its index in the batch.
    pub index: usize,
    /// Why: of kind `BadSample`, naming field, key and url; or of kind `Full`, with every record.
    pub error: Error,
}
