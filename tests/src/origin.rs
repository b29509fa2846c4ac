//! A bucket of shards whose every byte follows from the shard's number.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use forebay_source::Options;
use forebay_testkit::{ACCESS_KEY, S3Server, SECRET_KEY, shard};
use tempfile::TempDir;

/// The bucket.
const BUCKET: &str = "bucket";

/// An S3 server and what lies in it.
pub struct Origin {
    /// The server, for faults and counts.
    pub server: S3Server,
    dir: TempDir,
}

impl Default for Origin {
    fn default() -> Self {
        Self::new()
    }
}

impl Origin {
    /// An empty bucket.
    ///
    /// # Panics
    /// If the server cannot be started.
    #[must_use]
    pub fn new() -> Self {
        let dir = TempDir::new().expect("a temp directory can be made");
        std::fs::create_dir(dir.path().join(BUCKET)).expect("the temp directory is writable");
        let server = S3Server::start(dir.path()).expect("a loopback port is free");
        Self { server, dir }
    }

    /// A bucket of `shards` shards of `samples` samples each; shard `n` is made with seed `n`.
    #[must_use]
    pub fn with_shards(shards: u64, samples: u64, sizes: &Range<usize>) -> Self {
        let origin = Self::new();
        for n in 0..shards {
            origin.put(&format!("{n}.tar"), &shard(samples, n, sizes));
        }
        origin
    }

    /// Puts an object, or replaces it.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        // Aside and renamed, so that no request sees half of it.
        let aside = self.dir.path().join("aside");
        std::fs::write(&aside, bytes).expect("the bucket is writable");
        std::fs::rename(aside, self.path(name)).expect("the bucket is writable");
    }

    /// The object's file.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(BUCKET).join(name)
    }

    /// The object's key at the server.
    #[must_use]
    pub fn key(name: &str) -> String {
        format!("{BUCKET}/{name}")
    }

    /// The object's URL.
    #[must_use]
    pub fn url(name: &str) -> String {
        format!("s3://{BUCKET}/{name}")
    }

    /// The URLs of the first `shards` shards.
    #[must_use]
    pub fn urls(shards: u64) -> Vec<String> {
        (0..shards).map(|n| Self::url(&format!("{n}.tar"))).collect()
    }

    /// The object's bytes.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("the object exists")
    }

    /// Body bytes served of an object so far.
    #[must_use]
    pub fn served(&self, name: &str) -> u64 {
        self.server.counts().bytes.get(&Self::key(name)).copied().unwrap_or(0)
    }

    /// What lets a node's daemon read from it: a `[[source]]` of its configuration.
    #[must_use]
    pub fn rule(&self) -> String {
        let endpoint = self.server.endpoint();
        format!("[[source]]\nmatch = 's3://{BUCKET}/'\nendpoint = '{endpoint}'\n")
    }

    /// What a client's environment would say about this server.
    #[must_use]
    pub fn environment(&self) -> BTreeMap<String, String> {
        Options::default()
            .with("AWS_ENDPOINT_URL", &self.server.endpoint())
            .with("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .with("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .with("AWS_REGION", "us-east-1")
            .with("AWS_ALLOW_HTTP", "true")
            .into_map()
    }
}
