//! Samples of shards and the places of their members, as the daemon found them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Index, Member, Sample};
use forebay_wire::frame::Receiver;
use forebay_wire::message::{IndexedSample, MembersPart, Reply, Request};

use crate::connection::{Connection, unexpected};
use crate::counting::{UNDER_WAY, late};
use crate::deadline::Deadline;

/// Consecutive samples of one shard.
#[derive(Debug)]
pub struct ShardPart {
    /// Number of the shard in the list.
    pub shard: usize,
    /// Length of the plain tar in bytes.
    pub bytes: u64,
    /// Version of the object, as its store reports it.
    pub version: String,
    /// Number of the first sample.
    pub first: u64,
    /// Samples of the whole shard.
    pub total: u64,
    /// The samples.
    pub index: Index,
}

impl Connection {
    /// Has the daemon index shards, several at once, on a connection used for nothing else
    /// meanwhile. `take` gets all samples, in the order of the list and of the shards, in parts of
    /// bounded size. No wait for the next part lasts longer than `limit`.
    ///
    /// # Errors
    /// `Invalid` if a shard is listed twice, or the daemon's release lists no members; the first
    /// error of a shard or of `take`; `Unavailable` with a shard that is not indexed in time;
    /// `Closed` once the daemon is gone.
    pub fn members(
        &self,
        urls: &[String],
        origin: &BTreeMap<String, String>,
        limit: Duration,
        mut take: impl FnMut(ShardPart) -> Result<()>,
    ) -> Result<()> {
        if !self.explains() {
            return Err(self.is_older("lists no members of shards"));
        }
        let numbers: HashMap<&str, usize> =
            urls.iter().enumerate().map(|(number, url)| (url.as_str(), number)).collect();
        if let Some((_, twice)) =
            urls.iter().enumerate().find(|(number, url)| numbers[url.as_str()] != *number)
        {
            let error = Error::new(ErrorKind::Invalid, "a shard is listed twice");
            return Err(error.at("url", twice).advise("a member index has each shard once"));
        }
        self.may_block(false)?;
        let ask = |number: usize, first: u64| {
            let request =
                Request::Members { url: urls[number].clone(), origin: origin.clone(), first };
            self.put(&request, &Deadline::after(limit))
        };
        let mut parts =
            Parts { connection: self, receiver: Receiver::default(), came: HashMap::new() };
        let mut asked = urls.len().min(UNDER_WAY);
        (0..asked).try_for_each(|number| ask(number, 0))?;
        for (number, url) in urls.iter().enumerate() {
            let mut first = 0;
            let mut identity = None;
            loop {
                let part = parts.of(url, limit).map_err(|error| late(error, url, limit))?;
                let this = (part.bytes, part.version.clone(), part.total);
                if *identity.get_or_insert_with(|| this.clone()) != this {
                    return Err(Error::new(ErrorKind::Unavailable, "a shard changed meanwhile")
                        .at("url", url)
                        .advise("index the shards again"));
                }
                let part = plain(number, part, first).map_err(|error| error.at("url", url))?;
                first += part.index.samples.len() as u64;
                let is_last = first >= part.total;
                if !is_last {
                    ask(number, first)?;
                } else if asked < urls.len() {
                    ask(asked, 0)?;
                    asked += 1;
                }
                take(part)?;
                if is_last {
                    break;
                }
            }
        }
        self.may_block(true)
    }
}

/// Answers in the order in which they are wanted.
struct Parts<'a> {
    connection: &'a Connection,
    receiver: Receiver,
    /// Answers that came before they were wanted.
    came: HashMap<String, MembersPart>,
}

impl Parts<'_> {
    fn of(&mut self, url: &str, limit: Duration) -> Result<MembersPart> {
        loop {
            if let Some(part) = self.came.remove(url) {
                return Ok(part);
            }
            match self.connection.take(&mut self.receiver, &Deadline::after(limit))? {
                Reply::Members(part) => drop(self.came.insert(part.url.clone(), *part)),
                Reply::Failed { error, .. } => return Err(error),
                _ => return Err(unexpected()),
            }
        }
    }
}

/// Returns the samples as an index, after checking that they are those from number `first` on.
fn plain(shard: usize, part: MembersPart, first: u64) -> Result<ShardPart> {
    let MembersPart { bytes, version, total, fields, samples, .. } = part;
    let wrong = || Error::new(ErrorKind::Invalid, "the daemon's index of a shard is inconsistent");
    let ends = first.checked_add(samples.len() as u64).filter(|end| *end <= total);
    if part.first != first || ends.is_none() || (samples.is_empty() && first < total) {
        return Err(wrong());
    }
    let mut index = Index { fields, ..Index::default() };
    for IndexedSample { key, bad, members } in samples {
        let start = u32::try_from(index.members.len()).map_err(|_| wrong())?;
        for member in members {
            if member.field as usize >= index.fields.len() {
                return Err(wrong());
            }
            let forebay_wire::message::Indexed { field, offset, len, crc32c } = member;
            offset.checked_add(len).ok_or_else(wrong)?;
            index.members.push(Member { field, offset, len, crc32c });
        }
        let own = &index.members[start as usize..];
        let (offset, end) =
            (own.first().map_or(0, |one| one.offset), own.last().map_or(0, Member::end));
        let members = start..u32::try_from(index.members.len()).map_err(|_| wrong())?;
        index.samples.push(Sample { key, offset, end, members, bad });
    }
    Ok(ShardPart { shard, bytes, version, first, total, index })
}
