//! `forebay-actor`: the program of further processes of a test.
//!
//! Rule: `forebay-actor daemon …` is the command line that ships, built with the tests, so that no
//! test runs an older binary. `play …` is a trainer that prints its daemon and each batch, so that
//! a test can kill it in between. `node` and `read` are a node or a trainer as described on
//! standard input, until that ends. `once` is a trainer of one epoch.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use forebay_client::{Address, Launch, Next, RuntimeDirectory};
use forebay_error::{Doing, Result};
use forebay_tests::{Epoch, TrainerJob, loader, next, play_once, read_until_eof, serve_until_eof};
use forebay_wire::message::Begin;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let verb = arguments.get(1).and_then(|verb| verb.to_str());
    let ended = match verb {
        Some("play") => play(&arguments[2..]),
        Some("node") => serve_until_eof(),
        Some("read") => read_until_eof(),
        Some("once") => play_once(),
        _ => {
            let program = std::env::current_exe().expect("a process knows its program");
            return forebay_cli::main(arguments, &[program.into_os_string()]);
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Fails only if the parent is gone.
            let _ = writeln!(std::io::stderr(), "forebay-actor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays two epochs of the job on standard input. The arguments are the cache directory and the
/// command that starts a daemon.
fn play(arguments: &[OsString]) -> Result<()> {
    let (directory, command) = arguments.split_first().expect("a cache directory is given");
    let part: TrainerJob = serde_json::from_reader(std::io::stdin()).expect("a part is given");
    let directory = Ok(RuntimeDirectory::of(directory.as_ref()));
    let launch = Launch { command: command.to_vec(), directory };
    let loader = loader(Address::Embedded(launch), part.open)?;
    let mut out = std::io::stdout();
    let pid = loader.stats().daemon_pid.unwrap_or(0);
    writeln!(out, "daemon {pid}").doing("tell of the daemon")?;
    for number in 0..2 {
        loader.start(Begin::at(number, 0))?;
        let mut epoch = Epoch::default();
        while let Next::Batch(batch) = next(&loader)? {
            epoch.take(&batch);
            writeln!(out, "batch {}", batch.index).doing("tell of a batch")?;
        }
        epoch.assert_whole(part.shards, part.samples, &part.sizes);
    }
    writeln!(out, "end").doing("tell of the end")
}
