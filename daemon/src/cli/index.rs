//! `forebay index`.

use std::collections::HashMap;
use std::path::PathBuf;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Manifest, ManifestShard};
use forebay_source::Options;
use forebay_wire::frame::Receiver;
use forebay_wire::message::{Reply, Request};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Reach, print, shards, unexpected};

/// Requests sent before their answers are read: enough to keep every fill of the daemon busy.
const UNDER_WAY: usize = 8;

/// Counts the samples of every shard and writes a manifest, which several ranks and the lanes of a
/// window shuffle need. Shards pass through the cache, so training right after it starts warm.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Shards: URLs or paths, with braces (`{000..099}`) and globs.
    #[arg(required = true)]
    urls: Vec<String>,
    /// The manifest to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn run(arguments: &Arguments, reach: &Reach) -> Result<()> {
    let urls = shards(&arguments.urls)?;
    let connection = reach.connect()?;
    let origin = Options::from_env().into_map();
    let bar = ProgressBar::new(urls.len() as u64).with_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} shards  {elapsed} (left {eta})")
            .expect("a constant, valid template"),
    );
    let ask = |url: &String| {
        connection.send(&Request::Index { url: url.clone(), origin: origin.clone() })
    };
    let mut waiting = urls.iter();
    for url in waiting.by_ref().take(UNDER_WAY) {
        ask(url)?;
    }
    let mut receiver = Receiver::default();
    let mut counted = HashMap::new();
    for _ in 0..urls.len() {
        match connection.receive(&mut receiver)? {
            Reply::Shard { url, bytes, samples } => counted.insert(url, (bytes, samples)),
            Reply::Failed { error, .. } => return Err(error),
            _ => return Err(unexpected()),
        };
        bar.inc(1);
        if let Some(url) = waiting.next() {
            ask(url)?;
        }
    }
    bar.finish_and_clear();
    let shards = urls.into_iter().map(|url| match counted.get(&url) {
        Some((bytes, samples)) => Ok(ManifestShard { samples: *samples, bytes: Some(*bytes), url }),
        None => Err(Error::new(ErrorKind::Invalid, "a shard was not counted").at("url", url)),
    });
    let manifest = Manifest::new(shards.collect::<Result<_>>()?)?;
    manifest.write(&arguments.output)?;
    print(&format!(
        "{}: {} shards, {} samples",
        arguments.output.display(),
        manifest.shards().len(),
        manifest.samples()
    ))
}
