//! The command line.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon reachable, 4 not allowed; 130 and 143 a
//! benchmark that SIGINT or SIGTERM ended, as shells have it.

mod bench;
mod checkpoint;
mod cluster;
mod completions;
mod config;
mod cost;
mod credentials;
mod daemon;
mod dataset;
mod demo;
mod doctor;
mod explain;
mod fsck;
mod index;
mod job;
mod man;
mod pack;
mod policy;
mod reader;
mod scrub;
mod status;
mod support;
mod tier;
mod top;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use forebay_client::{
    Address, Admin, CAPACITY, Connection, Deadline, Launch, RuntimeDirectory, unexpected,
};
use forebay_error::{Doing, Error, ErrorKind, Problem, Result, is_hidden};
use forebay_shard::Commands;
use forebay_source::Options;
use forebay_wire::message::LeftOut;
use indicatif::ProgressStyle;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Keeps GPUs fed: caches WebDataset shards on local NVMe and streams batches to training jobs.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon reachable, 4 not allowed; of a
/// benchmark also 130 (SIGINT) and 143 (SIGTERM).
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

// Each verb is described at its arguments: a comment here would hide that description.
#[derive(Debug, Subcommand)]
enum Verb {
    Daemon(daemon::Arguments),
    Demo(demo::Arguments),
    #[command(hide = true)]
    Reader(reader::Arguments),
    #[command(hide = true)]
    Credentials(credentials::Arguments),
    Status(status::Arguments),
    Top(top::Arguments),
    Cost(cost::Arguments),
    Pack(pack::Arguments),
    Index(index::Arguments),
    Scrub(scrub::Arguments),
    Fsck(fsck::Arguments),
    Explain(explain::Arguments),
    #[command(subcommand)]
    Job(job::Verb),
    #[command(subcommand)]
    Tier(tier::Verb),
    #[command(subcommand)]
    Dataset(dataset::Verb),
    #[command(subcommand)]
    Cluster(cluster::Verb),
    #[command(subcommand)]
    Checkpoint(checkpoint::Verb),
    #[command(subcommand)]
    Policy(policy::Verb),
    #[command(subcommand)]
    Config(config::Verb),
    Doctor(doctor::Arguments),
    SupportBundle(support::Arguments),
    Completions(completions::Arguments),
    #[command(hide = true)]
    Man(man::Arguments),
    #[command(subcommand)]
    Bench(bench::Verb),
}

/// Failure of a verb, as far as it decides the exit code.
#[derive(Debug)]
enum Failure {
    /// The command line makes no sense.
    Usage(Error),
    /// No daemon answers.
    Unreachable(Error),
    /// A signal ended it, which has an exit code of its own.
    Interrupted(Error, u8),
    /// Anything else.
    Failed(Error),
}

/// Result of a verb.
type Done<T = ()> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Failure {
    /// Returns the failure of a request: the daemon rejected it, or did not answer.
    fn of_request(error: Error) -> Self {
        // An answer of the daemon, such as that a scrub runs already, names no socket.
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Closed if error.place("socket").is_some() => {
                Self::Unreachable(error)
            }
            _ => Self::Failed(error),
        }
    }

    fn error(&self) -> &Error {
        let (Self::Usage(error)
        | Self::Unreachable(error)
        | Self::Interrupted(error, _)
        | Self::Failed(error)) = self;
        error
    }

    fn into_error(self) -> Error {
        let (Self::Usage(error)
        | Self::Unreachable(error)
        | Self::Interrupted(error, _)
        | Self::Failed(error)) = self;
        error
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted(_, code) => *code,
            failure if failure.error().kind() == ErrorKind::PermissionDenied => 4,
            Self::Unreachable(_) => 3,
            Self::Failed(_) => 1,
        }
    }
}

/// Daemon to ask.
#[derive(Debug, Clone, clap::Args)]
struct Target {
    /// The daemon to ask: `embedded`, or `unix:/path/to/forebayd.sock`.
    /// Unset: the node daemon if it answers, else this user's own.
    #[arg(long, env = "FOREBAY_DAEMON", value_name = "ADDRESS", value_parser = address)]
    daemon: Option<String>,
}

/// Output of a verb.
#[derive(Debug, Clone, Copy, clap::Args)]
struct Output {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Prints a document as JSON, or as its text.
    fn print<T: Serialize>(self, document: &T, text: impl FnOnce(&T) -> String) -> Done {
        if self.json {
            return Ok(print_json(document)?);
        }
        match text(document).trim_end() {
            "" => Ok(()),
            text => Ok(print(text)?),
        }
    }
}

/// Arguments of a verb that asks a daemon.
#[derive(Debug, Clone, clap::Args)]
struct Query {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    output: Output,
}

impl Query {
    /// Prints the document at `path`: as the daemon wrote it, or as its text.
    fn show<T: DeserializeOwned>(
        &self,
        admin: &Admin,
        path: &str,
        text: impl FnOnce(&T) -> String,
    ) -> Done {
        self.show_within(ANSWER_TIMEOUT, admin, path, text)
    }

    /// As [`Query::show`], for an answer that may take longer.
    fn show_within<T: DeserializeOwned>(
        &self,
        timeout: Duration,
        admin: &Admin,
        path: &str,
        text: impl FnOnce(&T) -> String,
    ) -> Done {
        let deadline = Deadline::after(timeout);
        if self.output.json {
            let document: Value = admin.get(path, &deadline).map_err(Failure::of_request)?;
            return Ok(print_json(&document)?);
        }
        let document: T = admin.get(path, &deadline).map_err(Failure::of_request)?;
        match text(&document).trim_end() {
            "" => Ok(()),
            text => Ok(print(text)?),
        }
    }
}

/// Arguments of a verb that changes something.
#[derive(Debug, Clone, clap::Args)]
struct Change {
    #[command(flatten)]
    target: Target,
    /// Report what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
}

fn address(text: &str) -> Result<String> {
    Address::check(text).map(|()| text.to_owned())
}

/// The command that runs this very program, without arguments.
type Launcher = [OsString];

/// A daemon that has to be started has this long to answer a tool.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// One that runs answers from memory; if it needs longer than this it hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Heads of a million shards are read within this time, where it is not known which of them are
/// meant.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(120);

impl Target {
    fn address(&self, launcher: &Launcher) -> Result<Address> {
        let embedded = ["daemon", "--embedded"].map(OsString::from);
        let command = launcher.iter().cloned().chain(embedded).collect();
        let directory = RuntimeDirectory::of_this_user();
        Address::parse(self.daemon.as_deref(), Launch { command, directory })
    }

    /// Connects, starting this user's own daemon if need be.
    fn connect(&self, launcher: &Launcher) -> Done<Connection> {
        let address = self.address(launcher)?;
        let connected = address.connect(&Deadline::after(CONNECT_TIMEOUT));
        let connection = connected.map_err(|error| match error.place(CAPACITY) {
            Some(_) => Failure::Usage(error),
            None => Failure::Unreachable(error),
        })?;
        for notice in &connection.notices {
            // Nothing is left to tell it to if standard error is gone.
            let _ = writeln!(std::io::stderr(), "forebay: {notice}");
        }
        Ok(connection)
    }

    /// Returns the admin client of a daemon, which is started if needed.
    fn admin(&self, launcher: &Launcher) -> Done<Admin> {
        Ok(Admin::of(self.connect(launcher)?)?)
    }

    /// Returns the admin client of a running daemon.
    fn admin_if_running(&self) -> Done<Admin> {
        let open = |path: &Path| Connection::open(path, &Deadline::after(ANSWER_TIMEOUT));
        let opened = match self.address(&[])? {
            Address::Unix(path) => open(&path),
            Address::Embedded(launch) => open(&launch.directory?.socket()),
            // A node's daemon that hangs or rejects this user is the answer, unless the user has
            // another one.
            Address::Auto { node, own } => open(&node).or_else(|node| {
                open(&own.directory?.socket()).map_err(|own| {
                    let only_node =
                        own.kind() == ErrorKind::NotFound && node.kind() != ErrorKind::NotFound;
                    if only_node { node } else { own }
                })
            }),
        };
        let opened = opened.map_err(|error| match (error.advice(), error.kind()) {
            (Some(_), _) | (None, ErrorKind::PermissionDenied) => error,
            (None, _) => {
                error.advise("start a training job, which starts a daemon, or run `forebay daemon`")
            }
        });
        Ok(Admin::of(opened.map_err(Failure::Unreachable)?)?)
    }
}

/// A name as one part of a path.
fn path_part(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// Runs the command line; `launcher` is the command that starts it, to which arguments are added.
pub fn main(arguments: impl IntoIterator<Item = OsString>, launcher: &Launcher) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    // A program that reads answers as JSON reads errors so, too.
    let in_json = arguments.iter().any(|argument| argument == "--json");
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to standard output with code 0, mistakes to standard error with code 2.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let done = match arguments.verb {
        Verb::Daemon(arguments) => daemon::run(&arguments, launcher),
        Verb::Demo(arguments) => demo::run(&arguments, launcher),
        Verb::Reader(arguments) => reader::run(&arguments),
        Verb::Credentials(arguments) => credentials::run(&arguments),
        Verb::Status(arguments) => status::run(&arguments),
        Verb::Top(arguments) => top::run(&arguments),
        Verb::Cost(arguments) => cost::run(&arguments),
        Verb::Pack(arguments) => pack::run(&arguments),
        Verb::Index(arguments) => index::run(&arguments, launcher),
        Verb::Scrub(arguments) => scrub::run(&arguments, launcher),
        Verb::Fsck(arguments) => fsck::run(&arguments),
        Verb::Explain(arguments) => explain::run(&arguments),
        Verb::Job(verb) => job::run(&verb),
        Verb::Tier(verb) => tier::run(&verb),
        Verb::Dataset(verb) => dataset::run(&verb, launcher),
        Verb::Cluster(verb) => cluster::run(&verb),
        Verb::Checkpoint(verb) => checkpoint::run(&verb, launcher),
        Verb::Policy(verb) => policy::run(&verb),
        Verb::Config(verb) => config::run(&verb),
        Verb::Doctor(arguments) => doctor::run(&arguments, launcher),
        Verb::SupportBundle(arguments) => support::run(&arguments, launcher),
        Verb::Completions(arguments) => completions::run(&arguments),
        Verb::Man(arguments) => man::run(&arguments),
        Verb::Bench(verb) => bench::run(&verb, launcher),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let error = failure.error();
            let told = match in_json {
                true => json_text(&Problem::from(error)),
                false => format!("forebay: {}: {error}", error.kind().name()),
            };
            // Nothing is left to tell it to if standard error is gone.
            let _ = writeln!(std::io::stderr(), "{told}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// A bucket of a hundred million objects is listed within this time.
const LIST_TIMEOUT: Duration = Duration::from_secs(3600);

/// Shards that a command line names, and the keys that its globs match besides.
#[derive(Debug, Default)]
struct Named {
    urls: Vec<String>,
    left_out: LeftOut,
}

/// The shards a command line names: every argument may hold braces, globs and `::`. What remote
/// globs mean, the daemon lists, started if need be. Warns of keys that are left out.
fn shards(
    arguments: &[String],
    commands: Commands,
    target: &Target,
    launcher: &Launcher,
) -> Done<Named> {
    let mut urls = Vec::new();
    let mut left_out = LeftOut::default();
    let mut unreachable = false;
    let mut list = |pattern: &str| {
        let connection = target.connect(launcher).map_err(|failure| {
            unreachable = matches!(failure, Failure::Unreachable(_));
            failure.error().clone()
        })?;
        let origin = Options::from_env().into_map();
        let (urls, more) = connection.list(pattern, origin, &Deadline::after(LIST_TIMEOUT))?;
        left_out.add(more);
        Ok(urls)
    };
    for argument in arguments {
        let expanded = forebay_shard::expand(argument, commands, &mut list);
        urls.extend(match expanded {
            Ok(expanded) => expanded,
            Err(error) if unreachable => return Err(Failure::Unreachable(error)),
            Err(error) if error.kind() == ErrorKind::Invalid => return Err(Failure::Usage(error)),
            // A glob that matches nothing, a folder that may not be read.
            Err(error) => return Err(Failure::Failed(error)),
        });
    }
    if !left_out.is_empty() {
        // Nothing is left to warn if standard error is gone.
        let _ = writeln!(std::io::stderr(), "forebay: warning: {left_out}");
    }
    Ok(Named { urls, left_out })
}

/// A document, with the keys that the command's globs left out, if any.
#[derive(Serialize)]
struct WithLeftOut<'a, T> {
    #[serde(flatten)]
    document: &'a T,
    #[serde(skip_serializing_if = "LeftOut::is_empty")]
    left_out: &'a LeftOut,
}

/// Writes to standard output; a reader that left (`| head`) is no error of ours to report.
fn print(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.doing("write to standard output"),
    }
}

/// Prints a document.
fn print_json(document: &impl Serialize) -> Result<()> {
    print(&json_text(document))
}

/// Returns a document as JSON in which characters that are not seen are escaped.
fn json_text(document: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(document).expect("numbers and strings always encode");
    // They stand in strings only, apart from the line ends between values.
    let is_escaped = |c: char| c != '\n' && is_hidden(c);
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        match is_escaped(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }),
            false => escaped.push(c),
        }
        escaped
    })
}

/// Cores of this machine: the threads of work that only computes. One is assumed where the system
/// does not report them.
fn cores() -> NonZero<usize> {
    std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

/// Returns the style of a progress bar.
///
/// # Panics
/// If the template, which is a constant, is invalid.
fn bar_style(template: &'static str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a constant, valid template")
}
