//! `forebay bench`: what feeds an accelerator, measured.

mod starvation;
mod trace;

use super::{Done, Launcher};

/// Measure what feeds an accelerator: how long it would starve, and why.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    Starvation(starvation::Arguments),
}

pub(super) fn run(verb: &Verb, launcher: &Launcher) -> Done {
    match verb {
        Verb::Starvation(arguments) => starvation::run(arguments, launcher),
    }
}
