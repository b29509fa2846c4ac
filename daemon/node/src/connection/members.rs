//! Samples of a shard and the places of their members, for tools that index data sets.
//!
//! An answer has a bounded number of members, so that neither side holds a whole shard's.

use forebay_error::Result;
use forebay_source::Options;
use forebay_store::{Shard, ShardHandle, Store, Urgency};
use forebay_wire::message::{Indexed, IndexedSample, MembersPart, Reply};

use super::{Connection, OTHERS, send};

/// Members of an answer, and one sample's more: about a megabyte on the wire.
const MEMBERS_MAX: usize = 32 << 10;

impl Connection {
    /// Answers with samples of a shard.
    pub(super) async fn members(&mut self, url: String, origin: Options, first: u64) -> Result<()> {
        let (store, outgoing) = (self.store.paced(self.pace.clone()), self.outgoing.clone());
        self.beside(async move {
            let reply = match whole(&store, &url, &origin).await {
                Ok(shard) => Reply::Members(Box::new(part(url, &shard, first))),
                Err(error) => Reply::Failed { run: None, error },
            };
            // A client that left does not want it any more.
            let _ = send(&outgoing, &reply).await;
        })
        .await
    }
}

/// Opens a shard whose samples are all known, fetched if need be.
pub(super) async fn whole(store: &Store, url: &str, origin: &Options) -> Result<ShardHandle> {
    let mut others = OTHERS;
    loop {
        let shard = store.shard(url, origin, Urgency::Needed).await?;
        match shard.wait(u64::MAX).await {
            Ok(_) => return Ok(shard),
            // With this client's own files there is another chance.
            Err(_) if others > 0 && store.came_through_other_client(&shard) => others -= 1,
            Err(error) => return Err(error),
        }
    }
}

/// Returns the samples of a whole shard from number `first` on, as many as an answer has.
fn part(url: String, shard: &Shard, first: u64) -> MembersPart {
    let (bytes, version) = (shard.len(), shard.version().to_owned());
    let total = shard.progress().samples;
    let index = shard.index();
    let (mut samples, mut count) = (Vec::new(), 0);
    let mut at = usize::try_from(first).unwrap_or(usize::MAX);
    while let Some(sample) = index.sample(at).filter(|_| count < MEMBERS_MAX) {
        let member = |member: &forebay_shard::Member| {
            let forebay_shard::Member { field, offset, len, crc32c } = *member;
            Indexed { field, offset, len, crc32c }
        };
        let members: Vec<_> = index.members_of(&sample).iter().map(member).collect();
        // A sample without members is not free.
        count += members.len().max(1);
        samples.push(IndexedSample { key: sample.key, bad: sample.bad, members });
        at += 1;
    }
    MembersPart { url, bytes, version, total, first, fields: index.fields().to_vec(), samples }
}
