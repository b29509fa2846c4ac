//! `forebay support-bundle`.
//!
//! The reason a part is missing stands in its place; a missing part does not stop the others.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use forebay_api::status::Status;
use forebay_client::{Admin, Deadline, LOG_MAX, NODE_SOCKET, RuntimeDirectory};
use forebay_config::Config;
use forebay_config::embedded;
use forebay_error::{Doing, Error, ErrorKind, Result, redacted};
use serde_json::{Value, json};

use super::daemon::CONFIG;
use super::{ANSWER_TIMEOUT, Change, Done, Failure, Launcher, config, doctor, print, print_json};

/// Requests to a running daemon, and the names of their files.
const ASKED: [(&str, &str); 7] = [
    ("status.json", "/api/v1/status"),
    ("datasets.json", "/api/v1/datasets"),
    ("jobs.json", "/api/v1/jobs"),
    ("warm-ups.json", "/api/v1/warm-ups"),
    ("scrubs.json", "/api/v1/scrubs"),
    ("costs.json", "/api/v1/costs"),
    ("ready.json", "/readyz"),
];

/// Command for the log of the node daemon's unit, as docs/OPERATING.md names it: that many lines
/// are days of a healthy daemon, and the last hours of a failing one.
const JOURNAL: [&str; 7] =
    ["--unit", "forebayd", "--lines", "5000", "--output", "short-iso", "--no-pager"];

/// A journal on a disk that hangs keeps nothing of the others from being packed.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The kernel's facts about the machine.
const MACHINE: [(&str, &str); 4] = [
    ("machine/version", "/proc/version"),
    ("machine/meminfo", "/proc/meminfo"),
    ("machine/mounts", "/proc/self/mountinfo"),
    ("machine/pressure-io", "/proc/pressure/io"),
];

/// Pack diagnostics of the daemon and this machine into one file for support.
///
/// It holds the daemon's state, metrics and costs, the configuration (`forebay config show`), its
/// differences from the one in force (`forebay config diff`), the findings of `forebay doctor`, the
/// last lines of the node daemon's log (the journal of forebayd) and of an embedded daemon's, and
/// the kernel's view of memory and mounts. It names data sets, jobs and paths. Passwords, tokens,
/// secret parts of URLs and the audit log are left out. Read it before you send it: `tar xf FILE`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The file to write. Unset: forebay-support-SECONDS.tar here.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The node daemon's configuration. Unset: the file that the running daemon uses, else
    /// /etc/forebay/forebay.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    change: Change,
}

/// One file of the bundle.
struct Piece {
    name: &'static str,
    content: Result<Vec<u8>>,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let pieces = collect(arguments, launcher);
    let path = match (&arguments.output, arguments.change.dry_run) {
        (_, true) => None,
        (Some(path), _) => Some(path.clone()),
        (None, _) => Some(format!("forebay-support-{}.tar", now()).into()),
    };
    if let Some(path) = &path {
        pack(path, &pieces)?;
    }
    if arguments.change.output.json {
        let told = |piece: &Piece| match &piece.content {
            Ok(content) => json!({ "name": piece.name, "bytes": content.len() }),
            Err(error) => json!({ "name": piece.name, "missing": error.to_string() }),
        };
        let files: Vec<_> = pieces.iter().map(told).collect();
        return Ok(print_json(&json!({ "file": path, "files": files }))?);
    }
    for Piece { name, content } in &pieces {
        match content {
            Ok(content) => print(&format!("{name}  {} bytes", content.len()))?,
            Err(error) => print(&format!("{name}  missing: {error}"))?,
        }
    }
    match path {
        Some(path) => Ok(print(&format!("{} is packed", path.display()))?),
        None => Ok(()),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn collect(arguments: &Arguments, launcher: &Launcher) -> Vec<Piece> {
    let about = json!({ "release": env!("CARGO_PKG_VERSION"), "made_at": now() });
    let mut pieces = vec![Piece { name: "about.json", content: Ok(written(&about)) }];
    let admin = arguments.change.target.admin_if_running();
    for (name, path) in ASKED {
        let asked = match &admin {
            Ok(admin) => ask(admin, path),
            Err(failure) => Err(failure.error().clone()),
        };
        pieces.push(Piece { name, content: asked.map(|answer| written(&answer)) });
    }
    let of_admin = |of: &dyn Fn(&Admin) -> Result<String>| match &admin {
        Ok(admin) => of(admin).map(String::into_bytes),
        Err(failure) => Err(failure.error().clone()),
    };
    let metrics = of_admin(&|admin| admin.text("/metrics", &Deadline::after(ANSWER_TIMEOUT)));
    pieces.push(Piece { name: "metrics.txt", content: metrics });
    let differs =
        of_admin(&|_| config::differences(&arguments.change.target).map_err(Failure::into_error));
    pieces.push(Piece { name: "config-diff.txt", content: differs });
    let config = match (&arguments.config, &admin) {
        (Some(named), _) => named.clone(),
        (None, Ok(admin)) => file_of(admin).unwrap_or_else(|| CONFIG.into()),
        (None, Err(_)) => CONFIG.into(),
    };
    let shown = Config::read(&config).map(|config| {
        forebay_config::text(&forebay_config::document(
            &config,
            NODE_SOCKET,
            embedded::memory() as u64,
        ))
        .into_bytes()
    });
    pieces.push(Piece { name: "config.toml", content: shown });
    let file = Some(&config).filter(|path| path.exists()).map(PathBuf::as_path);
    let found = doctor::report(file, launcher);
    pieces.push(Piece { name: "doctor.txt", content: found.map(String::into_bytes) });
    pieces.push(Piece { name: "node-daemon.log", content: journal() });
    let log = RuntimeDirectory::of_this_user().and_then(|directory| end_of(&directory.log()));
    pieces.push(Piece { name: "private-daemon.log", content: log });
    pieces.extend(MACHINE.map(|(name, path)| Piece { name, content: end_of(Path::new(path)) }));
    for piece in &mut pieces {
        // Each part leaves secrets out; this catches what comes from elsewhere: mounts, old logs.
        if let Ok(content) = &mut piece.content {
            *content = redacted(&String::from_utf8_lossy(content)).into_owned().into_bytes();
        }
    }
    pieces
}

/// Returns the configuration file of a running daemon; none for an embedded one.
fn file_of(admin: &Admin) -> Option<PathBuf> {
    let status: Status = admin.get("/api/v1/status", &Deadline::after(ANSWER_TIMEOUT)).ok()?;
    status.configuration.map(|configuration| configuration.file)
}

fn ask(admin: &Admin, path: &str) -> Result<Value> {
    admin.get(path, &Deadline::after(ANSWER_TIMEOUT))
}

fn written(document: &Value) -> Vec<u8> {
    format!("{document:#}\n").into_bytes()
}

/// Returns the daemon's log from the journal, as much as a log may have.
fn journal() -> Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let said = runtime.doing("start an async runtime")?.block_on(async {
        let mut journal = tokio::process::Command::new("journalctl");
        journal.args(JOURNAL).stdin(Stdio::null()).kill_on_drop(true);
        tokio::time::timeout(JOURNAL_TIMEOUT, journal.output()).await
    });
    let silent = |_| Error::new(ErrorKind::Unavailable, "journalctl does not answer");
    let said = said.map_err(silent)?.doing("run journalctl")?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        return Err(Error::new(ErrorKind::Unavailable, format!("journalctl failed: {why}")));
    }
    let mut lines = said.stdout;
    let past = lines.len().saturating_sub(usize::try_from(LOG_MAX).unwrap_or(usize::MAX));
    Ok(lines.split_off(past))
}

/// The end of a file, as much as a log may have.
fn end_of(path: &Path) -> Result<Vec<u8>> {
    let read = || {
        let mut file = std::fs::File::open(path)?;
        let len = file.metadata()?.len();
        if len > LOG_MAX {
            file.seek(SeekFrom::Start(len - LOG_MAX))?;
        }
        let mut content = Vec::new();
        file.take(LOG_MAX).read_to_end(&mut content)?;
        Ok::<_, std::io::Error>(content)
    };
    read().doing("read a file").map_err(|error| error.at("path", path.display()))
}

fn pack(path: &Path, pieces: &[Piece]) -> Result<()> {
    let at = |error: Error| error.at("file", path.display());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.doing("make the bundle").map_err(|error| match error.kind() {
        ErrorKind::Invalid => at(error).advise("name a file that does not exist yet"),
        _ => at(error),
    })?;
    let mut bundle = tar::Builder::new(file);
    for Piece { name, content } in pieces {
        let missing;
        let (name, content) = match content {
            Ok(content) => ((*name).to_owned(), content.as_slice()),
            Err(error) => {
                missing = format!("{error}\n");
                (format!("{name}.missing"), missing.as_bytes())
            }
        };
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now());
        let name = format!("forebay-support/{name}");
        bundle.append_data(&mut header, name, content).doing("write the bundle").map_err(at)?;
    }
    bundle.finish().doing("write the bundle").map_err(at)
}
