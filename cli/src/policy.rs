//! `forebay policy`: what a configuration says of shards, what policies would make of them, and what a
//! daemon goes by.
//!
//! One rule: `apply` alone changes anything, and only of a daemon that runs.

mod apply;
mod check;
mod diff;
mod record;
mod show;
mod simulate;

use super::{Done, Target};

/// Look at a policy and apply it: is it right, what does it say, what changes, what would it do.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    Check(check::Arguments),
    Show(show::Arguments),
    Diff(diff::Arguments),
    Apply(apply::Arguments),
    Record(record::Arguments),
    Simulate(simulate::Arguments),
}

/// What a running daemon's own file would change, in words.
pub(super) fn differences(target: &Target) -> Done<String> {
    Ok(diff::words(&diff::of_daemon(target, None)?))
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Check(arguments) => check::run(arguments),
        Verb::Show(arguments) => show::run(arguments),
        Verb::Diff(arguments) => diff::run(arguments),
        Verb::Apply(arguments) => apply::run(arguments),
        Verb::Record(arguments) => record::run(arguments),
        Verb::Simulate(arguments) => simulate::run(arguments),
    }
}
