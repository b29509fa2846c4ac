//! Other loaders beside Forebay in `forebay bench starvation`.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::builder::PossibleValuesParser;
use forebay_benches::contest::{self, CONTENDERS, Request};
use forebay_error::{Doing, Error, ErrorKind};
use indicatif::ProgressBar;
use serde_json::Value;

use super::starvation::{Asked, usage};
use crate::cli::{Done, Failure, Launcher};

/// All of them.
const ALL: &str = "all";

/// Runs of each contender at most.
const ROUNDS_MAX: i64 = 1000;

/// What other loaders are to do.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other loaders")]
pub(super) struct Rivals {
    /// Play the same work through these loaders, too: names, comma-separated, or `all`. Shards must be local files.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = names())]
    rivals: Vec<String>,
    /// Their Python, which needs NumPy [default: the one that Forebay runs in, or python3].
    #[arg(long, value_name = "PYTHON", requires = "rivals")]
    python: Option<PathBuf>,
    /// The Python of one of them, as NAME=PYTHON; may be given again.
    #[arg(long, value_name = "NAME=PYTHON", value_parser = named, requires = "rivals")]
    rival_python: Vec<(String, PathBuf)>,
    /// Runs of each, in turns.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "rivals")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX))]
    rounds: u32,
    /// Seconds of each run, behind its first step.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    #[arg(requires = "rivals")]
    seconds: f64,
    /// What each may use of memory with all that works for it, its page cache included. Only root can say so.
    #[arg(long, value_name = "SIZE", requires = "rivals")]
    memory: Option<ByteSize>,
    /// A folder that keeps what they make of the shards for another time [default: one that is removed].
    #[arg(long, value_name = "FOLDER", requires = "rivals")]
    work: Option<PathBuf>,
}

fn names() -> PossibleValuesParser {
    // Forebay takes part anyway.
    CONTENDERS.into_iter().skip(1).chain([ALL]).into()
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, python)) if CONTENDERS.contains(&name) => Ok((name.to_owned(), python.into())),
        _ => Err(format!("NAME=PYTHON, with a name of {}", CONTENDERS.join(", "))),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (1.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a run takes 1 to 3600 seconds".to_owned()),
    }
}

impl Rivals {
    /// Plays the contest, if one was asked for.
    pub(super) fn play(
        &self,
        (asked, find_rate): (&Asked, bool),
        urls: &[String],
        launcher: &Launcher,
        progress: &ProgressBar,
    ) -> Done<Option<Value>> {
        if self.rivals.is_empty() {
            return Ok(None);
        }
        let python = self.python(launcher);
        let scratch = tempfile::tempdir().doing("make a folder for what rivals make of shards")?;
        let work = self.work.as_deref().unwrap_or(scratch.path());
        std::fs::create_dir_all(work).doing("make the folder of --work")?;
        let others = CONTENDERS.into_iter().filter(|name| {
            *name == CONTENDERS[0] || self.rivals.iter().any(|one| one == name || one == ALL)
        });
        let contenders: Vec<_> = others.map(str::to_owned).collect();
        let mut pythons: std::collections::BTreeMap<_, _> =
            contenders.iter().map(|name| (name.clone(), python.clone())).collect();
        pythons.extend(self.rival_python.iter().cloned());
        let request = Request {
            shards: urls.iter().map(|url| local(url)).collect::<Done<_>>()?,
            images: asked.decode,
            batch_size: asked.batch_size,
            step_seconds: asked.step.as_secs_f64(),
            seconds: self.seconds,
            rounds: self.rounds,
            contenders,
            pythons,
            memory_bytes: self.memory.map(|size| size.as_u64()),
            work: work.canonicalize().doing("find the folder of --work")?,
            find_rate,
        };
        Ok(Some(contest::run(&request, &python, progress)?))
    }

    /// Checks before anything is played.
    pub(super) fn check(&self, urls: &[String]) -> Done {
        match self.rivals.is_empty() {
            true => Ok(()),
            false => urls.iter().try_for_each(|url| local(url).map(drop)),
        }
    }

    fn python(&self, launcher: &Launcher) -> PathBuf {
        // The wheel's command line is started by its interpreter, the program by itself.
        let own = launcher.first().filter(|_| launcher.len() > 1).map(PathBuf::from);
        self.python.clone().or(own).unwrap_or_else(|| "python3".into())
    }
}

/// A shard's path, absolute.
fn local(url: &str) -> Done<PathBuf> {
    let path = url.strip_prefix("file://").unwrap_or(url);
    if path.contains("://") {
        return Err(usage("other loaders read local shards: --rivals takes paths"));
    }
    Path::new(path).canonicalize().doing("find a shard").map_err(|error: Error| {
        let error = error.at("shard", url);
        match error.kind() {
            ErrorKind::NotFound => Failure::Usage(error),
            _ => Failure::Failed(error),
        }
    })
}
