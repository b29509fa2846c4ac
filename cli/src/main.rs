//! `forebay`: the command line, and the node daemon as `forebay daemon`, or under the name
//! `forebayd`.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Another name of this program, as packages link it.
const DAEMON: &str = "forebayd";

fn main() -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|_| "forebay".into());
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().and_then(|name| Path::new(name).file_name());
    if name == Some(OsStr::new(DAEMON)) {
        arguments.insert(1, "daemon".into());
    }
    forebay_cli::main(arguments, &[program.into_os_string()])
}
