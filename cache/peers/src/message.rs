//! Requests and replies between nodes.
//!
//! Requests are POSTs with a JSON body: a shard's URL may hold any character. A reply about a
//! shard is a sequence of frames, so that a node that waits for its origin can say so; a reply
//! with bytes has a head in front of each range.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{IndexPart, Origin};
use forebay_source::Stat;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Version of the protocol, in every path. A node serves this one and the one before.
pub const PROTOCOL: u32 = 1;

/// Path of a greeting: a [`Greeting`] as JSON.
pub const HELLO: &str = "/peer/1/hello";

/// Path of a shard's identity: a [`ShardRequest`], answered by frames.
pub const STAT: &str = "/peer/1/stat";

/// Path of a shard's index: a [`ShardRequest`], answered by frames.
pub const INDEX: &str = "/peer/1/index";

/// Path of a report that a shard's bytes were wrong: a [`ShardRequest`].
pub const SUSPECT: &str = "/peer/1/suspect";

/// Path of a question about a node's copy: a [`ShardRequest`], answered by a [`Presence`] as JSON.
pub const HAS: &str = "/peer/1/has";

/// Path of a request to keep the second copy of a shard: a [`ShardRequest`].
pub const KEEP: &str = "/peer/1/keep";

/// Path of bytes: a [`BytesRequest`], answered by the bytes of each range behind a head.
pub const BYTES: &str = "/peer/1/bytes";

/// Maximum bytes of a request: a URL of 4 KiB and 256 ranges in digits.
pub const MAX_REQUEST: usize = 64 << 10;

/// Maximum bytes that one request asks for: a block of a shard, with its ends on pages.
pub const MAX_BYTES: u64 = (4 << 20) + (8 << 10);

/// Maximum number of ranges in a request.
pub const MAX_RANGES: usize = 256;

/// Maximum bytes of a frame. A part of an index is cut at [`PART_MEMBERS`]; one sample may have
/// more.
pub const MAX_FRAME: usize = 16 << 20;

/// Members in a part of an index: a frame of some 100 KiB.
pub const PART_MEMBERS: usize = 4096;

/// Bytes of a frame's length, and of a range's length and checksum.
pub const FRAME_HEAD: usize = 4;
/// Bytes of a range's head: length and CRC32C, both little-endian.
pub const RANGE_HEAD: usize = 8;

/// Introduction of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Name of the node.
    pub name: String,
    /// Ring that it belongs to.
    pub group: String,
    /// Share of the shards that it owns.
    pub slots: u16,
    /// Newest protocol that it speaks.
    pub protocol: u32,
    /// Oldest protocol that it speaks.
    pub oldest_protocol: u32,
    /// Clock of the node, in seconds since 1970.
    pub unix_time: u64,
    /// Digest of the rules for data sets and sources: nodes of a ring should have the same.
    pub rules: String,
    /// True if the node leaves the cluster in good order.
    #[serde(default)]
    pub is_draining: bool,
}

/// A question about a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRequest {
    /// Identity of the store, as in the cache's keys.
    pub endpoint: String,
    /// URL of the shard.
    pub url: String,
    /// Version that the asker reads; none: the current one.
    pub version: Option<String>,
    /// True if only a whole copy counts, and nothing is fetched.
    pub only_cached: bool,
    /// True if a trainer waits.
    pub is_awaited: bool,
    /// Tenant for whose job the node asks; none if the job has none, if an admin's job asks, or if
    /// no job does.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl ShardRequest {
    /// Makes a request about a shard in any version.
    #[must_use]
    pub fn any_version(endpoint: &str, url: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            url: url.to_owned(),
            version: None,
            only_cached: false,
            is_awaited: false,
            tenant: None,
        }
    }

    /// Makes a request about one version of a shard.
    #[must_use]
    pub fn of(origin: Origin) -> Self {
        let version = Some(origin.version);
        Self { version, ..Self::any_version(&origin.endpoint, &origin.url) }
    }

    /// Returns the shard in the version that the asker reads, if it names one.
    #[must_use]
    pub fn origin(&self) -> Option<Origin> {
        let (endpoint, url) = (self.endpoint.clone(), self.url.clone());
        Some(Origin { endpoint, url, version: self.version.clone()? })
    }
}

/// Part of a shard that a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// None of it.
    Absent,
    /// A part: it is arriving, or its fetch was interrupted.
    Part,
    /// All of it.
    Whole,
}

/// A request for bytes of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesRequest {
    /// The shard.
    pub shard: ShardRequest,
    /// True for blocks of the origin's object, which the node compares with their checksums before
    /// it sends them; false for bytes of the plain tar, which the asker compares.
    pub of_object: bool,
    /// First byte and length of each range.
    pub ranges: Vec<(u64, u64)>,
}

impl BytesRequest {
    /// Rejects a request for too much.
    ///
    /// # Errors
    /// `Invalid` with the limit.
    pub fn check(&self) -> Result<()> {
        let error = |what: &str, limit: u64| {
            Err(Error::new(ErrorKind::Invalid, what.to_owned()).at("limit", limit))
        };
        if self.ranges.is_empty() || self.ranges.len() > MAX_RANGES {
            return error("a request for bytes has too few or too many ranges", MAX_RANGES as u64);
        }
        let mut sum = 0_u64;
        for (start, len) in &self.ranges {
            sum = sum.saturating_add(*len);
            if *len == 0 || start.checked_add(*len).is_none() || sum > MAX_BYTES {
                return error("a request asks for no bytes or too many", MAX_BYTES);
            }
        }
        Ok(())
    }
}

/// A frame of a reply about a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing yet: the node waits for its origin.
    Waiting,
    /// Length and version of the origin's object.
    Stat(Stat),
    /// The next samples.
    Samples(IndexPart),
    /// The end of the index.
    End {
        /// Length of the plain tar.
        len: u64,
        /// True if the origin's object is not the plain tar.
        is_unpacked: bool,
    },
    /// The shard failed at the node.
    Failed(Error),
    /// The second copy of a checkpoint's file is durable.
    Kept,
}

impl Reply {
    /// Encodes the frame.
    ///
    /// # Errors
    /// `Invalid` if it is too large: a sample with too many members.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let invalid = |why: String| Error::new(ErrorKind::Invalid, why);
        let body = postcard::to_stdvec(self)
            .map_err(|error| invalid(format!("a reply does not encode: {error}")))?;
        if body.len() > MAX_FRAME {
            return Err(invalid("a sample's index is too large to be sent".to_owned())
                .at("bytes", body.len())
                .at("limit", MAX_FRAME));
        }
        let mut frame = Vec::with_capacity(FRAME_HEAD + body.len());
        // At most MAX_FRAME.
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        Ok(frame)
    }

    /// Decodes a frame without its length.
    ///
    /// # Errors
    /// `Corrupt` if it is no frame.
    pub fn decode(body: &[u8]) -> Result<Self> {
        postcard::from_bytes(body).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("a node's reply is malformed: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ranges: Vec<(u64, u64)>) -> BytesRequest {
        let shard = ShardRequest::any_version("http://127.0.0.1:9000", "s3://bucket/0.tar");
        BytesRequest { shard, of_object: false, ranges }
    }

    #[test]
    fn requests_for_too_much_are_rejected() {
        assert_eq!(request(vec![(0, 1), (u64::MAX - 8, 8)]).check(), Ok(()));
        assert_eq!(request(vec![(0, MAX_BYTES)]).check(), Ok(()));
        for ranges in [
            vec![],
            vec![(0, 0)],
            vec![(0, MAX_BYTES + 1)],
            vec![(0, MAX_BYTES), (0, 1)],
            vec![(0, u64::MAX), (0, u64::MAX)],
            vec![(u64::MAX, 1)],
            vec![(0, 1); MAX_RANGES + 1],
        ] {
            let error = request(ranges.clone()).check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{ranges:?}");
        }
    }

    #[test]
    fn frames_come_back_as_they_were() {
        let failed = Error::new(ErrorKind::NotFound, "no such object").at("url", "s3://b/0.tar");
        for reply in
            [Reply::Waiting, Reply::End { len: 10240, is_unpacked: true }, Reply::Failed(failed)]
        {
            let frame = reply.encode().unwrap();
            assert_eq!(Reply::decode(&frame[FRAME_HEAD..]).unwrap(), reply);
        }
        let error = Reply::decode(&[200, 1, 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
