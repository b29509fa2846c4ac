//! Decoding on a GPU: compressed files go from the daemon's memory to the device as they are, and come out as the
//! batch's tensor.
//!
//! Its rule: everything that a GPU is not needed for is worked out apart from it, where any machine can test it: which
//! files it decodes (`screen`), what its kernel is told (`view`), and the kernel itself, whose source
//! (`pixels.cu`) CPUs compile too. What is left (`driver`, `memory`, `nvjpeg`, `device`) only calls what is there
//! at run time; nothing here is needed to build, and the same binary runs without.

mod device;
mod driver;
mod memory;
mod nvjpeg;
#[cfg(test)]
mod parity;
mod screen;
mod view;

pub use device::{Device, DeviceTensor, Lent};
pub(crate) use device::{Failure, Picture, Staging, Submission};
pub use driver::Done;
pub(crate) use screen::screen;
pub(crate) use view::Address;
