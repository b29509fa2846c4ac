//! Objects of a store that are read by ranges, through a daemon: manifests and member indexes.
//!
//! Several requests are under way at once, so that reads of many places take one round trip. Bytes
//! that are read one after the other come in longer reads.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::members::ReadAt;
use forebay_wire::frame::Receiver;
use forebay_wire::message::{RangePart, Reply, Request};

use crate::address::Address;
use crate::connection::{Connection, unexpected};
use crate::deadline::Deadline;

/// Bytes of an answer at most: a part of the daemon's memory for fetches.
const PART: u64 = 1 << 20;

/// Requests under way at once: as many as a daemon works on for one client.
const UNDER_WAY: usize = 8;

/// Longest run that is read as a whole for one of its blocks. It costs less than a second round
/// trip at 10 ms and 25 MB/s.
const AT_ONCE: u64 = 256 << 10;

/// Bytes that are read ahead where reads follow each other: what is under way at once.
const AHEAD: u64 = UNDER_WAY as u64 * PART;

/// Way to a daemon that reads objects.
#[derive(Debug, Clone)]
pub struct RemoteReads {
    /// Address of the daemon.
    pub address: Address,
    /// Endpoint and credentials to reach the store.
    pub origin: BTreeMap<String, String>,
    /// Limit of the wait for an answer.
    pub limit: Duration,
}

/// An object of one version.
pub(crate) struct RemoteObject {
    url: String,
    len: u64,
    version: String,
    state: Mutex<State>,
}

struct State {
    reads: RemoteReads,
    /// None after an error: what comes on it may be late answers.
    connection: Option<Connection>,
    /// Bytes that were read last, and their place.
    last: (u64, Vec<u8>),
}

impl RemoteObject {
    /// Opens the object at `url` in the version that it has now.
    ///
    /// # Errors
    /// `NotFound` if there is none; the error of the store or of the daemon.
    pub(crate) fn open(url: &str, reads: RemoteReads) -> Result<Self> {
        let mut state = State { reads, connection: None, last: (0, Vec::new()) };
        let mut parts = state.ask(url, None, &[(0, 0)])?;
        let RangePart { len, version, .. } = parts.pop().ok_or_else(unexpected)?;
        Ok(Self { url: url.to_owned(), len, version, state: Mutex::new(state) })
    }

    /// Reads all of it, if it has `most` bytes at most.
    ///
    /// # Errors
    /// `Invalid` for a longer one; the error of the store or of the daemon.
    pub(crate) fn whole(&self, most: u64) -> Result<Vec<u8>> {
        if self.len > most {
            return Err(Error::new(ErrorKind::Invalid, "the file is too long")
                .at("url", &self.url)
                .at("bytes", self.len)
                .at("limit", most));
        }
        // Not more than the limit.
        let mut bytes = vec![0; self.len as usize];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl ReadAt for RemoteObject {
    fn bytes(&self) -> Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = into.len() as u64;
        let follows = at == state.last.0 + state.last.1.len() as u64 && at > 0;
        if !state.has(at, wanted) && (follows || state.has(at, 1)) && wanted < AHEAD {
            let len = AHEAD.min(self.len.saturating_sub(at)).max(wanted);
            let mut ahead = vec![0; usize::try_from(len).map_err(|_| unexpected())?];
            state.fill(self, &mut [(at, &mut ahead)])?;
            state.last = (at, ahead);
        }
        if state.has(at, wanted) {
            // It lies in what was read last.
            let from = (at - state.last.0) as usize;
            into.copy_from_slice(&state.last.1[from..from + into.len()]);
            return Ok(());
        }
        state.fill(self, &mut [(at, &mut *into)])?;
        if wanted <= PART {
            state.last = (at, into.to_vec());
        }
        Ok(())
    }

    fn read_all(&self, pieces: &mut [(u64, Vec<u8>)]) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pieces: Vec<_> =
            pieces.iter_mut().map(|(at, into)| (*at, into.as_mut_slice())).collect();
        state.fill(self, &mut pieces)
    }

    fn at_once(&self) -> u64 {
        AT_ONCE
    }
}

impl State {
    /// Returns true if these bytes were read last.
    fn has(&self, at: u64, len: u64) -> bool {
        let (start, bytes) = &self.last;
        at >= *start && at.saturating_add(len) <= start + bytes.len() as u64
    }

    /// Fills pieces, in parts of which several are under way at once.
    fn fill(&mut self, object: &RemoteObject, pieces: &mut [(u64, &mut [u8])]) -> Result<()> {
        let ends = |(at, into): &(u64, &mut [u8])| at.checked_add(into.len() as u64);
        if pieces.iter().any(|piece| ends(piece).is_none_or(|end| end > object.len)) {
            return Err(Error::new(ErrorKind::Corrupt, "the file ends early")
                .at("url", &object.url)
                .at("bytes", object.len));
        }
        let mut parts: Vec<(u64, &mut [u8])> = Vec::new();
        for (at, into) in pieces.iter_mut() {
            let starts = (*at..).step_by(PART as usize);
            parts.extend(starts.zip(into.chunks_mut(PART as usize)));
        }
        let asked: Vec<_> = parts.iter().map(|(at, into)| (*at, into.len() as u64)).collect();
        let came = self.ask(&object.url, Some(&object.version), &asked)?;
        for ((_, into), part) in parts.into_iter().zip(came) {
            if part.bytes.len() != into.len() {
                return Err(unexpected());
            }
            into.copy_from_slice(&part.bytes);
        }
        Ok(())
    }

    /// Asks for ranges; a daemon that went away is replaced once.
    fn ask(
        &mut self,
        url: &str,
        version: Option<&str>,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<RangePart>> {
        let had_one = self.connection.is_some();
        match self.try_ask(url, version, ranges) {
            Err(error) if had_one && error.kind() == ErrorKind::Closed => {
                self.try_ask(url, version, ranges)
            }
            asked => asked,
        }
    }

    fn try_ask(
        &mut self,
        url: &str,
        version: Option<&str>,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<RangePart>> {
        let limit = self.reads.limit;
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.reads.address.connect(&Deadline::after(limit))?;
                if !connection.explains() {
                    return Err(connection.is_older("reads no ranges of files"));
                }
                connection
            }
        };
        connection.may_block(false)?;
        let parts = self.exchange(&connection, (url, version), ranges)?;
        self.connection = Some(connection);
        Ok(parts)
    }

    fn exchange(
        &self,
        connection: &Connection,
        (url, version): (&str, Option<&str>),
        ranges: &[(u64, u64)],
    ) -> Result<Vec<RangePart>> {
        let limit = self.reads.limit;
        let ask = |number: usize| {
            let (at, len) = ranges[number];
            let (url, origin) = (url.to_owned(), self.reads.origin.clone());
            let (number, version) = (number as u64, version.map(str::to_owned));
            let request = Request::Range { number, url, origin, version, at, len };
            connection.put(&request, &Deadline::after(limit))
        };
        let mut waiting = 0..ranges.len();
        for number in waiting.by_ref().take(UNDER_WAY) {
            ask(number)?;
        }
        let mut receiver = Receiver::default();
        let mut came: HashMap<u64, RangePart> = HashMap::with_capacity(ranges.len());
        while came.len() < ranges.len() {
            match connection.take(&mut receiver, &Deadline::after(limit))? {
                Reply::Range(part) => drop(came.insert(part.number, *part)),
                Reply::Failed { error, .. } => return Err(error),
                _ => return Err(unexpected()),
            }
            if let Some(number) = waiting.next() {
                ask(number)?;
            }
        }
        let part = |number: usize| came.remove(&(number as u64)).ok_or_else(unexpected);
        (0..ranges.len()).map(part).collect()
    }
}
