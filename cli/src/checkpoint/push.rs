//! `forebay checkpoint push`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use forebay_client::{CheckpointPlace, CheckpointWriter, Commit, FileId, Level, SaveConfig};
use forebay_error::{Doing, Error, ErrorKind, Result};
use indicatif::ProgressBar;

use super::super::{Done, Launcher, Target, bar_style};
use super::{place, say};

/// Bytes read at a time.
const PIECE: usize = 4 << 20;

/// Name of the file that makes a checkpoint visible.
const METADATA: &str = ".metadata";

/// Save all files of a folder, and publish them as one checkpoint.
///
/// The command returns once they are durable on this node; the daemon uploads them. With --wait it
/// returns once the checkpoint is visible.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Arguments {
    /// Local folder.
    folder: PathBuf,
    /// URL of the checkpoint.
    url: String,
    /// Step of the training, for `keep` of the node's rule.
    #[arg(long)]
    step: Option<u64>,
    /// Replace a checkpoint that is published there already.
    #[arg(long)]
    overwrite: bool,
    /// Wait until it is visible.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let Arguments { folder, url, step, overwrite, wait, target } = arguments;
    let (step, overwrite) = (*step, *overwrite);
    let place = place(target, url, launcher)?;
    let mut names = Vec::new();
    list(folder, "", &mut names)?;
    if names.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "the folder holds no files")
            .at("folder", folder.display())
            .into());
    }
    let all: u64 = names.iter().map(|(_, bytes)| bytes).sum();
    let bar = ProgressBar::new(all).with_style(bar_style("{binary_bytes}/{binary_total_bytes}"));
    let mut files = Vec::with_capacity(names.len());
    for (name, bytes) in &names {
        files.push(save(&place, folder, (name, *bytes), &bar)?);
    }
    bar.finish_and_clear();
    let text = names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("\n");
    let mut metadata = CheckpointWriter::open(config(&place, METADATA, text.len() as u64)?)?;
    metadata.write(text.as_bytes())?;
    metadata.finish(Some(Commit { files, step, overwrite }))?;
    if !wait {
        return say("durable on this node; `forebay checkpoint ls` shows the upload");
    }
    let mut waiting = place;
    waiting.timeout = forebay_client::TIMEOUT_MAX;
    waiting.wait(Level::Published)?;
    say("published")
}

/// Saves a file; returns its identity.
fn save(
    place: &CheckpointPlace,
    folder: &Path,
    (name, bytes): (&str, u64),
    bar: &ProgressBar,
) -> Result<FileId> {
    let path = folder.join(name);
    let at = |error: Error| error.at("path", path.display());
    let config = config(place, name, bytes)?;
    let id = config.id;
    let mut writer = CheckpointWriter::open(config)?;
    let mut file = File::open(&path).doing("open a file").map_err(at)?;
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece).doing("read a file").map_err(at)? {
            0 => break,
            read => {
                writer.write(&piece[..read])?;
                bar.inc(read as u64);
            }
        }
    }
    writer.finish(None)?;
    Ok(id)
}

fn config(place: &CheckpointPlace, name: &str, expected: u64) -> Result<SaveConfig> {
    let mut id = FileId::default();
    let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id));
    random.doing("draw a random number")?;
    let place = CheckpointPlace { name: name.to_owned(), ..place.clone() };
    Ok(SaveConfig { place, id, expected, is_lone: false, job: "push".to_owned() })
}

/// Lists the files below a folder, by name.
fn list(folder: &Path, prefix: &str, into: &mut Vec<(String, u64)>) -> Result<()> {
    let at = |error: Error| error.at("folder", folder.display());
    let listed = std::fs::read_dir(folder.join(prefix)).doing("list a folder").map_err(at)?;
    let mut entries = listed.collect::<std::io::Result<Vec<_>>>().doing("list a folder")?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            return Err(at(Error::new(ErrorKind::Invalid, "a file's name is no text")
                .at("name", name.display())));
        };
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let meta = std::fs::metadata(entry.path()).doing("stat a file").map_err(at)?;
        if meta.is_dir() {
            list(folder, &name, into)?;
        } else if !meta.is_file() || name == METADATA {
            let what = "the folder holds a file that cannot be part of a checkpoint";
            return Err(at(Error::new(ErrorKind::Invalid, what).at("name", name)));
        } else {
            into.push((name, meta.len()));
        }
    }
    Ok(())
}
