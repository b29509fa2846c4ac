//! Other loaders beside Forebay in `forebay bench starvation`.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::builder::PossibleValuesParser;
use forebay_bench::contest::{self, CONTENDERS, Contest, Request};
use forebay_bench::starvation::Contested;
use forebay_error::{Doing, Error, ErrorKind, Result};
use indicatif::ProgressBar;

use super::loading::cores;
use super::starvation::{Asked, usage};
use crate::{Done, Failure, Launcher};

/// First bytes of compressed shards, which Forebay unpacks: gzip and zstd.
const COMPRESSED: [&[u8]; 2] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd"];

/// So many bytes tell.
const MAGIC: u64 = 4;

/// All of them.
const ALL: &str = "all";

/// The script that is this program where an interpreter runs it.
const NAME: &str = "forebay";

/// Runs of each contender at most.
const ROUNDS_MAX: i64 = 1000;

/// Options of the comparison with other loaders.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other loaders, and real models")]
#[command(group(clap::ArgGroup::new("contest").args(["rivals", "model"]).multiple(true)))]
pub(super) struct Rivals {
    /// Play the same work through these loaders, too: names, comma-separated, or `all`. Shards must
    /// be local, uncompressed tars. Forebay plays at its defaults there, so --threads, --prefetch,
    /// --window, --steps, --manifest, --accelerators and --checkpoint-every are rejected.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = names())]
    rivals: Vec<String>,
    /// Train this torchvision model, such as resnet50, on this node's GPU, in place of an emulated
    /// accelerator. AU_ideal compares with a step whose batch is on the GPU already.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["find_most", "raw"])]
    model: Option<String>,
    /// Python of the other loaders; it needs NumPy [default: Forebay's own, or python3].
    #[arg(long, value_name = "PYTHON", requires = "contest")]
    python: Option<PathBuf>,
    /// Python of one loader, as NAME=PYTHON; may be given again.
    #[arg(long, value_name = "NAME=PYTHON", value_parser = named, requires = "rivals")]
    rival_python: Vec<(String, PathBuf)>,
    /// Runs of each loader, in turns.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "contest")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX))]
    rounds: u32,
    /// Seconds of each run, 1 to 3600, after the steps that warm up.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    #[arg(requires = "contest")]
    seconds: f64,
    /// Memory limit of each loader and all its workers, its page cache included. Needs root.
    #[arg(long, value_name = "SIZE", requires = "contest")]
    memory: Option<ByteSize>,
    /// Folder on a disk for the loaders' own formats of the shards, Forebay's cache and
    /// contest.json, which another run uses again [default: a temporary one, which is removed].
    #[arg(long, value_name = "FOLDER", requires = "contest")]
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
        asked: &Asked,
        urls: &[String],
        launcher: &Launcher,
        progress: &ProgressBar,
    ) -> Done<Option<Contest>> {
        if !self.is_asked_for() {
            return Ok(None);
        }
        let python = self.python(launcher);
        let scratch = tempfile::tempdir().doing("make a folder for rivals' conversions")?;
        let work = self.work.as_deref().unwrap_or(scratch.path());
        std::fs::create_dir_all(work).doing("make the folder of --work")?;
        let others = CONTENDERS.into_iter().filter(|name| self.takes_part(name));
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
            find_rate: asked.find_most,
            au_min: asked.target_au,
            forebay: command(launcher, scratch.path())?,
            model: self.model.clone(),
            cores: cores(),
        };
        if let Some(work) = &self.work {
            let kept = work.join(contest::KEPT);
            // A closed standard error is ignored.
            progress.suspend(|| {
                let _ = writeln!(
                    std::io::stderr(),
                    "contest: the figures so far are in {}",
                    kept.display()
                );
            });
        }
        Ok(Some(contest::run(&request, &python, progress)?))
    }

    /// Returns the request to a contest, for comparisons of runs.
    pub(super) fn asked(&self) -> Option<Contested> {
        let others = CONTENDERS.into_iter().skip(1).filter(|name| self.takes_part(name));
        self.is_asked_for().then(|| Contested {
            rivals: others.map(str::to_owned).collect(),
            model: self.model.clone(),
            rounds: self.rounds,
            seconds: self.seconds,
            memory_bytes: self.memory.map(|size| size.as_u64()),
        })
    }

    /// Checks before anything is played.
    pub(super) fn check(&self, urls: &[String], asked: &Asked) -> Done {
        if !self.is_asked_for() {
            return Ok(());
        }
        if self.model.is_some() && !asked.decode {
            return Err(usage("a model trains on images: name a profile with images"));
        }
        if asked.step.is_zero() {
            return Err(usage("--rivals needs steps that take time: set --step above 0"));
        }
        for (name, _) in &self.rival_python {
            if !self.takes_part(name) {
                return Err(usage(&format!(
                    "--rival-python names {name}, which --rivals does not"
                )));
            }
        }
        urls.iter().try_for_each(|url| plain(&local(url)?))
    }

    /// Checks that nothing was `set` that the contest would not heed.
    pub(super) fn refuse(&self, set: &[(&str, bool)]) -> Done {
        match set.iter().find(|(_, is_set)| *is_set && self.is_asked_for()) {
            None => Ok(()),
            Some((flag, _)) => Err(usage(&format!(
                "{flag} conflicts with --rivals and --model: there Forebay runs at its defaults, every other loader at its best, with one accelerator and whole runs each"
            ))),
        }
    }

    fn is_asked_for(&self) -> bool {
        !self.rivals.is_empty() || self.model.is_some()
    }

    /// Checks that it was played to its end, and that whoever was asked for took part.
    pub(super) fn check_played(&self, contest: &mut Contest) -> Done {
        match contest.ended_by.take() {
            Some(error) => Err(error.into()),
            None => Ok(contest::check_took_part(&contest.document, !self.rivals.is_empty())?),
        }
    }

    /// Forebay always does.
    fn takes_part(&self, name: &str) -> bool {
        name == CONTENDERS[0] || self.rivals.iter().any(|one| one == name || one == ALL)
    }

    fn python(&self, launcher: &Launcher) -> PathBuf {
        // The wheel's command line is started by its interpreter, the program by itself.
        let own = launcher.first().filter(|_| launcher.len() > 1).map(PathBuf::from);
        self.python.clone().or(own).unwrap_or_else(|| "python3".into())
    }
}

/// One path that runs this very program: what takes more than a path to start gets a script in
/// `folder`.
fn command(launcher: &Launcher, folder: &Path) -> Result<PathBuf> {
    if let [program] = launcher {
        return Ok(program.into());
    }
    let quoted = |word: &OsString| {
        let word = word.to_string_lossy().replace('\'', r"'\''");
        format!("'{word}' ")
    };
    let words: String = launcher.iter().map(quoted).collect();
    let path = folder.join(NAME);
    std::fs::write(&path, format!("#!/bin/sh\nexec {words}\"$@\"\n")).doing("write a script")?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o700)).doing("make it a program")?;
    Ok(path)
}

/// Checks that a shard is a tar as all loaders read it.
fn plain(shard: &Path) -> Done {
    let file = File::open(shard);
    let mut first = Vec::new();
    let read = file.and_then(|file| file.take(MAGIC).read_to_end(&mut first));
    read.doing("read a shard").map_err(|error| error.at("shard", shard.display()))?;
    if COMPRESSED.iter().any(|magic| first.starts_with(magic)) {
        let error = usage("other loaders read plain tars, and this one is compressed");
        return Err(Failure::Usage(
            error
                .into_error()
                .at("shard", shard.display())
                .advise("unpack it for them: gunzip, unzstd"),
        ));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_shard_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let shard = folder.path().join("a.tar");
        for (bytes, is_plain) in [
            (&b"\x1f\x8b\x08..."[..], false),
            (b"\x28\xb5\x2f\xfd...", false),
            (b"a.txt\0\0", true),
            (b"", true),
        ] {
            std::fs::write(&shard, bytes).unwrap();
            let checked = plain(&shard);
            assert_eq!(checked.is_ok(), is_plain, "{bytes:?}");
            assert!(is_plain || matches!(checked, Err(Failure::Usage(_))));
        }
    }

    /// The command that starts the program is one path, with its arguments unchanged.
    #[test]
    fn command_is_a_single_path() {
        let folder = tempfile::tempdir().unwrap();
        let single = command(&["/x/forebay".into()], folder.path()).unwrap();
        assert_eq!(single, Path::new("/x/forebay"));
        let odd = ["printf", "%s|", "it's", "a b"].map(OsString::from);
        let program = command(&odd, folder.path()).unwrap();
        let output = std::process::Command::new(program).args(["$HOME", "c d"]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "it's|a b|$HOME|c d|");
    }
}
