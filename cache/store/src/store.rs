//! Who has which shard, who fills it, and where.
//!
//! One rule: whatever is asked for at the same time by many is done once. A shard's identity is
//! resolved once, its bytes are fetched by one flight, its file is opened once; everybody else
//! waits for that and shares the outcome, success or error.
//!
//! A shard is looked for on the fastest tier first, and fetched only if none has it. If no tier can
//! take it, because their devices fail or an admin took them away, it is read through: indexed on the
//! way, kept nowhere, and read from its origin.

mod bring;
mod check;
mod explain;
mod foresee;
mod identity;
mod in_place;
mod meant;
mod moves;
mod pin;
mod place;
mod reconfigure;
mod room;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_histogram::{Histogram, Times};
use forebay_shard::Origin;
use forebay_source::{
    Bill, Billed, ByClient, Client, LinkReport, Options, Rank, Rate, Source, Sources, Stat,
};
use forebay_uring::{Arena, Engine};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use lru::LruCache;
use tokio::sync::Notify;

use crate::dataset::{Cache, Dataset};
use crate::directory::ShardName;
use crate::fill::{Fills, Flights, Job, Running, Start};
use crate::forecast::Forecast;
use crate::journal::{Journal, Listener};
use crate::ledger::{Charged, Ledger, Payer};
use crate::pins::Pins;
use crate::shard::{Lease, Shard};
use crate::shares::{Charge, InForce, Shares};
use crate::tenant::Tenant;
use crate::tier::{
    Commons, Counters, Holding, Holdings, Mode, OpenShards, Past, Scrub, State, Tally, Tier,
    TierConfig, TierReport, Urgency, Wanted, shutting_down,
};
use crate::traffic::{DatasetTraffic, Traffic, Traffics};
pub use bring::Brought;
pub use check::{Checked, Copy};
pub use explain::{Explained, Quota, Room, Said};
pub use foresee::{Foreseen, Reading};
use identity::Begun;
pub(crate) use identity::{Head, Identity};
pub(crate) use in_place::is_read_in_place;
pub(crate) use meant::IsMeant;
use moves::Promotions;
pub use reconfigure::StoreRules;

/// How often the order of use is kept on the disk: a crash loses that much of it, and of a million
/// shards it is 8 MB.
const RECENCY_KEPT: Duration = Duration::from_secs(300);

/// Identities remembered: a URL and a version are some 200 bytes, so 13 MB at most.
const IDENTITIES: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Compressed shards whose lengths are remembered: a name and a number are some 150 bytes, so 10 MB at most.
const UNPACKED: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// How long one look after a device may take. A device that hangs is looked after again then; the
/// others are not kept waiting for longer.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// What a store is made of.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Where shards rest.
    pub tiers: Vec<TierConfig>,
    /// What admins say of data sets; the first whose pattern matches counts.
    pub datasets: Vec<Dataset>,
    /// What each of those may hold who share the node; whoever is none of them has no limits.
    pub tenants: Vec<Tenant>,
    /// How often devices are looked after: whether their directories are still there, how full the
    /// disks are, whether one that failed is well again.
    pub look_after: Duration,
}

/// Every tier of a node, for one tenant's job: what is brought in through it is charged to that tenant.
/// Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    /// By its name: it may be configured or not, from one moment to the next.
    tenant: Option<Arc<str>>,
    /// Whose shards are fetched by turns with others': a job, or 0.
    owner: u64,
    /// What that job is called, for whoever looks at what it cost.
    job: Option<Arc<str>>,
    /// Who opens files that the daemon opens for nobody.
    client: Option<ByClient>,
    /// How fast they may come, if whoever asks limits it.
    pace: Option<Arc<Rate>>,
}

struct Inner {
    /// The fastest first.
    tiers: Vec<Tier>,
    commons: Arc<Commons>,
    sources: Sources,
    /// Shards being opened or begun, and who asked first.
    opening: Mutex<HashMap<ShardName, (Asker, Shared<Opened>)>>,
    promotions: Promotions,
    /// The right to change the rules: who judges by some must be the next to change them.
    reconfiguring: tokio::sync::Mutex<()>,
    /// One change of pins at a time.
    pinning: tokio::sync::Mutex<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Whoever moves shards sees that there is nothing to move any more.
        self.commons.moves.notify_one();
        self.commons.forecast.changed.notify_one();
    }
}

/// Who asked first for a shard, and so whose rules its coming is bound by.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asker {
    urgency: Urgency,
    tenant: Option<Arc<str>>,
}

impl Asker {
    /// Whether there may be room for this one where there was none for `other`: who only looks ahead
    /// is not let in where one who waits may push others out, and each tenant has room of its own.
    fn may_fare_better(&self, other: &Self) -> bool {
        self.tenant != other.tenant
            || (other.urgency, self.urgency) == (Urgency::Ahead, Urgency::Needed)
    }
}

/// The outcome of opening or beginning a shard, for everybody who asked meanwhile.
type Opened = BoxFuture<'static, Result<Arc<Shard>>>;

/// A wish that a shard stay, until dropped.
pub struct Claim {
    tier: Option<Tier>,
    name: ShardName,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(tier) = &self.tier {
            tier.unclaim(&self.name);
        }
    }
}

impl Commons {
    /// A shard that its tier lost stays readable, from its origin.
    pub(crate) fn read_through(&self, shard: &Shard) {
        let name = ShardName::new(&shard.origin());
        self.through().keep(name, &shard.read_only_through(&self.traffic_of(&shard.url)));
    }

    /// What the data set is called that a shard belongs to.
    pub(crate) fn dataset_of(&self, url: &str) -> String {
        let shares = self.shares.now();
        shares.dataset(shares.charge(url, None)).share.name.clone()
    }

    /// What reads of a shard are counted for that go past all tiers.
    pub(crate) fn traffic_of(&self, url: &str) -> Arc<Traffic> {
        self.traffic.of(&self.dataset_of(url))
    }

    /// The right to fetch a shard.
    pub(crate) async fn begin<'a>(&'a self, job: &'a Job) -> Result<Running<'a>> {
        self.flights.begin(&*job.source, &job.url, &job.rank).await
    }

    pub(crate) fn forget_identity(&self, source: &dyn Source, url: &str) {
        self.identities().pop(&(source.scope().to_owned(), url.to_owned()));
    }

    /// Bytes that a compressed shard came to, or came to at least, when it was last unpacked.
    fn unpacked(&self, name: &ShardName) -> Option<u64> {
        let mut known = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).copied()
    }

    pub(crate) fn note_unpacked(&self, origin: &Origin, bytes: u64) {
        let mut known = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = known.get(&ShardName::new(origin)).map_or(bytes, |before| bytes.max(*before));
        known.put(ShardName::new(origin), bytes);
    }

    fn through(&self) -> MutexGuard<'_, OpenShards> {
        self.through.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn identities(&self) -> MutexGuard<'_, LruCache<(String, String), Identity>> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Opens the tiers and starts listing what they hold; serving starts at once.
    ///
    /// # Errors
    /// If a tier's directory cannot be used: another daemon has it, it holds something else, it is
    /// not writable, it is named twice; if the data sets' rules cannot all be kept.
    pub async fn open(config: StoreConfig, sources: Sources, frames: Arena) -> Result<Self> {
        place::check(&config.tiers)?;
        let sizes: Vec<_> =
            config.tiers.iter().map(|tier| (tier.name.as_str(), tier.capacity)).collect();
        let shares = InForce::new(Shares::new(config.datasets, config.tenants, &sizes)?);
        let disks = config.tiers.iter().filter_map(|tier| Some(tier.disk.as_ref()?.path.clone()));
        let disks: Vec<_> = disks.collect();
        let pins =
            tokio::task::spawn_blocking(move || Pins::load(disks.iter().map(|disk| &**disk)));
        let pins = pins.await.map_err(|_| shutting_down())??;
        let waits = Arc::<Histogram>::default();
        let commons = Arc::new(Commons {
            frames,
            flights: Flights::new(),
            shares,
            pins,
            forecast: Arc::new(Forecast::new()),
            moves: Notify::new(),
            through: Mutex::new(OpenShards::new()),
            traffic: Traffics::new(waits.clone()),
            past: Tally::default(),
            waits,
            fetches: Histogram::default(),
            identities: Mutex::new(LruCache::new(IDENTITIES)),
            unpacked: Mutex::new(LruCache::new(UNPACKED)),
            leftover: AtomicBool::new(false),
            ledger: Ledger::default(),
            journal: Journal::new(),
            largest_tier: AtomicU64::new(sizes.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0)),
        });
        let mut tiers = Vec::with_capacity(config.tiers.len());
        for tier in config.tiers {
            tiers.push(Tier::open(tier, commons.clone()).await?);
        }
        tiers.sort_by_key(Tier::class);
        let inner = Inner {
            tiers,
            commons: commons.clone(),
            sources,
            opening: Mutex::default(),
            promotions: Promotions::default(),
            reconfiguring: tokio::sync::Mutex::default(),
            pinning: tokio::sync::Mutex::default(),
        };
        let store = Self {
            inner: Arc::new(inner),
            tenant: None,
            owner: 0,
            job: None,
            client: None,
            pace: None,
        };
        tokio::spawn(keep_recency(Arc::downgrade(&store.inner)));
        tokio::spawn(look_after(Arc::downgrade(&store.inner), config.look_after));
        let forecast = commons.forecast.clone();
        tokio::spawn(foresee::fetch_ahead(Arc::downgrade(&store.inner), forecast));
        tokio::spawn(moves::move_shards(Arc::downgrade(&store.inner), commons));
        Ok(store)
    }

    /// The same store for a tenant; one that is not configured has no limits, as if it were none.
    #[must_use]
    pub fn for_tenant(&self, name: Option<&str>) -> Self {
        let shares = self.inner.commons.shares.now();
        let tenant = name.filter(|name| shares.has_tenant(name)).map(Arc::from);
        Self { tenant, ..self.clone() }
    }

    /// The same store for a job, by its number: jobs that fetch at once have equal shares.
    #[must_use]
    pub fn for_job(&self, number: u64) -> Self {
        Self { owner: number, ..self.clone() }
    }

    /// The same store for a job of this name: what it fetches is on its bill.
    #[must_use]
    pub fn named(&self, job: &str) -> Self {
        Self { job: Some(job.into()), ..self.clone() }
    }

    /// The same store for a client that opens files itself.
    #[must_use]
    pub fn for_client(&self, client: &Client) -> Self {
        Self { client: Some(self.inner.sources.by_client(client)), ..self.clone() }
    }

    /// Whether a shard that did not arrive was on its way through another client's files: with this one's
    /// own there is another chance.
    #[must_use]
    pub fn came_through_another(&self, shard: &Lease) -> bool {
        self.own_files(shard).is_some()
    }

    /// This client's files, if the shard comes through another's.
    fn own_files(&self, shard: &Shard) -> Option<Arc<dyn Source>> {
        self.client.as_ref().and_then(|client| client.instead_of(&shard.source))
    }

    /// The same store for somebody whose shards come at this rate at most, unless others want them, too.
    #[must_use]
    pub fn paced(&self, pace: Option<Arc<Rate>>) -> Self {
        Self { pace, ..self.clone() }
    }

    /// The job's number, for the log; none where no job asks.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        self.job.as_ref().map(|_| self.owner)
    }

    /// The tenant that is charged.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// The shards that a pattern of a remote store means, by name.
    ///
    /// # Errors
    /// As [`Sources::list`].
    pub async fn list(&self, pattern: &str, options: &Options) -> Result<Vec<String>> {
        self.inner.sources.list_for(pattern, options, self.client.as_ref()).await
    }

    /// The shard at `url`, on a tier or on its way there; the lease lasts while it is held.
    ///
    /// # Errors
    /// What the origin answered, or `Full` if there is no room and none can be made.
    pub async fn shard(&self, url: &str, options: &Options, urgency: Urgency) -> Result<Lease> {
        let rank = self.rank();
        let _awaited = (urgency == Urgency::Needed).then(|| rank.awaited());
        self.ranked(url, options, urgency, rank.clone()).await
    }

    /// Waits for the first `samples` samples of the shard at `url`: they come before whatever nobody waits
    /// for. The shard takes room as what is fetched ahead does, and may leave as soon as they are here. Says
    /// whether all of it is.
    ///
    /// # Errors
    /// As [`Store::shard`], and what ended the fill, if it ended early.
    pub async fn expect(&self, url: &str, options: &Options, samples: u64) -> Result<bool> {
        let rank = self.rank();
        let _awaited = rank.awaited();
        let shard = self.ranked(url, options, Urgency::Ahead, rank.clone()).await?;
        Ok(shard.wait(samples).await?.counted)
    }

    /// This job waits for its first batch, until that is dropped: of its shards nothing comes meanwhile that
    /// nobody waits for.
    #[must_use]
    pub fn start(&self) -> Start {
        self.inner.commons.flights.starts.begin(self.owner)
    }

    /// What fetching came to since the start, for whom.
    #[must_use]
    pub fn bills(&self) -> Vec<(Charged, Billed)> {
        self.inner.commons.ledger.report()
    }

    /// Hears from now on of what comes in, for whomever.
    #[must_use]
    pub fn listen(&self) -> Listener {
        self.inner.commons.journal.listen()
    }

    /// Who pays for what of `url` is fetched for this job.
    fn bill(&self, url: &str) -> Arc<Bill> {
        self.payer().bill(url)
    }

    fn payer(&self) -> Payer {
        let (commons, job) = (self.inner.commons.clone(), self.job.clone());
        Payer { commons, job, tenant: self.tenant.clone() }
    }

    /// Of what this job wants.
    fn rank(&self) -> Rank {
        Rank::ahead(self.owner).paced(self.pace.clone())
    }

    async fn ranked(
        &self,
        url: &str,
        options: &Options,
        urgency: Urgency,
        rank: Rank,
    ) -> Result<Lease> {
        let source = self.inner.sources.open_for(url, options, self.client.as_ref())?;
        if self.inner.commons.shares.now().rule(self.charge(url)).cache == Cache::Never {
            // Without a copy, what was said a minute ago is of no use once the file is another.
            self.inner.commons.forget_identity(&*source, url);
        }
        let asking = Instant::now();
        let Begun { stat, head } = self.identity(&source, url, &rank).await?;
        let asked = asking.elapsed();
        let shard = self.shard_of(url, source, stat, rank.clone(), head.clone(), urgency).await;
        // Nobody else is to wait for what nobody took.
        drop(head.take());
        let shard = shard?;
        shard.rank.lift(&rank);
        Ok(shard.asked_for(asked))
    }

    fn charge(&self, url: &str) -> Charge {
        self.inner.commons.shares.now().charge(url, self.tenant())
    }

    async fn shard_of(
        &self,
        url: &str,
        source: Arc<dyn Source>,
        stat: Stat,
        rank: Rank,
        head: Head,
        urgency: Urgency,
    ) -> Result<Lease> {
        let origin = Origin {
            endpoint: source.endpoint().to_owned(),
            url: url.to_owned(),
            version: stat.version.clone(),
        };
        let name = ShardName::new(&origin);
        let lease = |shard| Lease::new(shard).paid_by(self.payer());
        if let Some(shard) = self.in_use(&name) {
            return Ok(lease(shard));
        }
        rank.bill_to(|| self.bill(url));
        let tenant = self.tenant.clone();
        let len = self.inner.commons.unpacked(&name).unwrap_or(stat.len);
        let lasting = match &self.client {
            Some(client) => client.lasting(&source),
            None => source.clone(),
        };
        let wanted =
            Wanted { name: name.clone(), origin, tenant, source, lasting, stat, len, rank, head };
        let asker = Asker { urgency, tenant: self.tenant.clone() };
        loop {
            let (first, opened) = {
                let mut opening = self.opening();
                // Somebody may have opened it since.
                if let Some(shard) = self.in_use(&name) {
                    return Ok(lease(shard));
                }
                let open = || (asker.clone(), self.clone().opened(wanted.clone(), urgency));
                opening.entry(name.clone()).or_insert_with(open).clone()
            };
            match opened.await {
                Err(error) if error.kind() == ErrorKind::Full && asker.may_fare_better(&first) => {}
                opened => return opened.map(lease),
            }
        }
    }

    /// The shard, if it is open or arriving: whole ones first, then the fastest tier's.
    fn in_use(&self, name: &ShardName) -> Option<Arc<Shard>> {
        let mut arriving = None;
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            match tier.in_use(&tier.name_for(name)) {
                Some((shard, State::Arriving)) => arriving = arriving.or(Some(shard)),
                Some((shard, _)) => return Some(shard),
                // Whole, but not open: that is better than what only arrives elsewhere.
                None if tier.state(&tier.name_for(name)).is_some_and(State::is_whole) => {
                    return None;
                }
                None => {}
            }
        }
        arriving
    }

    /// Opens or begins a shard in a task of its own: a caller that goes away must not leave it
    /// half made.
    fn opened(self, wanted: Wanted, urgency: Urgency) -> Shared<Opened> {
        let task = tokio::spawn(async move {
            let opened = self.open_or_begin(&wanted, urgency).await;
            self.opening().remove(&wanted.name);
            opened
        });
        let ended = |joined: Result<_, _>| joined.unwrap_or_else(|_| Err(shutting_down()));
        task.map(ended).boxed().shared()
    }

    async fn open_or_begin(&self, wanted: &Wanted, urgency: Urgency) -> Result<Arc<Shard>> {
        if self.is_never_cached(&wanted.origin.url) {
            return Ok(self.open_in_place(wanted).await);
        }
        // What is known to be there comes first: a tier that is slow to be listed delays nothing else.
        let mut tiers: Vec<_> = Vec::with_capacity(self.inner.tiers.len());
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            let mut here = Wanted { name: tier.name_for(&wanted.name), ..wanted.clone() };
            if tier.state(&here.name).is_none() {
                // What cannot be looked at is listed, or not there.
                if let Err(error) = tier.probe(&here.name).await {
                    tracing::debug!(tier = tier.name(), %error, "failed to look for a shard");
                }
                here.name = tier.name_for(&wanted.name);
            }
            let is_there = tier.state(&here.name).is_some_and(State::is_whole);
            tiers.push((!is_there, tier, here));
        }
        tiers.sort_by_key(|(is_absent, ..)| *is_absent);
        for (_, tier, here) in tiers {
            match tier.open_whole(&here).await {
                Ok(Some(shard)) => return Ok(shard),
                Ok(None) => {}
                // The tier's trouble, not the reader's: another has it, or its origin.
                Err(error) => {
                    let url = &wanted.origin.url;
                    let dataset = self.inner.commons.dataset_of(url);
                    let (url, tenant, tier_name) = (shown(url), self.tenant(), tier.name());
                    let (session, job) = (self.session(), self.job.as_deref());
                    tracing::warn!(session, job, tenant, dataset, url, tier = tier_name, %error, "failed to open a shard");
                    if error.kind() == ErrorKind::Unavailable {
                        tier.trouble(&error);
                    }
                }
            }
        }
        // Opened while this waited for a listing, or by a move.
        if let Some(shard) = self.in_use(&wanted.name).or_else(|| self.arriving(&wanted.name)) {
            return Ok(shard);
        }
        self.begin(wanted, urgency).await
    }

    /// The shard, if it is on its way to a tier, though another has a copy that cannot be opened.
    fn arriving(&self, name: &ShardName) -> Option<Arc<Shard>> {
        let mut tiers = self.inner.tiers.iter().filter(|tier| tier.is_readable());
        tiers.find_map(|tier| tier.in_use(&tier.name_for(name)).map(|(shard, _)| shard))
    }

    /// Drops a copy whose bytes turned out wrong; the next [`Store::shard`] fetches it anew. Of
    /// everybody who meets the same bad copy, the first drops and counts it.
    pub async fn condemn(&self, shard: &Lease, why: &Error) {
        match &shard.home {
            Some(home) => {
                if let Some(tier) = home.tier.upgrade() {
                    tier.drop_corrupt(shard.name(), &Arc::downgrade(&home.space), why).await;
                }
            }
            // The origin has other bytes than the first time, or another version.
            None => {
                self.inner.commons.through().forget(shard.name());
                self.inner.commons.forget_identity(&*shard.source, shard.url());
                if why.kind() == ErrorKind::Corrupt {
                    self.drop_index(shard).await;
                }
            }
        }
        if shard.lost.get().is_some() {
            self.inner.commons.through().forget(&ShardName::new(&shard.origin()));
        }
    }

    /// Asks that a shard stay while the claim is held.
    #[must_use]
    pub fn claim(&self, shard: &Lease) -> Claim {
        let tier = shard.home.as_ref().and_then(|home| home.tier.upgrade());
        if let Some(tier) = &tier {
            tier.claim(shard.name());
        }
        Claim { tier, name: shard.name().clone() }
    }

    /// Tells the policies that a job begins to use a shard.
    pub fn used(&self, shard: &Lease) {
        let Some(tier) = shard.home.as_ref().and_then(|home| home.tier.upgrade()) else { return };
        let uses = tier.used(shard.name());
        self.consider(&tier, shard, uses);
    }

    /// Drops every copy of what came from `url`, whatever its version, and asks its origin anew when
    /// it is next wanted; with how many copies there were. `dry`: only counts them.
    ///
    /// # Errors
    /// If a tier's directory could not be listed.
    pub async fn forget(&self, url: &str, dry: bool) -> Result<u64> {
        let (mut copies, mut failed) = (0, None);
        for tier in &self.inner.tiers {
            match tier.forget_url(url, dry).await {
                Ok(found) => copies += found,
                // The others are to forget it all the same.
                Err(error) => failed = Some(error.at("tier", tier.name())),
            }
        }
        if !dry {
            self.inner.commons.through().forget_url(url);
            let mut identities = self.inner.commons.identities();
            let known: Vec<_> = identities
                .iter()
                .filter(|((_, of), _)| of == url)
                .map(|(key, _)| key.clone())
                .collect();
            for key in known {
                identities.pop(&key);
            }
        }
        failed.map_or(Ok(copies), Err)
    }

    /// Checks every whole shard at rest, telling `progress` after each. With `keep`, what is wrong is
    /// told and left.
    ///
    /// # Errors
    /// If a directory could not be listed; what is wrong with a shard is told, not failed with.
    pub async fn scrub(&self, keep: bool, mut progress: impl FnMut(&Scrub)) -> Result<Scrub> {
        let mut scrub = Scrub::default();
        let mut work = Vec::new();
        for tier in &self.inner.tiers {
            let shards = tier.to_scrub().await?;
            scrub.shards += shards.len() as u64;
            scrub.bytes += shards.iter().map(|(.., bytes)| bytes).sum::<u64>();
            work.push((tier, shards));
        }
        let mut flaws = Vec::new();
        for (tier, shards) in work {
            tier.scrub(shards, keep, &mut scrub, &mut flaws, &mut progress).await;
        }
        (scrub.flaws, scrub.done) = (flaws, true);
        Ok(scrub)
    }

    /// What was counted since the start, on all tiers together.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let past = self.past().into();
        self.inner.tiers.iter().map(Tier::counters).fold(past, |sum, tier| sum + tier)
    }

    /// What went past all tiers.
    #[must_use]
    pub fn past(&self) -> Past {
        self.inner.commons.past.past(self.inner.commons.traffic.sums())
    }

    /// Each tier, the fastest first.
    #[must_use]
    pub fn tiers(&self) -> Vec<TierReport> {
        self.inner.tiers.iter().map(Tier::report).collect()
    }

    /// Bytes for batches of each data set that no tier had a part in.
    #[must_use]
    pub fn past_tiers(&self) -> Vec<DatasetTraffic> {
        self.inner.commons.traffic.report()
    }

    /// How long samples were waited for that had not arrived.
    #[must_use]
    pub fn waits(&self) -> Times {
        self.inner.commons.waits.read()
    }

    /// How long shards took to come from their origin, from their turn on, until a tier had them for good.
    #[must_use]
    pub fn fetches(&self) -> Times {
        self.inner.commons.fetches.read()
    }

    /// Fills at work, and those that wait for their turn.
    #[must_use]
    pub fn fills(&self) -> Fills {
        self.inner.commons.flights.report()
    }

    /// Each endpoint that was asked.
    #[must_use]
    pub fn links(&self) -> Vec<LinkReport> {
        self.inner.sources.links()
    }

    /// What each data set and each tenant holds.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let shares = self.inner.commons.shares.now();
        let (mut of_dataset, mut of_tenant) = (HashMap::new(), HashMap::new());
        for (charge, shards) in self.inner.tiers.iter().flat_map(Tier::shards) {
            *of_dataset.entry(charge.dataset).or_default() += shards;
            *of_tenant.entry(charge.tenant).or_default() += shards;
        }
        let shards = |of: &HashMap<usize, usize>, at| of.get(&at).copied().unwrap_or(0);
        let datasets = shares
            .datasets()
            .map(|(at, kept)| Holding::of(&kept.share, Some(&kept.rule), shards(&of_dataset, at)));
        let tenants =
            shares.tenants().map(|(at, share)| Holding::of(share, None, shards(&of_tenant, at)));
        Holdings { datasets: datasets.collect(), tenants: tenants.collect() }
    }

    /// What the data set is called that a shard belongs to.
    #[must_use]
    pub fn dataset_of(&self, url: &str) -> String {
        self.inner.commons.dataset_of(url)
    }

    /// The data sets that these shards belong to, by name.
    #[must_use]
    pub fn datasets_of<'u>(&self, urls: impl Iterator<Item = &'u String>) -> Vec<String> {
        let shares = self.inner.commons.shares.now();
        let mut names: Vec<String> = Vec::new();
        for url in urls {
            let name = &shares.dataset(shares.charge(url, None)).share.name;
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// What is said of each data set, in the order of their rules; last the defaults, for what belongs to none.
    #[must_use]
    pub fn datasets(&self) -> Vec<Dataset> {
        let shares = self.inner.commons.shares.now();
        shares.datasets().map(|(_, kept)| kept.rule.clone()).collect()
    }

    /// Changes what is wanted of a tier, at run time.
    ///
    /// # Errors
    /// `NotFound` if there is none of this name; what keeps its directory from being used again.
    pub async fn set_mode(&self, name: &str, mode: Mode) -> Result<()> {
        let tier = self.inner.tiers.iter().find(|tier| tier.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.inner.tiers.iter().map(Tier::name).collect();
            Error::new(ErrorKind::NotFound, "there is no tier of this name")
                .at("tier", name)
                .advise(format!("name one of {}", names.join(", ")))
        })?;
        match mode {
            Mode::Enabled => tier.enable().await?,
            Mode::Draining => tier.drain()?,
            Mode::Disabled => tier.disable().await,
        }
        tracing::info!(tier = name, ?mode, "an admin changed a tier");
        self.inner.commons.moves.notify_one();
        Ok(())
    }

    /// What moves the bytes of each disk: memory that they read into is attached to all of them.
    #[must_use]
    pub fn engines(&self) -> Vec<Engine> {
        self.inner.tiers.iter().filter_map(Tier::engine).cloned().collect()
    }

    /// Waits until everything the directories held at the start is known.
    ///
    /// # Errors
    /// If one could not be listed: what is on the disk is not known then, and nothing may be added.
    pub async fn scanned(&self) -> Result<()> {
        for tier in &self.inner.tiers {
            tier.scanned().await?;
        }
        Ok(())
    }

    /// From now on a copy out of a frame panics: tests prove by it that warm reads copy nothing.
    #[doc(hidden)]
    pub fn forbid_copies(&self) {
        for tier in &self.inner.tiers {
            tier.traffic().forbid_copies();
        }
    }

    /// Begins no more fills, and keeps for the next start in which order shards were used. Fills
    /// under way end with the runtime they run on; what they recorded is there for the next.
    pub async fn close(&self) {
        self.inner.commons.flights.close();
        // A question whose askers are gone holds a connection, which is given back to this runtime.
        self.inner.commons.identities().clear();
        for tier in &self.inner.tiers {
            tier.save().await;
        }
    }

    fn opening(&self) -> MutexGuard<'_, HashMap<ShardName, (Asker, Shared<Opened>)>> {
        self.inner.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the order of use on the disks, as far as a crash may lose it, while the store is there.
async fn keep_recency(store: Weak<Inner>) {
    let mut due = every(RECENCY_KEPT);
    // The first comes at once.
    due.tick().await;
    loop {
        due.tick().await;
        let Some(inner) = store.upgrade() else { return };
        for tier in &inner.tiers {
            tier.save().await;
        }
    }
}

/// Looks after the devices while the store is there.
async fn look_after(store: Weak<Inner>, period: Duration) {
    let mut due = every(period);
    loop {
        due.tick().await;
        let Some(inner) = store.upgrade() else { return };
        // At once: a device that hangs must not keep the others from being looked after.
        let tiers = inner.tiers.iter().filter(|tier| tier.mode() != Mode::Disabled);
        let looks = tiers.map(|tier| tokio::time::timeout(LOOK_TIMEOUT, tier.look_after()));
        futures::future::join_all(looks).await;
        // What could not leave then may leave now.
        inner.commons.moves.notify_one();
    }
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut due = tokio::time::interval(period);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    due
}
