//! Index of a shard, built while it arrives.

use forebay_error::{ErrorKind, Result};
use forebay_shard::Indexer;

use super::bytes::FillBytes;
use crate::parts::Parts;
use crate::shard::Growth;

/// Indexes in order, and adds each sample to `growth` as soon as it is complete.
pub(super) fn index(bytes: FillBytes, parts: &Parts, growth: &Growth) -> Result<()> {
    // The first part shows whether the length is known.
    parts.wait(0)?;
    let mut indexer = Indexer::new(bytes, parts.len());
    let indexed = loop {
        match indexer.next_sample() {
            Ok(Some(at)) => growth.add(indexer.index(), at),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    match indexed {
        // A reader that learns the count only at the end must not miss wrong bytes.
        Ok(()) => {
            parts.move_indexer(u64::MAX);
            parts.wait_compared()?;
            // The tar may end before the stream does, and so before the stream's fault.
            parts.broken()?;
            growth.complete(indexer.index(), parts.len());
        }
        // A damaged stream may unpack to a malformed tar. Only the end of the stream shows which of
        // the two is broken, and whether its samples are good.
        Err(error) if error.kind() == ErrorKind::Corrupt && growth.is_unpacked() => {
            drop(indexer);
            parts.drain()?;
            return Err(error);
        }
        // The bytes of a malformed tar may have been changed on the way. The origin's checksum
        // tells, if there is one.
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            drop(indexer);
            parts.move_indexer(u64::MAX);
            parts.wait_compared()?;
            return Err(error);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
