//! Decoding on a GPU.

#[cfg(test)]
mod parity;
mod screen;
mod taps;
mod view;

pub use screen::Reason;
