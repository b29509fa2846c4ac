//! Benchmarks a user runs: how long an accelerator starves, and why.

pub mod contest;
mod cpu;
mod fetches;
pub mod machine;
pub mod starvation;
