//! The lease log of one queue in a file: the queue as it was, and a line for each entry since.
//!
//! It is there for a daemon that is killed, not for a power cut: whoever would go on from
//! it is gone with the machine, and comes back with a state of its own. So nothing is synced; each
//! line has a checksum, and a file is believed up to the first line that is not whole.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_engine::lease::{Entry, Queue};
use forebay_error::{Doing, Result};
use forebay_shard::checksum::crc32c;

/// Bytes of entries after which the queue itself is noted, and they are not needed any more.
const LOG_MAX: u64 = 1 << 20;

/// A queue's file.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Log {
    /// Begins the file anew with `queue` as it is.
    pub(super) fn begin(path: &Path, queue: &Queue) -> Result<Self> {
        let head = line(&serde_json::to_string(queue).expect("numbers and strings always encode"));
        let new = path.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new).doing("begin a lease log")?;
        file.write_all(head.as_bytes()).doing("begin a lease log")?;
        std::fs::rename(&new, path).doing("begin a lease log")?;
        Ok(Self { path: path.to_owned(), file, bytes: 0 })
    }

    /// Notes what was done with `queue`.
    pub(super) fn add(&mut self, entries: &[Entry], queue: &Queue) -> Result<()> {
        if self.bytes > LOG_MAX {
            *self = Self::begin(&self.path, queue)?;
            return Ok(());
        }
        let encode = |entry: &Entry| line(&serde_json::to_string(entry).expect("it encodes"));
        let lines: String = entries.iter().map(encode).collect();
        self.file.write_all(lines.as_bytes()).doing("write a lease log")?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    /// The queue that a file's lines come to; `None` if there is none.
    pub(super) fn read(path: &Path) -> Result<Option<Queue>> {
        let text = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.doing("read a lease log")?,
        };
        let mut lines = text.split_inclusive(|byte| *byte == b'\n').map_while(whole);
        let queue = lines.next().and_then(|head| serde_json::from_slice::<Queue>(head).ok());
        let Some(mut queue) = queue else {
            tracing::warn!(path = %path.display(), "ignored an incomplete lease log");
            return Ok(None);
        };
        for entry in lines.map_while(|entry| serde_json::from_slice(entry).ok()) {
            queue.apply(&entry);
        }
        Ok(Some(queue))
    }
}

fn line(json: &str) -> String {
    format!("{:08x} {json}\n", crc32c(json.as_bytes()))
}

/// Returns the content of a line, if it is complete.
fn whole(line: &[u8]) -> Option<&[u8]> {
    let (sum, json) = line.strip_suffix(b"\n")?.split_at_checked(8)?;
    let json = json.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == crc32c(json)).then_some(json)
}

#[cfg(test)]
mod tests {
    use forebay_engine::lease::Joining;

    use super::*;

    fn queue() -> Queue {
        let who = Joining {
            member: 1,
            rank: 0,
            world_size: 1,
            shards: 9,
            from: None,
            log: None,
            acknowledged: Vec::new(),
            received: Vec::new(),
            fresh: "name".to_owned(),
        };
        let mut slot = None;
        Queue::join(&mut slot, &who, 0, None).unwrap();
        let mut queue = slot.unwrap();
        queue.entries();
        queue
    }

    fn steps() -> Vec<Entry> {
        vec![
            Entry::Taken { turn: 0, by: 1 },
            Entry::Done { turn: 0, upto: 4 },
            Entry::Taken { turn: 1, by: 1 },
            Entry::Counted { turn: 0, samples: 4 },
        ]
    }

    /// A log cut off or changed at any byte has the state of its whole lines before.
    #[test]
    fn log_is_read_up_to_its_first_damaged_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.log");
        assert_eq!(Log::read(&path).unwrap(), None);
        let mut queue = queue();
        let mut log = Log::begin(&path, &queue).unwrap();
        let head = std::fs::metadata(&path).unwrap().len();
        let mut places = vec![(head, queue.place())];
        for step in steps() {
            queue.apply(&step);
            log.add(std::slice::from_ref(&step), &queue).unwrap();
            places.push((std::fs::metadata(&path).unwrap().len(), queue.place()));
        }
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            let place = |at: usize| {
                let known = places.iter().rev().find(|(len, _)| *len <= at as u64);
                known.map(|(_, place)| place.clone())
            };
            let read = || Log::read(&path).unwrap().map(|queue| queue.place());
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read(), place(cut), "cut at {cut}");
            if let Some(byte) = whole.get(cut) {
                let mut wrong = whole.clone();
                wrong[cut] = byte ^ 1;
                std::fs::write(&path, wrong).unwrap();
                assert_eq!(read(), place(cut), "changed at {cut}");
            }
        }
    }

    #[test]
    fn long_log_is_rewritten_without_loss() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.log");
        let mut queue = queue();
        let mut log = Log::begin(&path, &queue).unwrap();
        queue.apply(&Entry::Taken { turn: 0, by: 1 });
        log.add(&[Entry::Taken { turn: 0, by: 1 }], &queue).unwrap();
        for upto in 1..40_000 {
            let step = Entry::Done { turn: 0, upto };
            queue.apply(&step);
            log.add(&[step], &queue).unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() < LOG_MAX + (1 << 16));
        assert_eq!(Log::read(&path).unwrap().unwrap().place(), queue.place());
    }
}
