//! Benchmarks a user runs: how long an accelerator starves and why, how much comes and how soon,
//! and how it grows.

pub mod contest;
mod cpu;
pub mod dice;
mod durations;
mod fetches;
pub mod growth;
pub mod interrupt;
pub mod latency;
pub mod machine;
mod playing;
pub mod scale;
mod spread;
pub mod starvation;
pub mod throughput;
mod tier_reads;
