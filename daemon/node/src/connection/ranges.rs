//! Ranges of objects that are no shards: manifests and member indexes in a store.
//!
//! They pass the checks of every URL that a client names, and are read past the cache: of an index
//! of gigabytes a job needs its directory, and some blocks.

use forebay_error::Result;
use forebay_source::Options;
use forebay_store::ObjectRange;
use forebay_wire::message::{RangePart, Reply};

use super::{Connection, send};

/// A range that a client asks for.
pub(super) struct RangeRequest {
    pub(super) number: u64,
    pub(super) url: String,
    pub(super) version: Option<String>,
    pub(super) at: u64,
    pub(super) len: u64,
}

impl Connection {
    /// Answers with a range.
    pub(super) async fn range(&mut self, wanted: RangeRequest, origin: Options) -> Result<()> {
        let (store, outgoing) = (self.store.clone(), self.outgoing.clone());
        self.beside(async move {
            let RangeRequest { number, url, version, at, len } = wanted;
            let range = at..at.saturating_add(len);
            let reply = match store.read_range(&url, &origin, version.as_deref(), range).await {
                Ok(ObjectRange { len, version, bytes }) => {
                    Reply::Range(Box::new(RangePart { number, len, version, bytes }))
                }
                Err(error) => Reply::Failed { run: None, error },
            };
            // A client that left does not want it any more.
            let _ = send(&outgoing, &reply).await;
        })
        .await
    }
}
