//! `forebay-actor`: a second process for tests that need one.
//!
//! Its rule: as `forebay-actor daemon …` it is the command line that ships, built with the tests, so
//! that no test meets a binary older than itself.

use std::process::ExitCode;

fn main() -> ExitCode {
    let program = std::env::current_exe().expect("a process knows its program");
    forebay_daemon::cli::main(std::env::args_os(), &[program.into_os_string()])
}
