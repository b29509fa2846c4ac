//! Checkpoints of one client: the lent memory, the file that it writes or reads, its waits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_checkpoint::{Commit, FileId, Level, METADATA};
use forebay_checkpoints::{Loading, Saving, Writer};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Options;
use forebay_uring::LentRegion;
use forebay_wire::checkpoint as wire;
use forebay_wire::checkpoint::{Block, Place, Save};
use forebay_wire::frame;
use forebay_wire::message::Reply;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Connection, Outgoing, Rider};
use crate::audit::Entry;

/// Most memory lent to a client: sixteen blocks, so that it fills some while the disk writes
/// others. A shorter file gets as much as it needs.
const LENT: usize = 64 << 20;

/// Lent memory that is backed at a time: the client fills one block of it while the disk has the
/// other.
const BACKED_AT_ONCE: usize = 2 * wire::BLOCK as usize;

/// Memory lent for a `.metadata`, whose length is unknown: most have less than a block, and four of
/// them keep a disk busy.
const LENT_FOR_METADATA: u64 = 4 * wire::BLOCK;

/// Time that a client waits for memory of others: that of a client that just left is free within a
/// moment, and a training run must hear of a lack soon.
const LENDS_WITHIN: Duration = Duration::from_secs(30);

/// A client's checkpoint.
#[derive(Default)]
pub(super) struct Client {
    lent: Option<Arc<LentRegion>>,
    saving: Option<Arc<Saving>>,
    loading: Option<Arc<Loading>>,
    /// Blocks under way; as many as fit the lent memory, by the client's own account.
    blocks: JoinSet<()>,
    /// First failure of a block.
    failed: Arc<Mutex<Option<Error>>>,
    /// Questions about places, each of which may wait for long.
    questions: JoinSet<()>,
}

/// Questions of a client that wait for their answers at once. A client of ours has one.
const QUESTIONS: usize = 8;

/// Blocks that the disk reads for a client at once, at most: a client names none twice, so more are
/// none of ours.
const READ_AT_ONCE: usize = LENT / wire::BLOCK as usize;

/// Blocks that the disk writes for a client at once: half, so that the client fills the others
/// meanwhile. A virtual disk may answer to all that it has at one time.
const WRITTEN_AT_ONCE: usize = READ_AT_ONCE / 2;

impl Connection {
    /// Serves a request about checkpoints. A failure is told; the connection lives on.
    pub(super) async fn checkpoint(&mut self, request: wire::Request) -> Result<()> {
        let served = match request {
            wire::Request::Save(save) => self.save(save).await,
            wire::Request::Write(block) => self.write_block(block).await,
            wire::Request::Seal { len, commit } => self.seal(len, commit).await,
            wire::Request::Load(place) => self.load(place).await,
            wire::Request::Read { block, is_distrusted } => {
                self.read_block(block, is_distrusted).await
            }
            wire::Request::Await { place, level } => self.reach(place, level),
            wire::Request::Latest(place) => self.latest(place),
            wire::Request::List(place) => self.list_files(place),
            wire::Request::Resume(place) => self.resume(place).await,
            wire::Request::Remove { place, dry_run } => self.remove(place, dry_run).await,
        };
        match served {
            Ok(()) => Ok(()),
            Err(error) => self.reply(&Reply::Failed { run: None, error }).await,
        }
    }

    async fn save(&mut self, save: Save) -> Result<()> {
        self.rights.save_checkpoint(&save.place.url)?;
        self.check_reach(&save.place)?;
        self.begin_file().await;
        let last = self.rights.last();
        let writer = Writer { tenant: last.tenant.clone(), user: self.rights.uid() };
        let is_metadata = save.place.name == METADATA;
        let saving = self.node.checkpoints.save(save, writer).await?;
        self.checkpoint.saving = Some(Arc::new(saving));
        let bytes = if is_metadata { LENT_FOR_METADATA } else { LENT as u64 };
        self.lend(bytes, |memory| wire::Reply::Ready { memory }).await
    }

    async fn load(&mut self, place: Place) -> Result<()> {
        self.rights.read_checkpoint(&place.url)?;
        self.check_reach(&place)?;
        self.begin_file().await;
        let loading = self.node.checkpoints.load(place).await?;
        let (len, blocks) = (loading.len(), loading.blocks().map(<[_]>::to_vec));
        self.checkpoint.loading = Some(Arc::new(loading));
        self.lend(len, |memory| wire::Reply::Found { memory, len, blocks }).await
    }

    /// Rejects a place that the daemon may not reach for this client: from here on it acts by its
    /// own rights.
    fn check_reach(&self, place: &Place) -> Result<()> {
        self.store.sink(&place.url, &Options::from(place.origin.clone())).map(drop)
    }

    /// Ends what the connection did before: it carries one file at a time.
    async fn begin_file(&mut self) {
        let checkpoint = &mut self.checkpoint;
        while checkpoint.blocks.join_next().await.is_some() {}
        (checkpoint.saving, checkpoint.loading) = (None, None);
        *checkpoint.failed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Answers with the lent memory, which comes with the first answer: as much as a file of
    /// `bytes` needs. Later files of the connection use the same.
    async fn lend(&mut self, bytes: u64, reply: impl FnOnce(u64) -> wire::Reply) -> Result<()> {
        let is_new = self.checkpoint.lent.is_none();
        if is_new {
            let blocks = bytes.div_ceil(wire::BLOCK).max(1);
            let bytes = usize::try_from(blocks * wire::BLOCK).map_or(LENT, |bytes| bytes.min(LENT));
            let full = |_| {
                Error::new(ErrorKind::Full, "the daemon has no memory to lend for a checkpoint")
                    .at("bytes", bytes)
                    .at("memory", self.node.slabs.limit())
                    .advise("raise `memory`, or save with fewer ranks at once")
            };
            let memory = self.node.slabs.reserve_in_turn(bytes);
            let grant = tokio::time::timeout(LENDS_WITHIN, memory).await.map_err(full)??;
            let make = move || LentRegion::create("forebay-lent", bytes, BACKED_AT_ONCE);
            let closed = |_| Error::shutting_down();
            let made = tokio::task::spawn_blocking(make).await.map_err(closed)??;
            made.keep(grant);
            self.checkpoint.lent = Some(Arc::new(made));
        }
        let Some(lent) = &self.checkpoint.lent else { return Ok(()) };
        let lent = lent.clone();
        let rider = is_new.then(|| Rider::Lent(lent.clone()));
        let reply = reply(lent.len() as u64);
        let frame = frame::encode(&Reply::Checkpoint(Box::new(reply)))?;
        let gone = |_| Error::new(ErrorKind::Closed, "the client is gone");
        self.outgoing.send((frame, rider)).await.map_err(gone)?;
        if is_new {
            self.tasks.spawn(back(lent, self.outgoing.clone()));
        }
        Ok(())
    }

    async fn write_block(&mut self, block: Block) -> Result<()> {
        let Client { lent: Some(lent), saving: Some(saving), .. } = &self.checkpoint else {
            return Err(Error::new(ErrorKind::Invalid, "no file is being saved"));
        };
        let (lent, saving) = (lent.clone(), saving.clone());
        let write = async move {
            saving.write(block, &lent).await?;
            Ok(wire::Reply::Done { number: block.number })
        };
        self.serve_block(WRITTEN_AT_ONCE, write).await
    }

    async fn read_block(&mut self, block: Block, is_distrusted: bool) -> Result<()> {
        let Client { lent: Some(lent), loading: Some(loading), .. } = &self.checkpoint else {
            return Err(Error::new(ErrorKind::Invalid, "no file is being read"));
        };
        let (lent, loading, node) = (lent.clone(), loading.clone(), self.node.clone());
        let number = block.number;
        let answer = async move {
            match node.checkpoints.read(&loading, block, &lent, is_distrusted).await {
                Ok(()) => wire::Reply::Done { number },
                Err(error) => wire::Reply::Unread { number, error },
            }
        };
        self.serve_block(READ_AT_ONCE, async { Ok(answer.await) }).await
    }

    /// Serves a block beside others; at the limit, requests wait. An error fails the file.
    async fn serve_block(
        &mut self,
        at_once: usize,
        work: impl Future<Output = Result<wire::Reply>> + Send + 'static,
    ) -> Result<()> {
        let checkpoint = &mut self.checkpoint;
        while checkpoint.blocks.try_join_next().is_some() {}
        while checkpoint.blocks.len() >= at_once {
            checkpoint.blocks.join_next().await;
        }
        let (outgoing, failed) = (self.outgoing.clone(), checkpoint.failed.clone());
        checkpoint.blocks.spawn(async move {
            let reply = match work.await {
                Ok(reply) => Reply::Checkpoint(Box::new(reply)),
                Err(error) => {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert_with(|| error.clone());
                    Reply::Failed { run: None, error }
                }
            };
            // A client that left does not want it any more.
            let _ = super::send(&outgoing, &reply).await;
        });
        Ok(())
    }

    async fn seal(&mut self, len: u64, commit: Option<wire::Commit>) -> Result<()> {
        let checkpoint = &mut self.checkpoint;
        while checkpoint.blocks.join_next().await.is_some() {}
        let none = || Error::new(ErrorKind::Invalid, "no file is being saved");
        let saving = checkpoint.saving.take().ok_or_else(none)?;
        let failed = checkpoint.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(error) = failed {
            return Err(error);
        }
        let commit = commit.map(|wire::Commit { files, step, overwrite }| Commit {
            ids: files.into_iter().map(FileId::from_bytes).collect(),
            step,
            overwrite,
            replaced: Vec::new(),
        });
        let noted = saving.completes().then(|| saving.url());
        let sealed = self.node.checkpoints.seal(saving, len, commit).await;
        if let Some(url) = noted {
            self.rights.note(Entry::of("save", &sealed).url(&url));
        }
        sealed?;
        self.reply(&Reply::Checkpoint(Box::new(wire::Reply::Staged))).await
    }

    fn reach(&mut self, place: Place, level: wire::Level) -> Result<()> {
        let level = match level {
            wire::Level::Staged => Level::Staged,
            wire::Level::Uploaded => Level::Uploaded,
            wire::Level::Published => Level::Published,
            wire::Level::Replicated => Level::Replicated,
        };
        let may_save = self.rights.may_save(&place.url);
        let node = self.node.clone();
        self.answer(place, |place| async move {
            if may_save {
                let _: u64 = node.checkpoints.supply(&place).await?;
            }
            node.checkpoints.reach(place, level).await.map(|()| wire::Reply::Reached)
        })
    }

    fn latest(&mut self, place: Place) -> Result<()> {
        let node = self.node.clone();
        self.answer(place, |place| async move {
            node.checkpoints.latest(place).await.map(wire::Reply::Latest)
        })
    }

    fn list_files(&mut self, place: Place) -> Result<()> {
        let node = self.node.clone();
        self.answer(place, |place| async move {
            node.checkpoints.list(place).await.map(wire::Reply::Published)
        })
    }

    /// Supplies the client's credentials to uploads that wait for some.
    async fn resume(&mut self, place: Place) -> Result<()> {
        self.rights.save_checkpoint(&place.url)?;
        self.check_reach(&place)?;
        let files = self.node.checkpoints.resume(&place).await?;
        self.reply(&Reply::Checkpoint(Box::new(wire::Reply::Resumed { files }))).await
    }

    async fn remove(&mut self, place: Place, dry_run: bool) -> Result<()> {
        self.rights.save_checkpoint(&place.url)?;
        self.check_reach(&place)?;
        let url = place.url.clone();
        let removed = self.node.checkpoints.remove(place, dry_run).await;
        if !dry_run {
            self.rights.note(Entry::of("remove", &removed).url(&url));
        }
        self.reply(&Reply::Checkpoint(Box::new(wire::Reply::Removed(removed?)))).await
    }

    /// Answers a question about a place beside everything else, if the client may read there. At
    /// the limit it is rejected: a wait for room would keep the client's end unseen.
    fn answer<F>(&mut self, place: Place, work: impl FnOnce(Place) -> F) -> Result<()>
    where
        F: Future<Output = Result<wire::Reply>> + Send + 'static,
    {
        self.rights.read_checkpoint(&place.url)?;
        self.check_reach(&place)?;
        let questions = &mut self.checkpoint.questions;
        while questions.try_join_next().is_some() {}
        if questions.len() >= QUESTIONS {
            let what = "this connection waits for as many answers as it may";
            return Err(Error::new(ErrorKind::Full, what)
                .at("url", &place.url)
                .at("limit", QUESTIONS)
                .advise("ask again after an answer, or by another connection"));
        }
        let (work, outgoing) = (work(place), self.outgoing.clone());
        questions.spawn(async move {
            let answered = tokio::select! {
                answered = work => answered,
                () = outgoing.closed() => return,
            };
            let reply = match answered {
                Ok(reply) => Reply::Checkpoint(Box::new(reply)),
                Err(error) => Reply::Failed { run: None, error },
            };
            // A client that left does not want it any more.
            let _ = super::send(&outgoing, &reply).await;
        });
        Ok(())
    }
}

/// Backs the rest of lent memory while the client uses the first of it.
async fn back(lent: Arc<LentRegion>, outgoing: mpsc::Sender<Outgoing>) {
    let mut grows = true;
    loop {
        let bytes = lent.backed();
        grows &= bytes < lent.len();
        let backed = wire::Reply::Backed { bytes: bytes as u64, grows };
        let told = super::send(&outgoing, &Reply::Checkpoint(Box::new(backed))).await;
        if told.is_err() || !grows {
            return;
        }
        let more = lent.clone();
        let backing = tokio::task::spawn_blocking(move || more.back(bytes + BACKED_AT_ONCE));
        match backing.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let what = "a checkpoint goes on with less lent memory than it was granted";
                tracing::warn!(bytes, %error, "{what}");
                grows = false;
            }
            // The daemon shuts down.
            Err(_) => return,
        }
    }
}
