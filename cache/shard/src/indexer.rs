//! From a tar to its index, sample by sample, while the bytes still arrive.
//!
//! Nothing is dropped in silence. What WebDataset would skip without a word (a header
//! with a wrong checksum, an archive that stops between two members, a link without its bytes) is
//! [`ErrorKind::Corrupt`] with the offset; a sample that names a field twice keeps its position and
//! is marked bad.
//!
//! # What counts as a whole archive
//! One zero block after the last member proves that no member is missing, so one is required and
//! one is enough (writers put two and pad; some tools cut the padding). Whatever follows is
//! ignored as readers of tar do, with one exception: a valid header there means that archives were
//! joined by `cat`, and their samples would be lost, so that is an error.
//!
//! # What is read
//! Headers and long names only, through `Read + Seek`; payload is never copied. Each member's
//! checksum is asked of the source of the bytes ([`ShardBytes::crc32c`]), which can compute it
//! where the bytes already lie.

mod foreign;
mod links;
mod pax;
mod plain;
mod walk;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Read, Seek};

use forebay_error::{Error, ErrorKind, Result};

use crate::index::{Index, Member, Sample};
use crate::key::{RESERVED, field_name, split_key};
use links::{Names, Stored};
pub use plain::Plain;
use walk::{Entry, Walk, corrupt};

/// A shard's bytes, some of which may still be on their way: reads wait for them. Where the shard
/// is shorter than was thought, a read ends as at a file's end.
///
/// A `Read` or `Seek` error that wraps a [`forebay_error::Error`] (by `io::Error::other`) comes out
/// of the indexer unchanged, so a failed download keeps its kind and its place.
pub trait ShardBytes: Read + Seek {
    /// The CRC32C of `len` bytes at `offset`. The position of the reader does not matter after it.
    ///
    /// # Errors
    /// The error of the read.
    fn crc32c(&mut self, offset: u64, len: u64) -> Result<u32>;
}

/// The length of a shard that nobody knows yet: it ends where its bytes say so.
pub const UNKNOWN: u64 = u64::MAX;

/// Builds an [`Index`] and hands out each sample as soon as it is known to be complete.
pub struct Indexer<B> {
    walk: Walk<B>,
    index: Index,
    /// Each field's number, and the count of samples when it was last met: a repetition within a
    /// sample is found in one step, however many fields a hostile sample has.
    fields: HashMap<String, (u32, usize)>,
    /// Members so far, which links may name.
    names: Names,
    /// The sample whose members are still being met; its entry in `index.samples` comes last.
    open: Option<Open>,
    /// A member whose header is known already, but which belongs to the next sample.
    met: Option<Entry>,
    state: IndexerState,
}

struct Open {
    /// The key as the tar spells it. Two names that are not UTF-8 must not fold into one key.
    raw: Vec<u8>,
    first_member: u32,
    bad: Option<String>,
}

enum IndexerState {
    Members,
    Tail,
    Done,
    Failed(Error),
}

impl<B: ShardBytes> Indexer<B> {
    /// An indexer over a shard that is `len` bytes long, or [`UNKNOWN`].
    pub fn new(bytes: B, len: u64) -> Self {
        Self {
            walk: Walk::new(bytes, len),
            index: Index::default(),
            fields: HashMap::new(),
            names: Names::default(),
            open: None,
            met: None,
            state: IndexerState::Members,
        }
    }

    /// The position of the next sample in [`Index::samples`], or `None` after the last one.
    ///
    /// A sample is handed out once the header after its last member, or the archive's end, has been
    /// read; its members' checksums have been taken by then.
    ///
    /// # Errors
    /// `Corrupt` with `offset` where the archive breaks the format, `Invalid` where it is
    /// compressed, and the reader's own errors. The same error comes again if asked again.
    pub fn next_sample(&mut self) -> Result<Option<usize>> {
        let next = match &self.state {
            IndexerState::Members => self.advance(),
            IndexerState::Tail => self.walk.check_tail().map(|()| {
                self.state = IndexerState::Done;
                None
            }),
            IndexerState::Done => Ok(None),
            IndexerState::Failed(error) => Err(error.clone()),
        };
        next.inspect_err(|error| self.state = IndexerState::Failed(error.clone()))
    }

    /// Reads to the end and returns the whole index.
    ///
    /// # Errors
    /// As [`Indexer::next_sample`].
    pub fn finish(mut self) -> Result<Index> {
        while self.next_sample()?.is_some() {}
        Ok(self.index)
    }

    /// Returns the index so far: every sample handed out is in it.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    fn advance(&mut self) -> Result<Option<usize>> {
        loop {
            let entry = match self.met.take() {
                Some(entry) => entry,
                None => match self.walk.next_entry()? {
                    Some(entry) => entry,
                    None => return self.end(),
                },
            };
            let name = String::from_utf8_lossy(&entry.name);
            let Some((key, suffix)) = split_key(&name) else {
                // A link of a sample may stand for it.
                if entry.link.is_none() {
                    let stored = self.stored(&entry)?;
                    self.names.add(&entry.name, stored);
                }
                continue;
            };
            let exact = matches!(name, Cow::Borrowed(_));
            let raw = if exact { key.as_bytes() } else { raw_key(&entry.name) };
            match &self.open {
                Some(open) if open.raw == raw => {}
                // The open sample is complete: out with it, before this member's bytes are waited
                // for.
                Some(_) => {
                    drop(name);
                    self.met = Some(entry);
                    return Ok(self.close());
                }
                None => self.open(raw, key, exact, entry.offset)?,
            }
            let stored = self.stored(&entry).map_err(|error| error.at("key", key))?;
            self.names.add(&entry.name, stored);
            self.add(stored, suffix)?;
        }
    }

    /// Place and checksum of a member's data; a link's are those of the member it names.
    fn stored(&mut self, entry: &Entry) -> Result<Stored> {
        let Some(link) = &entry.link else {
            let crc32c = self.walk.bytes().crc32c(entry.offset, entry.len)?;
            return Ok(Stored { offset: entry.offset, len: entry.len, crc32c });
        };
        self.names.resolve(&entry.name, link).ok_or_else(|| {
            corrupt("a link names no earlier member of the shard", entry.offset)
                .at("member", String::from_utf8_lossy(&entry.name))
                .at("link", String::from_utf8_lossy(link.target()))
                .advise("pack files in place of links, as by `tar --dereference`")
        })
    }

    /// The archive's end has been met: the last sample is complete.
    fn end(&mut self) -> Result<Option<usize>> {
        self.state = IndexerState::Tail;
        match self.close() {
            Some(at) => Ok(Some(at)),
            None => self.next_sample(),
        }
    }

    /// Starts a sample; it becomes visible to the caller when it is closed.
    fn open(&mut self, raw: &[u8], key: &str, exact: bool, offset: u64) -> Result<()> {
        let first_member = small(self.index.members.len(), offset)?;
        let bad = (!exact).then(|| "its name is not UTF-8".to_owned());
        self.open = Some(Open { raw: raw.to_vec(), first_member, bad: None });
        self.index.samples.push(Sample {
            key: key.to_owned(),
            offset,
            end: offset,
            members: first_member..first_member,
            bad,
        });
        Ok(())
    }

    /// Adds a member to the open sample; a repeated field marks the sample and the first one stays.
    fn add(&mut self, stored: Stored, suffix: &str) -> Result<()> {
        let Stored { offset, len, crc32c } = stored;
        let name = field_name(suffix);
        let this = self.index.samples.len();
        let open = self.open.as_mut().expect("advance() opens a sample before it adds to one");
        let field = match self.fields.get_mut(&name) {
            Some((_, last)) if *last == this => {
                open.bad.get_or_insert_with(|| format!("it has the field '{name}' twice"));
                return Ok(());
            }
            Some((field, last)) => {
                *last = this;
                *field
            }
            None => {
                let field = small(self.fields.len(), offset)?;
                self.index.fields.push(name.clone());
                self.fields.insert(name.clone(), (field, this));
                field
            }
        };
        if RESERVED.contains(&name.as_str()) {
            open.bad.get_or_insert_with(|| format!("its field '{name}' has a reserved name"));
        }
        self.index.members.push(Member { field, offset, len, crc32c });
        small(self.index.members.len(), offset)?;
        Ok(())
    }

    /// Completes the open sample, if there is one, and returns its position.
    fn close(&mut self) -> Option<usize> {
        let open = self.open.take()?;
        let sample = self.index.samples.last_mut()?;
        let end = self.index.members.len() as u32;
        sample.members = open.first_member..end;
        let own = &self.index.members[open.first_member as usize..];
        sample.offset = own.first().map_or(sample.offset, |first| first.offset);
        sample.end = own.last().map_or(sample.offset, Member::end);
        sample.bad = sample.bad.take().or(open.bad);
        Some(self.index.samples.len() - 1)
    }
}

/// The key's bytes of a name that is not UTF-8: up to the base name's first dot.
fn raw_key(name: &[u8]) -> &[u8] {
    let base = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let dot = name[base..].iter().position(|&byte| byte == b'.').map_or(name.len(), |at| base + at);
    &name[..dot]
}

/// A count as the index stores it.
fn small(count: usize, offset: u64) -> Result<u32> {
    u32::try_from(count).map_err(|_| {
        Error::new(ErrorKind::Invalid, "a shard may have at most 4294967295 members")
            .at("offset", offset)
            .advise("split the shard")
    })
}
