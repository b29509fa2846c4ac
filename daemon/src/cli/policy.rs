//! `forebay policy`: what a configuration file says of shards, before a daemon goes by it.
//!
//! One rule: every verb reads files only; no daemon is asked, and none is changed.

mod check;
mod diff;
mod show;

use super::Done;

/// Look at a configuration's policy: is it right, what does it say, what changes.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    Check(check::Arguments),
    Show(show::Arguments),
    Diff(diff::Arguments),
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Check(arguments) => check::run(arguments),
        Verb::Show(arguments) => show::run(arguments),
        Verb::Diff(arguments) => diff::run(arguments),
    }
}
