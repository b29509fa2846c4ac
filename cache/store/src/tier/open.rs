//! Opening of whole shards on a tier.
//!
//! A copy stays while it is being opened. A copy that cannot be opened is dropped only if it
//! is bad itself.

use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Index, Origin, Sidecar};
use forebay_source::{Binding, Rank, Stat};
use forebay_uring::Open;

use super::copy_errors::is_the_copys_fault;
use super::entry::{Entry, ShardState};
use super::wanted::{Absent, Wanted};
use super::{Disk, Medium, Tier};
use crate::budget::Space;
use crate::clock;
use crate::directory::ShardName;
use crate::fill::DataFile;
use crate::identity::Head;
use crate::parts::Parts;
use crate::shard::{Body, Growth, Home, Keeper, Shard, ShardHandle};

impl Tier {
    /// Opens a whole shard; `None` if there is no usable copy.
    ///
    /// # Errors
    /// Errors of the device, and limits of the machine.
    pub(crate) async fn open_whole(&self, wanted: &Wanted) -> Result<Option<Arc<Shard>>> {
        let Some(space) = self.space_of(&wanted.name).await? else { return Ok(None) };
        let _opening = self.mark_opening(&wanted.name);
        match self.open_copy(wanted, space).await {
            Ok(shard) => {
                self.table().note_opened(&shard);
                Ok(Some(shard))
            }
            Err(error) if is_the_copys_fault(&error) => {
                self.discard(&wanted.name, &error).await?;
                Ok(None)
            }
            Err(error) => Err(error.at("url", &wanted.origin.url).at("tier", self.name())),
        }
    }

    /// Waits until the files of a leaving copy are removed and its name is free.
    pub(super) async fn wait_until_removed(&self, name: &ShardName) {
        let leaving = self.table().leaving.get(name).cloned();
        if let Some(gone) = leaving {
            gone.await;
        }
    }

    /// Marks a shard as being opened, until dropped: it is not evicted meanwhile.
    pub(super) fn mark_opening(&self, name: &ShardName) -> OpeningGuard {
        self.table().begin_opening(name);
        OpeningGuard { tier: self.clone(), name: name.clone() }
    }

    /// Space of a whole shard. Waits for the listing only if the shard is not known yet. Drops a
    /// copy older than its data set allows.
    async fn space_of(&self, name: &ShardName) -> Result<Option<Arc<Space>>> {
        self.wait_until_removed(name).await;
        let look = || {
            let table = self.table();
            table.get(name).filter(|entry| entry.is_whole()).map(|entry| entry.space.clone())
        };
        let mut known = look();
        if known.is_none() {
            self.scanned().await?;
            known = look();
        }
        let stale = self.table().is_stale(name);
        if stale {
            // The listing must not find a copy that is about to leave.
            self.scanned().await?;
        }
        let stale = {
            let mut table = self.table();
            (stale && table.is_stale(name)).then(|| self.remove(&mut table, name, false))
        };
        match stale {
            None => Ok(known),
            Some(gone) => {
                tracing::debug!(shard = name.as_str(), "a copy outlived its ttl");
                gone.await;
                Ok(None)
            }
        }
    }

    async fn open_copy(&self, wanted: &Wanted, space: Arc<Space>) -> Result<Arc<Shard>> {
        let Medium::Disk(disk) = &self.0.medium else {
            return Err(Error::new(ErrorKind::NotFound, "the shard left the memory"));
        };
        let name = wanted.name.clone();
        let sidecar = self.on_disk(move |directory| directory.read_sidecar(&name)).await?;
        let is_as_long = match wanted.stat.binding {
            Binding::Stream => true,
            _ => sidecar.origin_len() == wanted.stat.len,
        };
        if sidecar.origin != wanted.origin || !is_as_long {
            return Err(Error::new(ErrorKind::Corrupt, "the sidecar names another shard"));
        }
        let file = self.directory()?.open_data(&disk.engine, &wanted.name, Open::Read).await?;
        let body = self.on_device(disk, Arc::new(file.into()));
        let growth = Growth::whole(sidecar.index, sidecar.len);
        if sidecar.compressed_len.is_some() {
            growth.mark_unpacked();
        }
        Ok(self.assemble(wanted, growth, body, None, space))
    }

    /// Location of the bytes of a shard of this tier.
    pub(super) fn on_device(&self, disk: &Disk, file: DataFile) -> Body {
        let small = self.0.shared.small_copies.place();
        Body::Disk { engine: disk.engine.clone(), file, small }
    }

    pub(super) fn assemble(
        &self,
        wanted: &Wanted,
        growth: Growth,
        body: Body,
        parts: Option<Arc<Parts>>,
        space: Arc<Space>,
    ) -> Arc<Shard> {
        let keeper: Weak<dyn Keeper> = Arc::downgrade(&self.0) as _;
        let tier = self.name().into();
        let home = Home { tier, keeper, budget: self.0.budget.clone(), space };
        Arc::new(Shard {
            name: wanted.name.clone(),
            url: wanted.origin.url.clone(),
            growth,
            body,
            parts: Mutex::new(parts),
            traffic: self.traffic_of(&wanted.origin.url),
            home: Some(home),
            source: wanted.lasting.clone(),
            stat: wanted.stat.clone(),
            rank: wanted.rank.clone(),
            lost: Arc::default(),
        })
    }

    /// Opens an unused whole shard for a move, with its sidecar and a guard that keeps it here.
    /// `None` if it is gone, or in memory, where all shards are copies.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) async fn open_for_move(
        &self,
        name: &ShardName,
    ) -> Result<Option<(ShardHandle, Sidecar, OpeningGuard)>> {
        let Some((space, opening)) = self.hold_copy(name) else { return Ok(None) };
        let sidecar = self.read_sidecar(name).await?;
        let facts = CopyFacts::of(&sidecar, &space);
        let shard = self.open_bare(name, &facts, space).await?;
        Ok(Some((shard, sidecar, opening)))
    }

    /// Opens an unused whole shard for another node, with the facts about it and a guard that keeps
    /// it here. `known`: facts about an earlier copy, or this one. `None` as for a move.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) async fn open_for_peer(
        &self,
        name: &ShardName,
        known: Option<Arc<CopyFacts>>,
    ) -> Result<Option<(ShardHandle, Arc<CopyFacts>, OpeningGuard)>> {
        let Some((space, opening)) = self.hold_copy(name) else { return Ok(None) };
        let is_of =
            |facts: &Arc<CopyFacts>| std::ptr::eq(facts.space.as_ptr(), Arc::as_ptr(&space));
        let facts = match known.filter(is_of) {
            Some(facts) => facts,
            None => Arc::new(CopyFacts::of(&self.read_sidecar(name).await?, &space)),
        };
        let shard = self.open_bare(name, &facts, space).await?;
        Ok(Some((shard, facts, opening)))
    }

    /// Index of a whole shard.
    ///
    /// # Errors
    /// If its sidecar cannot be read.
    pub(crate) async fn index_of(&self, name: &ShardName) -> Result<Index> {
        Ok(self.read_sidecar(name).await?.index)
    }

    async fn read_sidecar(&self, name: &ShardName) -> Result<Sidecar> {
        let of = name.clone();
        self.on_disk(move |directory| directory.read_sidecar(&of)).await
    }

    /// Returns the space of a whole shard on a disk, and a guard that keeps it here.
    fn hold_copy(&self, name: &ShardName) -> Option<(Arc<Space>, OpeningGuard)> {
        self.disk()?;
        let space = {
            let table = self.table();
            let whole = table.get(name).filter(|entry| entry.state() == ShardState::Whole)?;
            whole.space.clone()
        };
        Some((space, self.mark_opening(name)))
    }

    /// Opens a whole shard without its index and its origin, unless a reader has it open.
    async fn open_bare(
        &self,
        name: &ShardName,
        facts: &CopyFacts,
        space: Arc<Space>,
    ) -> Result<ShardHandle> {
        if let Some((shard, ShardState::Whole)) = self.table().in_use(name) {
            return Ok(ShardHandle::new(shard).for_move());
        }
        let Medium::Disk(disk) = &self.0.medium else {
            return Err(Error::new(ErrorKind::NotFound, "the shard left the memory"));
        };
        let file = self.directory()?.open_data(&disk.engine, name, Open::Read).await?;
        let version = facts.origin.version.clone();
        let wanted = Wanted {
            name: name.clone(),
            origin: facts.origin.clone(),
            tenant: facts.tenant.clone(),
            source: Arc::new(Absent),
            lasting: Arc::new(Absent),
            stat: Stat::new(facts.origin_len, version, Binding::Weak),
            len: facts.len,
            rank: Rank::ahead(0),
            head: Head::default(),
            guest: None,
        };
        let body = self.on_device(disk, Arc::new(file.into()));
        let shard = self.assemble(&wanted, Growth::new(), body, None, space);
        Ok(ShardHandle::new(shard).for_move())
    }

    /// Time of a shard's arrival on this node; its ttl counts from then on every tier.
    pub(crate) fn since(&self, name: &ShardName) -> SystemTime {
        self.table().get(name).map_or_else(clock::now, Entry::since)
    }

    /// Uses of a shard since it came to this node.
    pub(crate) fn uses(&self, name: &ShardName) -> u32 {
        self.table().get(name).map_or(0, |entry| entry.uses)
    }

    /// Any shard that nobody reads now.
    pub(crate) fn any_idle(&self) -> Option<ShardName> {
        self.table().any_idle()
    }
}

/// Facts about a whole copy, of its sidecar.
pub(crate) struct CopyFacts {
    /// Identifies the copy among later ones.
    space: Weak<Space>,
    origin: Origin,
    origin_len: u64,
    tenant: Option<Arc<str>>,
    pub(crate) len: u64,
    /// True if the origin's object is not the plain tar.
    pub(crate) is_unpacked: bool,
    /// Checksums of its blocks.
    pub(crate) blocks: Vec<u32>,
}

impl CopyFacts {
    fn of(sidecar: &Sidecar, space: &Arc<Space>) -> Self {
        Self {
            space: Arc::downgrade(space),
            origin: sidecar.origin.clone(),
            origin_len: sidecar.origin_len(),
            tenant: sidecar.tenant.as_deref().map(Arc::from),
            len: sidecar.len,
            is_unpacked: sidecar.compressed_len.is_some(),
            blocks: sidecar.blocks.clone(),
        }
    }
}

/// A shard being opened.
pub(crate) struct OpeningGuard {
    tier: Tier,
    name: ShardName,
}

impl Drop for OpeningGuard {
    fn drop(&mut self) {
        self.tier.table().end_opening(&self.name);
        self.tier.note_closed();
    }
}
