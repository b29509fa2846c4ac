//! Samples come out while the rest of the shard is still on its way.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Indexer, ShardBytes, checksum};

/// The first `there` bytes of a shard; asking for more fails with the origin's own error.
struct Arriving<'a> {
    tar: Cursor<&'a [u8]>,
    there: u64,
}

impl Arriving<'_> {
    fn wait_for(&self, end: u64) -> Result<()> {
        if end <= self.there {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the origin went away").at("url", "s3://b/x.tar"))
    }
}

impl Read for Arriving<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let end = self.tar.position() + into.len() as u64;
        self.wait_for(end).map_err(io::Error::other)?;
        self.tar.read(into)
    }
}

impl Seek for Arriving<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.tar.seek(to)
    }
}

impl ShardBytes for Arriving<'_> {
    fn crc32c(&mut self, offset: u64, len: u64) -> Result<u32> {
        self.wait_for(offset + len)?;
        Ok(checksum::crc32c(&self.tar.get_ref()[offset as usize..(offset + len) as usize]))
    }
}

fn tar(samples: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for i in 0..samples {
        for field in ["jpg", "cls"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(100);
            builder.append_data(&mut header, format!("{i:04}.{field}"), &[7; 100][..]).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

#[test]
fn sample_is_complete_once_the_next_header_arrives() {
    let tar = tar(10);
    // Each sample takes four blocks; the header after it is needed to know that it is complete.
    for whole in 0..10u64 {
        let there = whole * 4 * 512 + 512;
        let mut indexer =
            Indexer::new(Arriving { tar: Cursor::new(&tar), there }, tar.len() as u64);
        for sample in 0..whole {
            assert_eq!(indexer.next_sample().unwrap(), Some(sample as usize), "{there}");
            let sample = &indexer.index().samples[sample as usize];
            assert_eq!(sample.members.len(), 2);
            assert!(sample.end <= there);
        }
        // The origin's own error comes out whole, and comes again.
        for _ in 0..2 {
            let error = indexer.next_sample().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.place("url"), Some("s3://b/x.tar"));
        }
    }
}

#[test]
fn last_sample_is_complete_at_the_first_end_block() {
    let tar = tar(1);
    let there = 4 * 512 + 512;
    let mut indexer = Indexer::new(Arriving { tar: Cursor::new(&tar), there }, tar.len() as u64);
    assert_eq!(indexer.next_sample().unwrap(), Some(0));
    // The second end block is not there yet.
    assert_eq!(indexer.next_sample().unwrap_err().kind(), ErrorKind::Unavailable);
}
