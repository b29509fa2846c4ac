//! The command line.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon reachable, 4 not allowed.

mod bench;
mod daemon;
mod index;
mod pack;
mod status;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use forebay_client::{Address, Connection, Launch, RuntimeDirectory};
use forebay_error::{Doing, Error, ErrorKind, Result};

/// Keeps GPUs fed: caches WebDataset shards on local NVMe and streams batches to training jobs.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 100)]
struct Arguments {
    /// The daemon to talk to: `embedded`, or `unix:/path/to/forebayd.sock`.
    /// Unset: the node daemon if it answers, else this user's own, started if need be.
    #[arg(long, global = true, env = "FOREBAY_DAEMON", value_name = "ADDRESS")]
    daemon: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon in the foreground.
    Daemon(daemon::Arguments),
    /// Show the daemon's state on one screen.
    Status(status::Arguments),
    /// Make shards from a folder of files.
    Pack(pack::Arguments),
    /// Count the samples of shards and write a manifest.
    Index(index::Arguments),
    /// Measure how long an accelerator would starve, and why.
    #[command(subcommand)]
    Bench(bench::Verb),
}

/// How verbs reach a daemon.
#[derive(Debug)]
struct Reach {
    address: Option<String>,
    launcher: Vec<OsString>,
}

/// A daemon that has to be started has this long to answer a tool.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

impl Reach {
    /// The address asked for; `launcher` is what starts this very program again.
    fn address(&self) -> Result<Address> {
        let mut command = self.launcher.clone();
        command.extend(["daemon", "--embedded"].map(OsString::from));
        let directory = RuntimeDirectory::of_this_user()?;
        Address::parse(self.address.as_deref(), Launch { command, directory })
    }

    fn connect(&self) -> Result<Connection> {
        self.address()?.connect(Instant::now() + CONNECT_TIMEOUT)
    }

    /// Connects without starting anything.
    fn connect_if_running(&self) -> Result<Connection> {
        match self.address()? {
            Address::Unix(path) => Connection::open(&path),
            Address::Embedded(launch) => Connection::open(&launch.directory.socket()),
            Address::Auto(launch) => Connection::open(forebay_client::NODE_SOCKET.as_ref())
                .or_else(|_| Connection::open(&launch.directory.socket())),
        }
    }
}

/// Runs the command line; `launcher` is the command that starts it, to which arguments are added.
pub fn main(arguments: impl IntoIterator<Item = OsString>, launcher: &[OsString]) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to standard output with code 0, mistakes to standard error with code 2.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let reach = Reach { address: arguments.daemon, launcher: launcher.to_vec() };
    let done = match arguments.verb {
        Verb::Daemon(arguments) => daemon::run(&arguments),
        Verb::Status(arguments) => status::run(&arguments, &reach),
        Verb::Pack(arguments) => pack::run(&arguments),
        Verb::Index(arguments) => index::run(&arguments, &reach),
        Verb::Bench(verb) => bench::run(&verb, &reach),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to tell it to if standard error is gone.
            let _ = writeln!(std::io::stderr(), "forebay: {}: {error}", error.kind().name());
            ExitCode::from(match error.kind() {
                ErrorKind::PermissionDenied => 4,
                _ if error.place("socket").is_some() => 3,
                _ => 1,
            })
        }
    }
}

/// The shards a command line names: every argument may hold braces, globs and `::`.
fn shards(arguments: &[String]) -> Result<Vec<String>> {
    let mut urls = Vec::new();
    for argument in arguments {
        urls.extend(forebay_shard::expand(argument)?);
    }
    Ok(urls)
}

/// Writes to standard output; a reader that left (`| head`) is no error of ours to report.
fn print(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.doing("write to standard output"),
    }
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Invalid, "the daemon answered something else")
}
