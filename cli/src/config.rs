//! `forebay config`: the configuration file, and the configuration in force.
//!
//! Only `apply` changes anything, and only in a running daemon. Whatever is printed hides
//! secrets.

mod apply;
mod check;
mod diff;
mod show;

use super::{Done, Target, print_json};

/// Check, show, compare and apply configurations.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    Check(check::Arguments),
    Show(show::Arguments),
    Diff(diff::Arguments),
    Apply(apply::Arguments),
    /// Print the JSON Schema of a configuration file, which editors use to complete and check it.
    Schema,
}

/// Describes the changes that a running daemon's own file would make.
pub(super) fn differences(target: &Target) -> Done<String> {
    Ok(diff::words(&diff::of_daemon(target, None)?))
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Check(arguments) => check::run(arguments),
        Verb::Show(arguments) => show::run(arguments),
        Verb::Diff(arguments) => diff::run(arguments),
        Verb::Apply(arguments) => apply::run(arguments),
        Verb::Schema => Ok(print_json(&forebay_config::schema())?),
    }
}
