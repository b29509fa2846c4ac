//! `forebay policy`: eviction policies, replayed over traces.
//!
//! Nothing here changes a daemon.

mod record;
mod simulate;

use super::Done;

/// Compare eviction policies: record what jobs will read, replay it through every policy.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    Record(record::Arguments),
    Simulate(simulate::Arguments),
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Record(arguments) => record::run(arguments),
        Verb::Simulate(arguments) => simulate::run(arguments),
    }
}
