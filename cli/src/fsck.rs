//! `forebay fsck`.

use std::path::{Path, PathBuf};

use forebay_client::cache_directory;
use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_store::{Checkup, Encryption, FaultKind, Secret, fsck, is_encrypted};
use indicatif::ProgressBar;

use super::daemon::CONFIG;
use super::{Done, Output, bar_style, print, print_json};

/// Check a cache directory that no daemon uses.
///
/// Tells what a killed daemon left, shards that cannot be served, and files that are not Forebay's
/// or of a newer release. Bytes of shards are `scrub`'s to check. Exit code 1 tells that something
/// is wrong that was not repaired. For an encrypted tier, the key file is the one that the
/// configuration names for this directory.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The cache directory. Unset: this user's own.
    directory: Option<PathBuf>,
    /// Remove what is of no use: leftovers, and shards that cannot be served.
    #[arg(long)]
    repair: bool,
    /// The configuration that names the key file of an encrypted tier.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let directory = match &arguments.directory {
        Some(directory) => directory.clone(),
        None => cache_directory()?,
    };
    let bar = ProgressBar::new(0)
        .with_style(bar_style("{bar:40} {pos}/{len} files  {elapsed} (left {eta})"));
    let secret = secret(&directory, &arguments.config)?;
    let checkup = fsck(&directory, arguments.repair, secret, |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    if arguments.output.json {
        print_json(&checkup)?;
    } else {
        tell(&checkup)?;
    }
    match checkup.is_clean() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Corrupt, "the cache directory is not clean")
            .at("directory", directory.display())
            .advise("`forebay fsck --repair` removes unusable files; a daemon's start does, too")
            .into()),
    }
}

/// Secret of a tier, by the configuration; none if that does not know the directory.
fn secret(directory: &Path, config: &Path) -> Result<Option<Secret>> {
    // Not everybody may read the configuration, and only an encrypted directory needs it.
    if !is_encrypted(directory) || !config.exists() {
        return Ok(None);
    }
    let tiers = Config::read(config)?.tiers()?;
    // Two spellings of one path are one directory.
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let wanted = real(directory);
    let is_it = |path: &Option<PathBuf>| path.as_deref().map(real).as_ref() == Some(&wanted);
    match tiers.into_iter().find(|tier| is_it(&tier.path)).and_then(|tier| tier.encryption) {
        Some(Encryption::KeyFile(path)) => Secret::read(&path).map(Some),
        Some(Encryption::Ephemeral) | None => Ok(None),
    }
}

fn tell(checkup: &Checkup) -> Done {
    for fault in &checkup.faults {
        let kind = match fault.kind {
            FaultKind::Leftover => "leftover",
            FaultKind::Broken => "broken",
            FaultKind::Newer => "newer",
            FaultKind::Foreign => "foreign",
        };
        let repaired = if fault.repaired { "  removed" } else { "" };
        print(&format!("{kind}  {}  {}{repaired}", fault.file, fault.why))?;
    }
    let size = bytesize::ByteSize(checkup.bytes).display().iec();
    Ok(print(&format!("{} shards, {size}, {} faults", checkup.shards, checkup.faults.len()))?)
}
