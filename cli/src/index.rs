//! `forebay index`.

pub(crate) mod members;

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_client::Connection;
use forebay_config::Rate;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_shard::{Commands, Manifest, ManifestShard};
use forebay_source::Options;
use forebay_wire::message::{LeftOut, Request};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{Access, access};
use serde::Serialize;

use super::{Done, Failure, Launcher, Query, WithLeftOut, bar_style, print, print_json, shards};

/// Count the samples of shards and write a manifest.
///
/// Several ranks and the lanes of a window shuffle need one. With --members, an index of every
/// sample's members comes beside it, by whose columns a loader filters. Shards pass through the
/// cache, so training right after it starts warm; a daemon is started if none runs.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    query: Query,
    /// Shards: URLs or paths, with braces (`{000..099}`) and globs.
    #[arg(required = true)]
    urls: Vec<String>,
    /// The manifest to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Fetch at this rate at most, like `2Gbit/s` or `500MB/s`; what jobs want, too, comes as they
    /// need it.
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<Rate>,
    /// Run shards that are commands, as in `pipe:aws s3 cp s3://bucket/{00..09}.tar -`.
    ///
    /// They run here, by `/bin/sh` and with your rights; name none from a list that you do not
    /// trust.
    #[arg(long)]
    allow_pipe: bool,
    #[command(flatten)]
    members: members::Arguments,
}

/// The longest wait for the next shard: a large one by a slow link takes minutes.
const COUNT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Totals.
#[derive(Serialize)]
struct Document<'a> {
    manifest: &'a Path,
    hash: &'a str,
    shards: usize,
    samples: u64,
    bytes: u64,
    /// The member index, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<members::Document>,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    check_writable(&arguments.output)?;
    let wanted = arguments.members.wanted().map_err(Failure::Usage)?;
    let commands = if arguments.allow_pipe { Commands::Allowed } else { Commands::Refused };
    let named = shards(&arguments.urls, commands, &arguments.query.target, launcher)?;
    let connection = arguments.query.target.connect(launcher)?;
    if arguments.allow_pipe {
        connection.allow_commands();
    }
    if let Some(rate) = arguments.bandwidth {
        connection.send(&Request::Pace { bandwidth: rate.bytes() })?;
    }
    let (manifest, members) = match &wanted {
        None => (Manifest::new(count(&connection, named.urls)?)?, None),
        Some(wanted) => {
            let daemon = (arguments.query.target.address(launcher)?, arguments.allow_pipe);
            let output = &arguments.output;
            let indexed = members::index(&connection, &named.urls, output, wanted, daemon)?;
            (indexed.0, Some(indexed.1))
        }
    };
    if let (0, Some(first)) = (manifest.samples(), manifest.shards().first()) {
        return Err(Error::new(ErrorKind::NotFound, "the shards have no samples")
            .at("url", &first.url)
            .advise("shards hold members such as 0001.jpg and 0001.cls, which `tar -t` lists")
            .into());
    }
    manifest.write(&arguments.output)?;
    if members.is_none() {
        members::remove_stale(&manifest, &arguments.output)?;
    }
    Ok(tell(arguments, &manifest, members, &named.left_out)?)
}

/// Refuses a manifest that could not be written, before anything is fetched for it.
fn check_writable(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let (target, doing) = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            return Err(Error::new(ErrorKind::Invalid, "the manifest's path is a folder")
                .at("path", path.display()));
        }
        Ok(_) => (path, "write the manifest"),
        Err(_) => (parent.unwrap_or(Path::new(".")), "write into the manifest's folder"),
    };
    access(target, Access::WRITE_OK).doing(doing).map_err(|error| error.at("path", path.display()))
}

fn tell(
    arguments: &Arguments,
    manifest: &Manifest,
    members: Option<members::Document>,
    left_out: &LeftOut,
) -> Result<()> {
    let (shards, samples) = (manifest.shards().len(), manifest.samples());
    if arguments.query.output.json {
        let bytes = manifest.shards().iter().filter_map(|shard| shard.bytes).sum();
        let (manifest, hash) = (arguments.output.as_path(), manifest.hash());
        let document = &Document { manifest, hash, shards, samples, bytes, members };
        return print_json(&WithLeftOut { document, left_out });
    }
    print(&format!("{}: {shards} shards, {samples} samples", arguments.output.display()))?;
    members.iter().flat_map(members::Document::lines).try_for_each(|line| print(&line))
}

/// Returns the look of a bar of shards.
fn bar() -> ProgressStyle {
    bar_style("{bar:40} {pos}/{len} shards  {elapsed} (left {eta})")
}

/// Has the daemon count every shard, several at once.
fn count(connection: &Connection, urls: Vec<String>) -> Result<Vec<ManifestShard>> {
    let bar = ProgressBar::new(urls.len() as u64).with_style(bar());
    let origin = Options::from_env().into_map();
    let counted = connection.count(&urls, &origin, COUNT_TIMEOUT, || bar.inc(1))?;
    bar.finish_and_clear();
    let shard = |(url, (bytes, samples))| ManifestShard { url, samples, bytes: Some(bytes) };
    Ok(urls.into_iter().zip(counted).map(shard).collect())
}
