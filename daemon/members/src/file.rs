//! A member list in a file, one line for each member.
//!
//! The file is read whole each time: a stamp of the file would miss a second change within one
//! tick of the clock. A change counts once two readings agree, because an editor that writes in
//! place leaves half a list for a moment.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use forebay_cluster::{Member, parse_members};
use forebay_error::{Doing, Error, ErrorKind, Result};
use tokio::task::JoinHandle;

use super::source::{Answer, Source};

/// Interval between two readings: a change counts within twice that.
const EVERY: Duration = Duration::from_secs(2);

/// Time for a reading: a file system that hangs freezes the list.
const WITHIN: Duration = Duration::from_secs(5);

/// Longest file: 8,192 members of 128 bytes.
const MOST: u64 = 1 << 20;

/// A file.
pub(super) struct File {
    path: PathBuf,
    /// Text that counts, and the one that was read last.
    texts: Option<(String, String)>,
    /// A reading that is not over: a hanging file system gets no second thread.
    reading: Option<JoinHandle<Result<String>>>,
}

impl File {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, texts: None, reading: None }
    }

    async fn text(&mut self) -> Result<String> {
        let path = self.path.clone();
        let reading =
            self.reading.get_or_insert_with(|| tokio::task::spawn_blocking(move || text(&path)));
        match tokio::time::timeout(WITHIN, reading).await {
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the file system does not answer")),
            Ok(read) => {
                self.reading = None;
                read.map_err(std::io::Error::other).doing("read the member list")?
            }
        }
    }
}

#[async_trait]
impl Source for File {
    async fn read(&mut self, _: &[Member]) -> Result<Answer> {
        let read = self.text().await?;
        let (counts, last) = self.texts.get_or_insert_with(|| (read.clone(), read.clone()));
        if *last == read {
            counts.clone_from(&read);
        }
        *last = read;
        Ok(Answer { members: parse_members(counts)?, ..Answer::default() })
    }

    fn interval(&self) -> Duration {
        EVERY
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }
}

/// Text of a file, which is short.
fn text(path: &Path) -> Result<String> {
    let file = fs::File::open(path).doing("open the member list")?;
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).doing("read the member list")?;
    if bytes.len() as u64 > MOST {
        let error = Error::new(ErrorKind::Invalid, "the member list is too long");
        return Err(error.at("limit", MOST));
    }
    let not_text = |_| Error::new(ErrorKind::Invalid, "the member list is not UTF-8 text");
    String::from_utf8(bytes).map_err(not_text)
}
