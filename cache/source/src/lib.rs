//! Origins of shards: S3, Google's and Microsoft's stores, web servers, POSIX files and the
//! commands of jobs behind one trait.
//!
//! A delivered part is of the requested version and complete. Otherwise there is an error that
//! tells the caller to fix a name, fix credentials, or retry later. Retries are bounded and happen
//! here; secrets never reach an error or a log.
//!
//! Every byte is copied once into its span: from the connection's chunk, or from the memory of the
//! process that read the file ([`Readers`]).

mod bill;
mod commands;
mod credentials;
mod file_sink;
mod helper_process;
mod layout;
mod limits;
mod linked;
mod listing;
mod network;
mod options;
mod origin_checksum;
mod peer_times;
mod posix;
mod queue;
mod rate;
mod readers;
mod remote;
mod rules;
mod scheme;
mod signature;
mod sink;
mod sources;
mod stat;

use std::ops::Range;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;

pub use bill::{Bill, Billed};
pub use credentials::lend;
pub use helper_process::{ProgramUser, check_helper_process};
pub use layout::Layout;
pub use limits::{Limits, RateLimits};
pub use listing::{LeftOut, Listing};
pub use network::system_authorities;
pub use options::Options;
pub use origin_checksum::{Checksums, Comparison};
pub use peer_times::{AtPeer, PeerTimes};
pub use queue::{Awaited, Queue, QueuePermit, Rank};
pub use rate::Rate;
pub use readers::{
    Client, Ending, FileCounts, Handover, MountReport, Opener, Permit, Readers, Turn, mount_point,
    serve, serve_layouts_of,
};
pub use remote::{Counters, LinkReport};
pub use rules::{Rule, Rules, settled};
pub use signature::object_of;
pub use sink::{
    EXISTS, Found, LISTED_MAX, NO_UPLOAD, Named, Overwrite, PART_BYTES_MIN, PARTS_MAX, PartTag,
    REASON, Sink, Tag, UploadId,
};
pub use sources::{ByClient, NewRules, Sources};
pub use stat::{Binding, Stat};

/// Default bytes of one request: a part of a shard.
const AT_ONCE: u64 = readers::PIECE as u64;

/// A store that shards are fetched from.
#[async_trait]
pub trait Source: Send + Sync {
    /// Length and version of a shard.
    ///
    /// # Errors
    /// `NotFound` and `PermissionDenied` naming the URL, `Unavailable` naming the endpoint once the
    /// retries are spent, `Invalid` for a URL that is not of this source.
    async fn stat(&self, url: &str) -> Result<Stat>;

    /// Length and version of a shard as the reply to a request for its first bytes tells them, with
    /// those bytes, where a source can do so; else as [`Source::stat`].
    ///
    /// # Errors
    /// As [`Source::stat`].
    async fn begin(&self, url: &str, _rank: &Rank) -> Result<Begun> {
        Ok(Begun { stat: self.stat(url).await?, head: None })
    }

    /// The bytes of `range`, all of the version `stat`. Of a shard that is [`Binding::Sequential`]
    /// that must be the whole, and of a [`Binding::Stream`] it says nothing: all of it comes. Asks
    /// for nothing yet.
    ///
    /// # Errors
    /// `Invalid` for a URL that is not of this source.
    async fn range_read<'a>(
        &'a self,
        url: &'a str,
        stat: &'a Stat,
        range: Range<u64>,
        rank: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>>;

    /// Fills the first `min(stat.len - offset, into.len())` bytes of `into` with the shard's bytes
    /// from `offset`, all of the version `stat`, and returns it; what lies behind them is
    /// undefined.
    ///
    /// # Errors
    /// As [`RangeRead::fill`]; `Invalid` if `offset` is not inside the shard.
    async fn read_part(
        &self,
        url: &str,
        stat: &Stat,
        offset: u64,
        into: Span,
        rank: &Rank,
    ) -> Result<Span> {
        let len = stat.part_len(offset, into.len()).map_err(|error| error.at("url", url))?;
        let range = offset..offset + len as u64;
        self.range_read(url, stat, range, rank).await?.fill(into).await
    }

    /// Fills the beginning of each span with bytes of the plain tar from an offset on, all of the
    /// version `stat`, as far as there are any. `is_unpacked`: the origin keeps the shard
    /// compressed, or sends it only as a whole. The spans come back in order; one whose read the
    /// origin failed comes back empty.
    async fn read_records(
        &self,
        url: &str,
        stat: &Stat,
        is_unpacked: bool,
        wanted: Vec<(u64, Span)>,
        rank: &Rank,
    ) -> Vec<(Span, Result<()>)> {
        let reads = wanted.into_iter().map(|(offset, mut span)| async move {
            if is_unpacked {
                return (span, Err(only_as_a_whole(url)));
            }
            // The source keeps the span until it succeeds.
            let stub = span.split_to(0);
            match self.read_part(url, stat, offset, span, rank).await {
                Ok(span) => (span, Ok(())),
                Err(error) => (stub, Err(error)),
            }
        });
        futures::future::join_all(reads).await
    }

    /// The objects that a pattern (`s3://bucket/train-*.tar`) or a folder (`s3://bucket/train/`)
    /// means, by name; none if nothing matches.
    ///
    /// # Errors
    /// As [`Source::stat`]; `Invalid` for a pattern that is none,
    /// that matches too much, or where the source does not tell what it has.
    async fn list(&self, pattern: &str) -> Result<Listing> {
        Err(lists_nothing(pattern))
    }

    /// Returns the store's checksum of a version, to compare with the bytes that arrive; `None` if
    /// it has none, or does not tell.
    async fn origin_checksum(&self, _url: &str, _stat: &Stat) -> Option<Comparison> {
        None
    }

    /// Bytes that are best asked for at once, as far as is known now: a multiple of a part.
    fn at_once(&self) -> u64 {
        AT_ONCE
    }

    /// Waits until one more shard may be fetched, like `url` and of this rank, and holds its place:
    /// sources that may hang take no more places at once than leave some to others.
    ///
    /// # Errors
    /// As [`Source::stat`].
    async fn turn(&self, _url: &str, _rank: &Rank) -> Result<Turn> {
        Ok(Turn::default())
    }

    /// Returns the last failure of requests for a shard that are still made again, if there is one.
    fn trouble(&self, _url: &str) -> Option<Error> {
        None
    }

    /// Returns false if the origin is known to send a shard only as a whole.
    fn has_ranges(&self, _url: &str) -> bool {
        true
    }

    /// Returns true if a read asks a store over a network.
    fn is_remote(&self) -> bool {
        false
    }

    /// Returns true if other nodes may have its shards.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the times in which other nodes were asked, if they may have its shards.
    fn peer_times(&self) -> Option<&PeerTimes> {
        None
    }

    /// Among whom what this source says of a shard may be shared: everybody who asks the same
    /// endpoint, unless it stands for a client that has to show its own rights.
    fn scope(&self) -> &str {
        self.endpoint()
    }

    /// The store's identity in cache keys, such as `http://127.0.0.1:9000` or `file`.
    fn endpoint(&self) -> &str;
}

/// Consecutive bytes of a shard, on their way.
#[async_trait]
pub trait RangeRead: Send {
    /// Fills `into` with the next bytes, as far as there are any, and returns it.
    ///
    /// # Errors
    /// `NotFound` and `PermissionDenied` naming the URL, `Unavailable` once the retries are spent
    /// or if the shard changed since its `stat` (stat it again and start over). The span is given
    /// back to its arena, and the stretch is over.
    async fn fill(&mut self, into: Span) -> Result<Span>;

    /// Returns the length of a shard that only its end reveals ([`Binding::Stream`]), once it has
    /// arrived.
    fn ends_at(&self) -> Option<u64> {
        None
    }
}

/// A shard of which length and version are known, and perhaps the first bytes.
pub struct Begun {
    /// Length and version.
    pub stat: Stat,
    /// The first bytes, on their way; at most as many as are [`Source::at_once`] asked for.
    pub head: Option<Box<dyn RangeRead>>,
}

fn only_as_a_whole(url: &str) -> Error {
    let what = "no tier holds the shard, and its origin sends it only as a whole";
    Error::new(ErrorKind::Unavailable, what).at("url", url).advise(
        "read it again once a tier accepts it (see `forebay tier ls`), or store it as a plain tar",
    )
}

fn lists_nothing(pattern: &str) -> Error {
    Error::new(ErrorKind::Invalid, "this source cannot list its shards")
        .at("urls", forebay_error::shown(pattern))
        .advise("write braces, as in {000..099}, or name every shard")
}
