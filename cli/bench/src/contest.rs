//! Other loaders on the same work: runs the Python scripts of `cli/bench/contest`, which this
//! program carries.
//!
//! One document goes in, one comes out, and what the scripts say meanwhile is shown as it comes.

mod table;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use forebay_error::{Doing, Error, ErrorKind, Result};
use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::interrupt;
pub use table::table;
pub(crate) use table::{
    NO_ROUND, cpu_ms_per_sample, fed, fence, first_epoch, is_not_borne_out, level, played_as,
    spread, without, work,
};

/// Contenders known to the scripts, Forebay among them.
pub const CONTENDERS: [&str; 9] =
    ["forebay", "webdataset", "torch", "mosaic", "litdata", "datasets", "lancedb", "spdl", "dali"];

/// Last lines of a failed run to report: more than a Python traceback's innermost frames.
const LAST_LINES: usize = 12;

/// Time for the scripts' processes to end before they are killed: daemons and their folders take
/// seconds.
const END_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// File with the figures so far, in the work folder, during a contest.
pub const KEPT: &str = "contest.json";

macro_rules! scripts {
    ($($name:literal),* $(,)?) => {
        &[
            $((concat!($name, ".py"), include_str!(concat!("../contest/", $name, ".py")))),*
        ]
    };
}

/// The scripts: file names, and what is in them.
const SCRIPTS: &[(&str, &str)] = scripts!(
    "accelerator",
    "contender",
    "contest",
    "conversions",
    "daemons",
    "fence",
    "handover",
    "main",
    "model",
    "pixels",
    "place",
    "players",
    "processes",
    "request",
    "roster",
    "search",
    "shards",
    "through_dali",
    "through_datasets",
    "through_forebay",
    "through_lancedb",
    "through_litdata",
    "through_mosaic",
    "through_spdl",
    "through_torch",
    "through_webdataset",
    "throughput",
    "to_dali",
    "to_datasets",
    "to_files",
    "to_forebay",
    "to_lancedb",
    "to_litdata",
    "to_mosaic",
    "torch_pixels",
    "torch_workers",
    "touch",
);

/// Request to the contest.
#[derive(Debug, Clone, Serialize)]
pub struct Request {
    /// Local tars, by absolute path.
    pub shards: Vec<PathBuf>,
    /// True if samples become images; otherwise they stay bytes.
    pub images: bool,
    /// Samples per step.
    pub batch_size: u32,
    /// Nominal seconds of one step.
    pub step_seconds: f64,
    /// Seconds of one measured run.
    pub seconds: f64,
    /// Runs of each contender, in turns.
    pub rounds: u32,
    /// A subset of [`CONTENDERS`].
    pub contenders: Vec<String>,
    /// The interpreter of each contender.
    pub pythons: BTreeMap<String, PathBuf>,
    /// Memory limit of each contender and all its workers, its page cache included.
    pub memory_bytes: Option<u64>,
    /// Folder for conversions and caches.
    pub work: PathBuf,
    /// True to search for the fastest accelerator that is still fed.
    pub find_rate: bool,
    /// The AU_ideal at which an accelerator counts as fed.
    pub au_min: f64,
    /// A model of torchvision's that a GPU trains, in place of an emulated accelerator.
    pub model: Option<String>,
    /// Cores that a contender may use: of a quota, fewer than the CPUs that it may run on.
    pub cores: usize,
    /// The program `forebay` that starts and ends daemons and counts samples.
    pub forebay: PathBuf,
}

/// A line of theirs that tells how far they are.
#[derive(Deserialize)]
struct Told {
    progress: Progress,
}

#[derive(Deserialize)]
struct Progress {
    contender: String,
    round: u32,
    of: u32,
    what: String,
    /// Rate of a run that has ended.
    samples_per_second: Option<f64>,
    au_ideal: Option<f64>,
}

/// A contest that was played, to its end or not.
#[derive(Debug)]
pub struct Contest {
    /// Resulting document.
    pub document: Value,
    /// Error that ended it early, if any.
    pub ended_by: Option<Error>,
}

/// Runs the contest with the scripts' own interpreter `python`.
///
/// # Errors
/// `NotFound` if there is no such interpreter, `Invalid` for a request that the scripts refuse,
/// else why they failed before there was anything to tell.
pub fn run(request: &Request, python: &Path, progress: &ProgressBar) -> Result<Contest> {
    let folder = tempfile::tempdir().doing("make a folder for the contest's scripts")?;
    for (name, text) in SCRIPTS {
        fs::write(folder.path().join(name), text).doing("write the contest's scripts")?;
    }
    let mut command = Command::new(python);
    command.arg(folder.path().join("main.py")).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // A Ctrl-C is for this process, which ends the scripts as they can be ended; their loaders
    // would fail one by one of it.
    command.process_group(0);
    let started = command.spawn().doing("start the contest's scripts");
    let mut child = started.map_err(|error| {
        error
            .at("python", python.display())
            .advise("name an interpreter that has NumPy: --python PATH")
    })?;
    let ending = ended_by_signal(&child);
    let ended = thread::scope(|scope| {
        let ended = ending.and_then(|ending| {
            scope.spawn(ending);
            converse(&mut child, request, progress)
        });
        if ended.is_err() {
            // It may have ended by itself; what matters is that it is waited for.
            let _ = child.kill();
        }
        ended
    });
    let status = child.wait().doing("wait for the contest's scripts")?;
    let interrupted = interrupt::check().err();
    let (document, last) = match (ended, &interrupted) {
        (Err(_), Some(by)) => return Err(by.clone()),
        (ended, _) => ended?,
    };
    let told = serde_json::from_str(&document).doing("parse the output of the contest's scripts");
    if status.success() {
        return told.map(|document| Contest { document, ended_by: None });
    }
    if let Some(by) = interrupted {
        return told.map(|document| Contest { document, ended_by: Some(by.clone()) }).or(Err(by));
    }
    let kind = if status.code() == Some(2) { ErrorKind::Invalid } else { ErrorKind::Unavailable };
    let last: Vec<_> = last.into();
    let error = Error::new(kind, "the contest with other loaders failed")
        .at("status", status)
        .at("said", last.join(" | "));
    match told {
        // Figures until then are reported all the same.
        Ok(document) => Ok(Contest { document, ended_by: Some(error) }),
        Err(_) => Err(error),
    }
}

/// Checks that a contest tells something: that anybody took part, of other loaders if there should
/// be `rivals`.
///
/// # Errors
/// `Unavailable`, with why each was absent.
pub fn check_took_part(document: &Value, rivals: bool) -> Result<()> {
    let of = |what: &str| document[what].as_array().cloned().unwrap_or_default();
    let text = |one: &Value, what: &str| one[what].as_str().unwrap_or_default().to_owned();
    // Forebay takes part once for each level of storage.
    let is_rival = |one: &Value| !text(one, "name").starts_with(CONTENDERS[0]);
    if of("contenders").iter().any(|one| !rivals || is_rival(one)) {
        return Ok(());
    }
    let who = if rivals { "no other loader could take part" } else { "no loader could take part" };
    let error = Error::new(ErrorKind::Unavailable, who);
    let out = [of("absent"), of("failed")].concat();
    let told = out.iter().fold(error, |error, one| error.at(&text(one, "name"), text(one, "why")));
    Err(told.advise(
        "install the missing package, and name its interpreter: --rival-python NAME=PYTHON",
    ))
}

/// Hands the request in; what came out, and the last lines beside it.
fn converse(
    child: &mut Child,
    request: &Request,
    progress: &ProgressBar,
) -> Result<(String, VecDeque<String>)> {
    let request = serde_json::to_string(request).doing("write the contest's request")?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(mut stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(Error::new(ErrorKind::Closed, "the contest's scripts have no pipes"));
    };
    thread::scope(|scope| {
        let listener = scope.spawn(|| listen(BufReader::new(stderr), progress));
        // Scripts that end before they read say why on their standard error.
        let _ = stdin.write_all(request.as_bytes());
        drop(stdin);
        let mut document = String::new();
        stdout.read_to_string(&mut document).doing("read the output of the contest's scripts")?;
        let last = listener.join().unwrap_or_default();
        Ok((document, last))
    })
}

/// Waits until a child has ended, which it asks for when a signal ends the benchmark: then nothing
/// that it started is left.
fn ended_by_signal(child: &Child) -> Result<impl FnOnce() + Send + use<>> {
    let pid = Pid::from_child(child);
    let process = pidfd_open(pid, PidfdFlags::empty()).doing("watch the contest's scripts")?;
    Ok(move || {
        let Some(line) = interrupt::line() else { return };
        let mut watched = [PollFd::new(&process, PollFlags::IN), PollFd::new(line, PollFlags::IN)];
        until_any(&mut watched, None);
        if !watched[0].revents().is_empty() {
            return;
        }
        // It is not waited for before this is over, so its number is nobody else's.
        let _ = kill_process(pid, Signal::TERM);
        until_any(&mut [PollFd::new(&process, PollFlags::IN)], Some(&END_TIMEOUT));
        let _ = kill_process_group(pid, Signal::KILL);
    })
}

/// Waits for an event, or until the time is over.
fn until_any(watched: &mut [PollFd<'_>], limit: Option<&Timespec>) {
    while poll(watched, limit) == Err(rustix::io::Errno::INTR) {}
}

/// Shows what scripts say, line by line; the last lines that are no progress.
fn listen(lines: impl BufRead, progress: &ProgressBar) -> VecDeque<String> {
    let mut last = VecDeque::new();
    for line in lines.split(b'\n').map_while(std::result::Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        if let Ok(Told { progress: now }) = serde_json::from_str(&line) {
            let Progress { contender, round, of, what, samples_per_second, au_ideal } = now;
            let now = match of {
                0 => format!("{contender}: {what}"),
                _ => format!("{contender}: {what}, {round} of {of}"),
            };
            if let (Some(rate), Some(au)) = (samples_per_second, au_ideal) {
                // A contest takes an hour: one that is cut off has told what it had measured.
                say(progress, &format!("{now}: {rate:.0} samples/s, AU_ideal {:.1} %", au * 100.0));
            } else if progress.is_hidden() {
                // A log has no bar, and half an hour without a word looks like a hang.
                say(progress, &now);
            }
            progress.set_message(now);
            continue;
        }
        say(progress, &line);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    last
}

/// Says a line beside the progress, which may be hidden.
fn say(progress: &ProgressBar, line: &str) {
    // Nobody may be listening.
    progress.suspend(|| drop(writeln!(std::io::stderr(), "{line}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that is missing here fails only on the user's machine.
    #[test]
    fn every_contest_script_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("contest");
        let mut there: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".py"))
            .collect();
        there.sort();
        let carried: Vec<_> = SCRIPTS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(carried, there);
    }

    #[test]
    fn contest_without_rivals_is_an_error() {
        let document = |names: &[&str]| {
            let of = |name: &&str| serde_json::json!({ "name": name });
            serde_json::json!({
                "contenders": names.iter().map(of).collect::<Vec<_>>(),
                "absent": [{ "name": "dali", "why": "is not installed" }],
            })
        };
        assert!(check_took_part(&document(&["forebay", "torch"]), true).is_ok());
        assert!(check_took_part(&document(&["forebay"]), false).is_ok());
        assert!(check_took_part(&document(&[]), false).is_err());
        for alone in [&["forebay", "forebay-memory"][..], &[]] {
            let error = check_took_part(&document(alone), true).unwrap_err().to_string();
            assert!(error.contains("dali") && error.contains("is not installed"), "{error}");
        }
    }

    #[test]
    fn progress_lines_are_shown_and_others_returned() {
        let lines = "{\"progress\": {\"contender\": \"x\", \"round\": 1, \"of\": 5, \"what\": \"measuring\"}}\nTraceback\n";
        let bar = ProgressBar::hidden();
        assert_eq!(listen(lines.as_bytes(), &bar), ["Traceback"]);
        assert_eq!(bar.message(), "x: measuring, 1 of 5");
    }
}
