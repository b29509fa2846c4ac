//! `forebay bench`: what feeds an accelerator, measured.

mod compare;
mod latency;
mod loading;
mod rivals;
mod scale;
mod starvation;
mod throughput;
mod trace;

use super::{Done, Launcher};

/// Measure what feeds an accelerator: how long it would starve and why, how much comes and how soon, and how it grows.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    Starvation(starvation::Arguments),
    Compare(compare::Arguments),
    Throughput(throughput::Arguments),
    Latency(latency::Arguments),
    Scale(scale::Arguments),
}

pub(super) fn run(verb: &Verb, launcher: &Launcher) -> Done {
    match verb {
        Verb::Starvation(arguments) => starvation::run(arguments, launcher),
        Verb::Compare(arguments) => compare::run(arguments),
        Verb::Throughput(arguments) => throughput::run(arguments, launcher),
        Verb::Latency(arguments) => latency::run(arguments, launcher),
        Verb::Scale(arguments) => scale::run(arguments, launcher),
    }
}
