//! Decoding on a GPU: compressed files become the batch's tensor there. Engines read them in the
//! daemon's memory; for other decoders they are copied to the device.
//!
//! Everything that needs no GPU is separate, so that any machine can test it: the choice of
//! files (`screen`), the kernel's parameters (`view`), and the kernel itself, whose source
//! (`pixels.cu`) CPUs compile too. The rest only calls libraries found at run time; the build needs
//! none of them, and the same binary runs without.

mod device;
mod driver;
mod flight;
mod memory;
mod nvjpeg;
#[cfg(test)]
mod parity;
mod registered;
mod returns;
mod runs;
mod screen;
mod submission;
mod tensor;
mod view;

pub(crate) use device::Staging;
pub use device::{Device, WithNvjpeg};
pub use driver::Done;
pub use nvjpeg::Backend;
pub(crate) use screen::screen;
pub(crate) use submission::{Failure, Picture, Submission};
pub use tensor::{DeviceTensor, Lent};
pub(crate) use view::{Address, Tables};
