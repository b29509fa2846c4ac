//! A command that ran to its end.

use std::process::{Command, Stdio};

/// What a command came to.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// What it said, …
    pub out: String,
    /// … and what it complained of.
    pub err: String,
}

/// Runs a command to its end, which nobody types anything to.
///
/// # Panics
/// If it does not start, is killed, or says what is no text.
#[must_use]
pub fn run(mut command: Command) -> Ended {
    let output = command.stdin(Stdio::null()).output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("it says text");
    let code = output.status.code().unwrap_or_else(|| panic!("killed: {:?}", output.status));
    Ended { code, out: text(output.stdout), err: text(output.stderr) }
}
