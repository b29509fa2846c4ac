//! Second copies of other nodes' files on this one.
//!
//! A copy is none of this node's files: it is not uploaded, and no wait is for it. It goes once its
//! home says that the file is in the store or was removed. It becomes a file of this node, which
//! is uploaded and published from here, if its home stays away or lost its own copy. Two nodes may
//! bring the same file: its objects have the same names and bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use forebay_checkpoint::{BLOCK_BYTES, LEFTOVER, Progress, Record};
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_peer_server::Replicas;
use forebay_peers::Peers;
use forebay_peers::replicas::{FileBytes, FileState, FilesAsked, KeepFile, MAX_FILES_ASKED};
use forebay_shard::checksum::crc32c;
use forebay_source::Options;
use forebay_uring::{GRANULE, Span};
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use crate::clock::now_ms;
use crate::registry::{Registry, Tracked};
use crate::unsealed::Unsealed;
use crate::{Inner, Tasks, checked_url};

/// Files copied at once: one fills a link, the other one's disk syncs meanwhile.
const COPIES: usize = 2;

/// Blocks of a file in flight: 16 MiB, which fill 10 Gbit/s at 10 ms.
const BLOCKS_AT_ONCE: usize = 4;

/// Period of questions to the homes of copies. A question is a kilobyte, and its answer frees the
/// room of files that are in the store.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Time after which a home that does not answer counts as lost. A node that restarts, or whose
/// daemon is updated, is back sooner.
const LOST_AFTER: Duration = Duration::from_secs(600);

/// Copies that this node keeps.
pub(crate) struct Keeping {
    files: Registry,
    turns: Semaphore,
    /// Homes that do not answer, and since when.
    silent: Mutex<HashMap<String, Instant>>,
}

impl Default for Keeping {
    fn default() -> Self {
        Self { files: Registry::default(), turns: Semaphore::new(COPIES), silent: Mutex::default() }
    }
}

/// Further fate of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    Drop,
    TakeOver,
}

/// Judges a copy by its home's answer, or by the time for which that has been silent.
fn judge(answer: std::result::Result<FileState, Duration>, age: Duration) -> Verdict {
    match answer {
        Ok(FileState::OnItsWay) => Verdict::Keep,
        Ok(FileState::Done) => Verdict::Drop,
        Ok(FileState::Damaged) => Verdict::TakeOver,
        // Its home restarted after it removed the file, or lost its disk: to bring it to the store
        // now could replace something newer.
        Ok(FileState::Unknown) if age < LEFTOVER => Verdict::Keep,
        Ok(FileState::Unknown) => Verdict::Drop,
        Err(silent) if silent < LOST_AFTER => Verdict::Keep,
        Err(_) => Verdict::TakeOver,
    }
}

impl Keeping {
    pub(crate) fn files(&self) -> &Registry {
        &self.files
    }

    /// Returns the time for which a home has not answered.
    fn silence(&self, home: &str, answers: bool, now: Instant) -> Duration {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if answers {
            silent.remove(home);
            return Duration::ZERO;
        }
        now.duration_since(*silent.entry(home.to_owned()).or_insert(now))
    }
}

impl Inner {
    /// Keeps the second copy of a file of another node. Returns once it is durable.
    async fn keep_copy(&self, home: &str, request: KeepFile) -> Result<()> {
        self.resumed.wait().await;
        let record = Record::decode(request.record.as_bytes())?;
        let (id, url) = (record.id, checked_url(&request.url)?);
        if record.url != url || record.home.is_some() || record.progress != Progress::Staged {
            let what = "the record is not that of a file to keep";
            return Err(Error::new(ErrorKind::Invalid, what).at("url", url).at("id", id));
        }
        let record = Record { home: Some(home.to_owned()), ..record };
        let _turn = self.keeping.turns.acquire().await.map_err(|_| Error::shutting_down())?;
        // Kept before, or taken over since.
        if let Some(here) = self.keeping.files.get(id).or_else(|| self.registry.get(id)) {
            let is_same = here.record().blocks == record.blocks;
            let other =
                || Error::new(ErrorKind::Invalid, "another file with this identity is here");
            return is_same.then_some(()).ok_or_else(|| other().at("id", id));
        }
        let file = self.stage(&url, id, record.len).await?;
        self.copy(self.peers()?, (home, &record), &file).await?;
        let (len, bytes, options) = (record.len, record.encode()?, Options::from(request.origin));
        file.seal(len, bytes, |file| self.keeping.files.add(file, record, options)).await?;
        Ok(())
    }

    /// Copies the blocks of a file, each compared with the checksum that its writer took.
    async fn copy(
        &self,
        peers: &Peers,
        (home, record): (&str, &Record),
        to: &Unsealed,
    ) -> Result<()> {
        let id = record.id.to_string();
        let copy = |(number, wanted): (u64, &u32)| {
            let (id, wanted, start) = (id.clone(), *wanted, number * BLOCK_BYTES);
            let work = async move {
                let len = BLOCK_BYTES.min(record.len - start);
                let bytes = usize::try_from(len).unwrap_or(usize::MAX);
                // The file is cut to its length when it is sealed.
                let padded = bytes.next_multiple_of(GRANULE);
                let mut span = self.store.frames().lease(padded).await?;
                let (block, rest) = span.split_at_mut(bytes);
                peers.file_bytes(home, &FileBytes { id, start, len }, block).await?;
                if crc32c(block) != wanted {
                    let what = "a block of the file differs from what was saved";
                    return Err(Error::new(ErrorKind::Corrupt, what)
                        .at("url", &record.url)
                        .at("name", &record.name)
                        .at("node", home)
                        .at("offset", start));
                }
                rest.fill(0);
                to.write_copy(start, span).await
            };
            work.boxed()
        };
        let copied: Vec<_> = (0..).zip(&record.blocks).map(copy).collect();
        futures::stream::iter(copied).buffer_unordered(BLOCKS_AT_ONCE).try_collect().await
    }

    /// Asks the homes of all copies what becomes of them.
    pub(crate) async fn look_after_copies(self: &Arc<Self>, tasks: &Weak<Tasks>) {
        let mut by_home: HashMap<String, Vec<Arc<Tracked>>> = HashMap::new();
        for file in self.keeping.files.select(|_| true) {
            let home = file.record().home.clone().unwrap_or_default();
            by_home.entry(home).or_default().push(file);
        }
        for (home, files) in by_home {
            for some in files.chunks(MAX_FILES_ASKED) {
                self.look_after_copies_of(&home, some, tasks).await;
            }
        }
    }

    async fn look_after_copies_of(
        self: &Arc<Self>,
        home: &str,
        files: &[Arc<Tracked>],
        tasks: &Weak<Tasks>,
    ) {
        let ids = files.iter().map(|file| file.record().id.to_string()).collect();
        let answers = async { self.peers()?.file_states(home, &FilesAsked { ids }).await }.await;
        let silent = self.keeping.silence(home, answers.is_ok(), Instant::now());
        if let Err(error) = &answers {
            tracing::debug!(home, %error, "the home of second copies does not answer");
        }
        for (at, file) in files.iter().enumerate() {
            let record = file.record();
            let age = Duration::from_millis(now_ms().saturating_sub(record.staged_at_ms));
            let answer = answers.as_ref().map(|states| states[at]).map_err(|_| silent);
            let done = match judge(answer, age) {
                Verdict::Keep => Ok(()),
                Verdict::Drop => self.keeping.files.remove(file).await,
                Verdict::TakeOver => self.take_over(file, tasks).await,
            };
            if let Err(error) = done {
                let (url, name) = (shown(&record.url), record.name.as_str());
                tracing::warn!(url, name, home, %error, "a second copy stays as it is");
            }
        }
    }

    /// Makes a copy a file of this node, and begins to bring it to the store.
    async fn take_over(self: &Arc<Self>, file: &Tracked, tasks: &Weak<Tasks>) -> Result<()> {
        let record = file.record();
        let Some(tasks) = tasks.upgrade() else { return Err(Error::shutting_down()) };
        let own = Record { home: None, ..(*record).clone() };
        let bytes = own.encode()?;
        // It counts while neither list has it.
        let claim = self.claims.begin(&record.url, record.len);
        if !self.keeping.files.take(file).await {
            return Ok(());
        }
        let (staged, options) = (file.file.clone(), file.options());
        if let Err(error) = file.file.save_record(bytes).await {
            claim.end_with(|| self.keeping.files.add(staged, (*record).clone(), options));
            return Err(error);
        }
        let (url, name, home) = (shown(&record.url), record.name.as_str(), record.home.as_deref());
        tracing::warn!(url, name, home, "this node brings the file of another one to the store");
        let tracked = claim.end_with(|| self.registry.add(staged, own, options));
        tasks.upload(self, tracked);
        Ok(())
    }

    /// Makes all copies of a checkpoint files of this node. Returns the first failure.
    pub(crate) async fn take_over_all(
        self: &Arc<Self>,
        url: &str,
        tasks: &Weak<Tasks>,
    ) -> Result<()> {
        for file in self.keeping.files.select(|record| record.named_url() == url) {
            self.take_over(&file, tasks).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Replicas for Inner {
    async fn keep(&self, home: &str, request: KeepFile) -> Result<()> {
        self.keep_copy(home, request).await
    }

    async fn read(&self, member: &str, asked: &FileBytes, into: Span) -> Result<Span> {
        self.read_for(member, asked, into).await
    }

    fn states(&self, asked: &FilesAsked) -> Vec<FileState> {
        self.states_of(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn copies_go_by_the_word_of_their_home() {
        for age in [Duration::ZERO, 2 * LEFTOVER] {
            assert_eq!(judge(Ok(FileState::OnItsWay), age), Verdict::Keep);
            assert_eq!(judge(Ok(FileState::Done), age), Verdict::Drop);
            assert_eq!(judge(Ok(FileState::Damaged), age), Verdict::TakeOver);
        }
        assert_eq!(judge(Ok(FileState::Unknown), MINUTE), Verdict::Keep);
        assert_eq!(judge(Ok(FileState::Unknown), LEFTOVER), Verdict::Drop);
    }

    #[test]
    fn copies_of_a_lost_home_are_taken_over() {
        for age in [Duration::ZERO, 2 * LEFTOVER] {
            assert_eq!(judge(Err(LOST_AFTER - MINUTE), age), Verdict::Keep);
            assert_eq!(judge(Err(LOST_AFTER), age), Verdict::TakeOver);
        }
    }

    #[test]
    fn silence_of_a_home_begins_anew_after_an_answer() {
        let (keeping, begin) = (Keeping::default(), Instant::now());
        let silence =
            |home, answers, minutes| keeping.silence(home, answers, begin + minutes * MINUTE);
        assert_eq!(silence("a", false, 0), Duration::ZERO);
        assert_eq!(silence("a", false, 1), MINUTE);
        assert_eq!(silence("b", false, 1), Duration::ZERO);
        assert_eq!(silence("a", true, 1), Duration::ZERO);
        assert_eq!(silence("a", false, 2), Duration::ZERO);
        assert_eq!(silence("b", false, 2), MINUTE);
    }
}
