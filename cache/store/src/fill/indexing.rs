//! Index of a shard, built while it arrives.
//!
//! The indexer blocks for parts, so it has a thread. A small shard that comes as one part has
//! nothing to wait for: it is indexed by the task of its fill, without a switch to a thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Indexer;

use super::bytes::FillBytes;
use super::{Fill, FillSize};
use crate::parts::Parts;
use crate::shard::Growth;

impl Fill {
    /// Indexes in order, and adds each sample to the growth as soon as it is complete.
    ///
    /// # Errors
    /// `Corrupt` for a malformed tar; the error of the fill if it fails.
    pub(super) async fn index(&self) -> Result<()> {
        let comes_at_once = self.size() == FillSize::Small && self.parts.comes_at_once().await;
        let indexed = match comes_at_once {
            true => self.index_here().await,
            false => self.index_on_a_thread().await,
        };
        match indexed {
            // The indexer needs no more bytes; the rest only has to be written.
            Ok(()) => {
                self.parts.move_indexer(u64::MAX);
                Ok(())
            }
            // The transfer must not wait for an indexer that has stopped.
            Err(error) => {
                let error = error.at("url", self.url());
                self.parts.fail(&error);
                Err(error)
            }
        }
    }

    async fn index_on_a_thread(&self) -> Result<()> {
        let (parts, growth) = (self.parts.clone(), self.growth.clone());
        let indexing = tokio::task::spawn_blocking(move || index(&parts, &growth));
        indexing.await.map_err(|_| stopped())?
    }

    /// Indexes a shard whose bytes are all in memory: 256 KiB at most take less than a millisecond.
    async fn index_here(&self) -> Result<()> {
        let work = AssertUnwindSafe(|| scan(&self.parts, &self.growth));
        let scanned = catch_unwind(work).unwrap_or_else(|_| Err(stopped()));
        if needs_comparison(&scanned) {
            self.parts.move_indexer(u64::MAX);
            self.parts.compared().await?;
        }
        complete(scanned, &self.parts, &self.growth)
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Corrupt, "the indexer stopped on this shard")
}

/// Indexes a shard, and blocks until its parts are here.
fn index(parts: &Arc<Parts>, growth: &Growth) -> Result<()> {
    // The first part shows whether the length is known.
    parts.wait(0)?;
    let scanned = scan(parts, growth);
    match &scanned {
        // A damaged stream may unpack to a malformed tar. Only the end of the stream shows which of
        // the two is broken, and whether its samples are good.
        Err(error) if error.kind() == ErrorKind::Corrupt && growth.is_unpacked() => {
            parts.drain()?;
        }
        _ if needs_comparison(&scanned) => {
            parts.move_indexer(u64::MAX);
            parts.wait_compared()?;
        }
        _ => {}
    }
    complete(scanned, parts, growth)
}

/// Indexes up to the end of the archive.
fn scan(parts: &Arc<Parts>, growth: &Growth) -> Result<Indexer<FillBytes>> {
    let mut indexer = Indexer::new(FillBytes::new(parts.clone()), parts.len());
    while let Some(at) = indexer.next_sample()? {
        growth.add(indexer.index(), at);
    }
    Ok(indexer)
}

/// Returns true if the outcome counts only once all bytes are compared with the origin's checksum.
/// A reader that learns the count only at the end must not miss wrong bytes, and the bytes of a
/// malformed tar may have been changed on the way.
fn needs_comparison(scanned: &Result<Indexer<FillBytes>>) -> bool {
    scanned.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::Corrupt)
}

/// Completes the index of a shard whose end was seen.
fn complete(scanned: Result<Indexer<FillBytes>>, parts: &Parts, growth: &Growth) -> Result<()> {
    let indexer = scanned?;
    // The tar may end before the stream does, and so before the stream's fault.
    parts.broken()?;
    growth.complete(indexer.index(), parts.len());
    Ok(())
}
