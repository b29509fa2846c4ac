//! Manifest and member index of shards, made by a daemon of their own: the cache of the daemon that
//! is tested stays cold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_client::{Deadline, Documents, RemoteReads};
use forebay_shard::members::{Writer, path_of};
use forebay_shard::{Manifest, ManifestShard};

use crate::node::Daemon;
use crate::patience::PATIENCE;

/// Indexes shards and writes `m.json` and `m.json.members` into a folder; returns the manifest.
///
/// # Panics
/// If that fails.
#[must_use]
pub fn write_index(
    urls: &[String],
    environment: &BTreeMap<String, String>,
    folder: &Path,
) -> PathBuf {
    let (manifest, disk) = (folder.join("m.json"), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let connection = daemon.address().connect(&Deadline::after(PATIENCE)).expect("it serves");
    let mut writer = Writer::create(&path_of(&manifest), &[]).expect("the folder is writable");
    let mut shards: Vec<ManifestShard> = Vec::new();
    let members = connection.members(urls, environment, PATIENCE, |part| {
        if part.first == 0 {
            writer.begin(part.bytes, &part.version)?;
            let (url, bytes) = (urls[part.shard].clone(), Some(part.bytes));
            shards.push(ManifestShard { url, samples: part.total, bytes });
        }
        let mut samples = part.index.samples.iter();
        samples.try_for_each(|sample| writer.add(&part.index, sample, Vec::new()))
    });
    members.expect("the shards are indexed");
    let listed = Manifest::new(shards).expect("there are shards");
    writer.finish(&listed).expect("the index is written");
    listed.write(&manifest).expect("the manifest is written");
    manifest
}

/// A manifest and its member index at a path, or at a URL that this daemon reads.
#[must_use]
pub fn documents(
    place: &str,
    daemon: &Daemon,
    environment: &BTreeMap<String, String>,
) -> Documents {
    let (address, origin) = (daemon.address(), environment.clone());
    Documents::at(place, RemoteReads { address, origin, limit: PATIENCE })
}
