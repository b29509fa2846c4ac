//! A GPU for machines without one: the parts of CUDA's driver and of nvJPEG that Forebay calls, on
//! the CPU.
//!
//! It is as late as possible, and no milder than a real one. Work queued on a stream is done when a
//! caller waits for it and not before, so that memory reused too early shows. Copies from memory
//! that is not pinned, writes past the end of a block, and reuse of a busy nvJPEG state end the
//! process. The kernels are the real ones, compiled for the CPU; JPEG files are decoded by
//! libjpeg-turbo. It does not measure speed.
//!
//! Faults are injected by the environment (`FOREBAY_EMULATOR_…`), or by a comment in a file
//! ([`jpeg`]).

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
