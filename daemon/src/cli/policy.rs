//! `forebay policy`: what a configuration file says of shards, and what policies would make of them.
//!
//! One rule: every verb reads files only, or what it is told; no daemon is asked, and none is changed.

mod check;
mod diff;
mod show;
mod simulate;

use super::Done;

/// Look at a policy: is it right, what does it say, what changes, what would it do.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    Check(check::Arguments),
    Show(show::Arguments),
    Diff(diff::Arguments),
    Simulate(simulate::Arguments),
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Check(arguments) => check::run(arguments),
        Verb::Show(arguments) => show::run(arguments),
        Verb::Diff(arguments) => diff::run(arguments),
        Verb::Simulate(arguments) => simulate::run(arguments),
    }
}
