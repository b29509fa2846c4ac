//! A bucket of shards that are generated from their numbers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use forebay_source::Options;
use forebay_testkit::{ACCESS_KEY, S3Server, SECRET_KEY, shard};
use tempfile::TempDir;

/// The bucket.
const BUCKET: &str = "bucket";

/// An S3 server and its objects.
pub struct Origin {
    /// Server, for faults and counts.
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
        origin.fill(shards, samples, sizes);
        origin
    }

    /// Puts the shards of [`Origin::with_shards`].
    pub(crate) fn fill(&self, shards: u64, samples: u64, sizes: &Range<usize>) {
        for n in 0..shards {
            self.put(&format!("{n}.tar"), &shard(samples, n, sizes));
        }
    }

    /// Creates or replaces an object.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        // Written aside and renamed: no request sees half of it.
        let aside = self.dir.path().join("aside");
        std::fs::write(&aside, bytes).expect("the bucket is writable");
        std::fs::rename(aside, self.path(name)).expect("the bucket is writable");
    }

    /// File of an object.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(BUCKET).join(name)
    }

    /// Key of an object at the server.
    #[must_use]
    pub fn key(name: &str) -> String {
        format!("{BUCKET}/{name}")
    }

    /// URL of an object.
    #[must_use]
    pub fn url(name: &str) -> String {
        format!("s3://{BUCKET}/{name}")
    }

    /// URLs of the first `shards` shards.
    #[must_use]
    pub fn urls(shards: u64) -> Vec<String> {
        (0..shards).map(|n| Self::url(&format!("{n}.tar"))).collect()
    }

    /// Bytes of an object.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("the object exists")
    }

    /// Number of body bytes served of an object.
    #[must_use]
    pub fn served(&self, name: &str) -> u64 {
        self.server.counts().bytes.get(&Self::key(name)).copied().unwrap_or(0)
    }

    /// The `[[source]]` rule that lets a node's daemon read from it.
    #[must_use]
    pub fn rule(&self) -> String {
        let endpoint = self.server.endpoint();
        format!("[[source]]\nmatch = 's3://{BUCKET}/'\nendpoint = '{endpoint}'\n")
    }

    /// Environment of a job that reads from this server.
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
