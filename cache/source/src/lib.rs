//! Where shards come from: object stores, HTTP and POSIX files behind one trait.
//!
//! Its rule: a part that is handed out is of the version that was asked for, whole, or an error that
//! says whether to fix a name, fix credentials, or come back later. Retries are bounded and happen
//! here; secrets never reach an error or a log.
//!
//! Every byte is copied once into its span: from the connection's chunk, or from the memory of the
//! process that read the file ([`Readers`]).

mod credentials;
mod limits;
mod listing;
mod options;
mod posix;
mod readers;
mod remote;
mod rules;
mod sources;
mod stat;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;

pub use credentials::lend;
pub use limits::Limits;
pub use options::Options;
pub use readers::{MountReport, Readers, Turn, serve};
pub use remote::Counters;
pub use rules::{RateLimits, Rule, Rules};
pub use sources::Sources;
pub use stat::Stat;

/// A store that shards are fetched from.
#[async_trait]
pub trait Source: Send + Sync {
    /// Length and version of a shard.
    ///
    /// # Errors
    /// `NotFound` and `PermissionDenied` naming the URL, `Unavailable` naming the endpoint once the
    /// retries are spent, `Invalid` for a URL that is not of this source.
    async fn stat(&self, url: &str) -> Result<Stat>;

    /// Fills the first `min(stat.len - offset, into.len())` bytes of `into` with the shard's bytes
    /// from `offset`, all of the version `stat`, and returns it; what lies behind them is undefined.
    ///
    /// # Errors
    /// As [`Source::stat`]; `Unavailable` if the shard changed since `stat` (stat it again and start
    /// over); `Invalid` if `offset` is not inside the shard. The span is given back to its arena.
    async fn read_part(&self, url: &str, stat: &Stat, offset: u64, into: Span) -> Result<Span>;

    /// The objects that a pattern (`s3://bucket/train-*.tar`) or a folder (`s3://bucket/train/`) means,
    /// by name.
    ///
    /// # Errors
    /// As [`Source::stat`]; `NotFound` if nothing matches, `Invalid` for a pattern that is none, that
    /// matches too much, or where the source does not tell what it has.
    async fn list(&self, pattern: &str) -> Result<Vec<String>> {
        let what = "this source does not tell which shards it has";
        Err(Error::new(ErrorKind::Invalid, what)
            .at("urls", forebay_error::shown(pattern))
            .advise("write braces, as in {000..099}, or name every shard"))
    }

    /// Waits until one more shard may be fetched, like `url`, and holds its place: sources that may
    /// hang take no more places at once than leave some to others.
    ///
    /// # Errors
    /// As [`Source::stat`].
    async fn turn(&self, _url: &str) -> Result<Turn> {
        Ok(Turn::default())
    }

    /// The store's identity in cache keys, such as `http://127.0.0.1:9000` or `file`.
    fn endpoint(&self) -> &str;

    /// What an administrator lets it be asked for.
    fn rate_limits(&self) -> RateLimits {
        RateLimits::default()
    }
}
