//! A node that saves checkpoints, as tests use it.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "it stops at the first surprise"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_client::{
    CheckpointPlace, CheckpointReader, CheckpointWriter, Commit, FileId, Level, SaveConfig, Watch,
};
use forebay_config::settings::{NodeConfig, Writers};
use forebay_error::Result;
use forebay_store::CheckpointRule;
use forebay_testkit::{ACCESS_KEY, FaultProxy, S3Server, SECRET_KEY};
use tempfile::TempDir;

use crate::node::Daemon;
use crate::patience::PATIENCE;

/// A node, and the store that its checkpoints go to.
pub struct SavingNode {
    /// The node; none between two.
    pub daemon: Option<Daemon>,
    /// Cache of the node.
    pub cache: TempDir,
    /// Folder of the store, if it is one.
    pub folder: TempDir,
    /// Environment of its clients.
    pub environment: BTreeMap<String, String>,
    /// URL of the checkpoint that is saved.
    pub url: String,
}

impl SavingNode {
    /// A node that saves to a folder.
    #[must_use]
    pub fn to_folder() -> Self {
        let folder = Daemon::disk();
        let url = folder.path().join("run/step-1").to_str().unwrap().to_owned();
        Self::to(url, BTreeMap::new(), folder)
    }

    /// A node that saves to a store.
    #[must_use]
    pub fn to(url: String, environment: BTreeMap<String, String>, folder: TempDir) -> Self {
        let cache = Daemon::disk();
        let daemon = Some(Self::start(cache.path(), 1 << 30));
        Self { daemon, cache, folder, environment, url }
    }

    /// An S3 server, a proxy before it, and a node that saves there. Bound in this order, the node
    /// ends first.
    #[must_use]
    pub fn behind_proxy() -> (S3Server, FaultProxy, Self) {
        let folder = Daemon::disk();
        let server = S3Server::start(folder.path()).unwrap();
        fs::create_dir_all(folder.path().join("bucket")).unwrap();
        let proxy = FaultProxy::start(server.address()).unwrap();
        let environment = to_store(&proxy.endpoint());
        let node = Self::to("s3://bucket/run/step-1".to_owned(), environment, folder);
        (server, proxy, node)
    }

    /// Another node that saves there, without anything of the checkpoint.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::to(self.url.clone(), self.environment.clone(), Daemon::disk())
    }

    /// A node that saves anywhere.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(cache: &Path, capacity: u64) -> Daemon {
        Daemon::try_start(saves_anywhere(Daemon::config(cache, capacity))).unwrap()
    }

    /// The running node.
    #[must_use]
    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// Ends the node, and starts one on the same cache.
    pub fn restart(&mut self) {
        self.daemon = None;
        self.daemon = Some(Self::start(self.cache.path(), 1 << 30));
    }

    /// Place of a file.
    #[must_use]
    pub fn place(&self, name: &str) -> CheckpointPlace {
        self.place_at(&self.url, name)
    }

    /// Place of a file of another checkpoint.
    #[must_use]
    pub fn place_at(&self, url: &str, name: &str) -> CheckpointPlace {
        CheckpointPlace {
            address: self.daemon().address(),
            url: url.to_owned(),
            name: name.to_owned(),
            origin: self.environment.clone(),
            timeout: PATIENCE,
            watch: Watch::default(),
        }
    }

    /// Begins a file.
    ///
    /// # Errors
    /// The daemon's.
    pub fn writer(&self, name: &str, id: u8, expected: u64) -> Result<CheckpointWriter> {
        self.open(name, id, expected, false)
    }

    fn open(&self, name: &str, id: u8, expected: u64, is_lone: bool) -> Result<CheckpointWriter> {
        let (place, job) = (self.place(name), "test".to_owned());
        CheckpointWriter::open(SaveConfig { place, id: [id; 16], expected, is_lone, job })
    }

    /// Saves a file of its own.
    pub fn save_alone(&self, name: &str, id: u8, bytes: &[u8]) {
        let mut writer = self.open(name, id, 0, true).unwrap();
        writer.write(bytes).unwrap();
        writer.finish(None).unwrap();
    }

    /// Saves a file.
    pub fn save(&self, name: &str, id: u8, bytes: &[u8]) {
        let mut writer = self.writer(name, id, bytes.len() as u64).unwrap();
        writer.write(bytes).unwrap();
        assert_eq!(writer.finish(None).unwrap(), bytes.len() as u64);
    }

    /// Commits files by their ids.
    pub fn commit(&self, id: u8, files: &[u8], overwrite: bool) {
        let mut writer = self.writer(".metadata", id, 0).unwrap();
        writer.write(&metadata(id)).unwrap();
        let files = files.iter().map(|id| [*id; 16]).collect::<Vec<FileId>>();
        writer.finish(Some(Commit { files, step: Some(1), overwrite })).unwrap();
    }

    /// Waits for a level.
    ///
    /// # Errors
    /// The daemon's.
    pub fn wait(&self, level: Level) -> Result<()> {
        self.place("").wait(level)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The daemon's.
    pub fn load(&self, name: &str) -> Result<Vec<u8>> {
        let mut reader = CheckpointReader::open(&self.place(name))?;
        let mut bytes = vec![0; usize::try_from(reader.len()).unwrap()];
        assert_eq!(reader.read_at(0, &mut bytes)?, bytes.len());
        Ok(bytes)
    }

    /// The object in the folder, that of a bucket as well.
    #[must_use]
    pub fn object(&self, name: &str) -> PathBuf {
        let key = self.url.strip_prefix("s3://").unwrap_or(&self.url);
        self.folder.path().join(key).join(name)
    }

    /// Staged files on the disk.
    #[must_use]
    pub fn staged(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.cache.path().join("checkpoints")).into_iter().flatten();
        let paths = listed.flatten().map(|entry| entry.path());
        paths.filter(|path| path.extension().is_none()).collect()
    }
}

/// The same configuration, of a node that saves checkpoints anywhere.
#[must_use]
pub fn saves_anywhere(mut config: NodeConfig) -> NodeConfig {
    let rule = CheckpointRule::new("**").unwrap();
    let rule = CheckpointRule { tiers: vec!["nvme".to_owned()], ..rule };
    config.access.writers = vec![Writers { rule: rule.clone(), allow: None }];
    config.checkpoints = vec![rule];
    config
}

/// Content of a test's `.metadata`.
#[must_use]
pub fn metadata(id: u8) -> Vec<u8> {
    format!("metadata of {id}").into_bytes()
}

/// Bytes that differ from place to place.
#[must_use]
pub fn patterned(len: usize, seed: u64) -> Vec<u8> {
    let word = |n: u64| (n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len as u64).step_by(8).flat_map(word).take(len).collect()
}

/// Files below a folder.
#[must_use]
pub fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(walk(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    found
}

/// Environment of a client whose S3 store is at an endpoint.
#[must_use]
pub fn to_store(endpoint: &str) -> BTreeMap<String, String> {
    BTreeMap::from(
        [
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    )
}
