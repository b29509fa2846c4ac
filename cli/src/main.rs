//! `forebay`: the command line, and the node daemon as `forebay daemon`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|_| "forebay".into());
    forebay_cli::main(std::env::args_os(), &[program.into_os_string()])
}
