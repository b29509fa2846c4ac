//! `forebay policy`.

mod simulate;

use super::Done;

/// Look at how the cache decides what comes in and what goes.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    Simulate(simulate::Arguments),
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Simulate(arguments) => simulate::run(arguments),
    }
}
