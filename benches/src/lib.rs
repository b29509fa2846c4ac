//! Benchmarks a user runs: how long an accelerator starves, and why.

mod cpu;
mod fetches;
pub mod machine;
pub mod starvation;
