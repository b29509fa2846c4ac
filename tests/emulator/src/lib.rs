//! A GPU for machines without one: what Forebay calls of CUDA's driver and of nvJPEG, on the CPU.
//!
//! As late as it may be, and no milder than the real one. Whatever is put in line on a stream is
//! done when somebody waits for it and not before, so that memory which is used again too early
//! shows; copies from memory that is not pinned, writes past the end of a block, and a state of
//! nvJPEG's that is still in use end the process. The kernels are the real ones, compiled for the
//! CPU; JPEG files are decoded by libjpeg-turbo. It is no measure of speed.
//!
//! What goes wrong is asked for by the environment (`FOREBAY_EMULATOR_…`), or by a comment in a
//! file ([`jpeg`]).

#![allow(
    unsafe_code,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    non_snake_case,
    missing_docs,
    unreachable_pub,
    clippy::print_stderr,
    reason = "the names and contracts are those of CUDA and nvJPEG"
)]

mod driver;
mod jpeg;
mod line;
