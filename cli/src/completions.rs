//! `forebay completions`.
//!
//! A script knows what the command line itself takes; nothing is listed by hand.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Done, print};

/// Print a script by which a shell completes what is typed.
///
/// For bash: `forebay completions bash > /usr/share/bash-completion/completions/forebay`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    // Written to memory first: clap_complete panics where standard output is closed.
    let mut script = Vec::new();
    let mut command = super::Arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "forebay", &mut script);
    Ok(print(String::from_utf8_lossy(&script).trim_end())?)
}
