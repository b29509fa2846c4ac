//! Record to tensor: images, numbers, arrays and text, decoded into batch memory.
//!
//! Bytes in, tensors out, and nothing else. The crate knows no socket and no framework, and only
//! the address of the slab. Any bytes give a column or a [`BadSample`], never a panic. The caller
//! decides about a batch with bad samples: its other rows are whole either way.
//!
//! ```
//! use forebay_decode::{BufferPool, Column, Decoder, FieldKind, FieldSpec, Record};
//! let fields = vec![FieldSpec::new("label", "cls;txt", FieldKind::Int { path: None })];
//! let decoder = Decoder::new(fields, 1, &BufferPool::new(1 << 20), None)?;
//! let record = |key, bytes: &'static [u8]| (key, [("cls", bytes)]);
//! let samples = [record("a", b"7"), record("b", b"seven")];
//! let batch: Vec<Record<'_>> = samples
//!     .iter()
//!     .map(|(key, fields)| Record { key, url: "s3://b/a.tar", stream: 0, position: 0, offset: None, fields, has: &[] })
//!     .collect();
//! let decoded = decoder.decode(&batch, &[], 0, 0)?;
//! assert_eq!(decoded.kept, [0]);
//! assert_eq!(decoded.bad[0].index, 1);
//! let Column::Tensor(label) = &decoded.outputs[0].column else { unreachable!() };
//! assert_eq!(label.buffer.as_bytes(), 7_i64.to_ne_bytes());
//! # Ok::<(), forebay_error::Error>(())
//! ```

mod array;
mod buffer;
mod column;
mod crop;
mod cuda;
mod decoder;
mod draw;
mod dtype;
#[cfg(test)]
mod fixtures;
mod image;
mod json;
mod label;
mod npy;
mod number;
mod raw;
mod record;
mod routes;
mod spec;

pub use buffer::{Buffer, BufferPool};
pub use column::{BadSample, Column, Decoded, Output, SlowSample, Tensor};
pub use cuda::{Backend, Device, DeviceTensor, Done, Lent, WithNvjpeg};
pub use decoder::Decoder;
pub use draw::{DRAW_VERSION, Draw, Numbers, Purpose, field_id};
pub use dtype::DType;
pub use image::{PIXELS_MAX, SIDE_MAX, encode_jpeg};
pub use record::Record;
pub use routes::Routes;
pub use spec::{
    Crop, FieldKind, FieldSpec, ImageSpec, Interpolation, Layout, Mode, PadValue, Quality, Ragged,
    RawSpec, VIEWS_MAX,
};
