//! A store under random operations and faults, against a model that knows what each URL must give.
//!
//! The model is a list of what each object's bytes were. After each step: what was read is the
//! origin's, no more is reserved than there is room, what is reserved is what lies on the disks, no
//! memory is lost, each miss has ended, and what is pinned is there. When the weather clears, the
//! devices are used again. A store has one tier to three, which an admin drains, lets go of and
//! takes back, and between which shards move.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{ErrorKind, Result};
use forebay_policy::{Epoch as Foretold, Epochs, Shard as Shards, Use};
use forebay_source::Options;
use forebay_store::{
    AnnouncedReads, Announcement, Claim, Class, Condition, Counters, Dataset, Evict, Holdings,
    Mode, PART_BYTES, Scope, Shard, ShardHandle, Store, Tenant, TierReport, Urgency, Watermarks,
};
use forebay_testkit::{DiskFault, Random, RandomFaults, UnsyncedFiles, for_seeds, image, shard};
use forebay_tests::{
    BareStore, BareStoreConfig, BareStoreTier, CacheContents, Daemon, SIZES, eventually, flip,
};
use forebay_uring::{Arena, Region};
use tempfile::TempDir;

/// Seeds in a normal run: some 20 s on two cores.
const SEEDS: u64 = 12;

/// Steps of a seed.
const STEPS: u64 = 40;

/// Samples of each object: one to three parts. The first is pinned.
const SAMPLES: [u64; 8] = [30, 12, 50, 90, 110, 150, 210, 25];

/// Room of a tier in memory, in parts: some of the objects.
const IN_MEMORY: u64 = 6;

/// Uses after which an object moves up, where there is room: it takes two, and one more is worth
/// more than what was used twice.
const USES: usize = 4;

/// Reads that begin together, at most.
const TOGETHER: u64 = 4;

/// Shards held or claimed over several steps, at most.
const HELD: usize = 2;

/// Readers: two tenants, and one without a tenant.
const TENANTS: [Option<&str>; 3] = [Some("most"), Some("least"), None];

/// Jobs that say what they will read, at most, and uses that each tells of.
const JOBS: u64 = 2;
const USES_TOLD: u64 = 12;

/// Interval between checks of the device: short, so that a probe needs no patience.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// Times a bad copy is requested again, as a batch does.
const TRIES: u32 = 4;

/// Memory for what is read.
const BUFFERS: usize = 16 << 20;

/// Looks in a row at a store that does nothing, after which nothing more is about to move: between
/// two moves there is a wake-up.
const QUIET_LOOKS: u32 = 3;

/// Returns true if the tier's directory counts.
fn is_listed(tier: &TierReport) -> bool {
    tier.class != Class::Memory && tier.mode != Mode::Disabled
}

/// A store, and what is held of it.
struct Life {
    bare: BareStore,
    held: Vec<Held>,
}

/// Objects kept over several steps.
enum Held {
    ShardHandle { _lease: ShardHandle },
    Claim { _claim: Claim },
}

/// An object and what it was.
struct Object {
    url: String,
    path: PathBuf,
    samples: u64,
    /// Seeds of its contents, the newest last.
    versions: Vec<u64>,
    /// Before this one nothing may be served any more: its origin was asked since.
    oldest: usize,
}

struct Model {
    random: Random,
    disk: TempDir,
    faults: Arc<RandomFaults>,
    fault: DiskFault,
    objects: Vec<Object>,
    capacity: u64,
    /// Beside the first.
    more: Vec<BareStoreTier>,
    files: Arc<UnsyncedFiles>,
    buffers: Arena,
    /// True if changes of the directory failed in this life.
    names_failed: bool,
    life: Option<Life>,
    log: Vec<String>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let disk = Daemon::disk();
        let mut objects = Vec::new();
        let (mut all, mut largest, mut pinned) = (0, 0, 0);
        for (n, samples) in (0..).zip(SAMPLES) {
            let path = disk.path().join(format!("{n}.tar"));
            let bytes = shard(samples, n, &SIZES);
            fs::write(&path, &bytes).unwrap();
            let len = bytes.len() as u64;
            (all, largest) = (all + len, len.max(largest));
            pinned = if n == 0 { len } else { pinned };
            let url = format!("file://{}", path.display());
            objects.push(Object { url, path, samples, versions: vec![n], oldest: 0 });
        }
        // Replaced, the pinned one is there twice. What is held is at most as large as what comes.
        let least = 4 * pinned + (1 + HELD as u64) * largest;
        let capacity = random.within(least..(least + 1).max(all));
        let more = Self::more(&mut random, &disk, least);
        let faults = RandomFaults::new(random.split());
        let files = Self::files(&disk, &faults);
        let buffers = Arena::new(Region::create("model-buffers", BUFFERS).unwrap());
        let fault = DiskFault::None;
        let (names_failed, life, log) = (false, None, Vec::new());
        let mut model = Self {
            random,
            disk,
            faults,
            fault,
            objects,
            capacity,
            more,
            files,
            buffers,
            names_failed,
            life,
            log,
        };
        model.start();
        model
    }

    /// The other tiers: none, a second disk like the first, and memory or a slow disk.
    fn more(random: &mut Random, disk: &TempDir, least: u64) -> Vec<BareStoreTier> {
        let count = random.below(3) as usize;
        let is_memory = random.percent(50);
        let path = |name: &str| Some(disk.path().join("cache").join(name));
        let tier = |name: &str, class, path, capacity| {
            let (name, watermarks) = (name.to_owned(), None);
            BareStoreTier { name, class, path, capacity, watermarks }
        };
        let mut more = vec![tier("second", Class::Nvme, path("second"), least)];
        more.push(match is_memory {
            true => tier("ram", Class::Memory, None, IN_MEMORY * PART_BYTES as u64),
            false => tier("hdd", Class::Hdd, path("hdd"), 2 * least),
        });
        more.truncate(count);
        if random.percent(50) {
            // Shards go down ahead of need.
            let marks = Some(Watermarks { low: 0.5, high: 0.8 });
            more.iter_mut().filter(|tier| tier.class == Class::Nvme).for_each(|tier| {
                tier.watermarks = marks;
            });
        }
        more
    }

    fn files(disk: &TempDir, faults: &Arc<RandomFaults>) -> Arc<UnsyncedFiles> {
        let (root, aside) = (disk.path().join("cache"), disk.path().join("aside"));
        UnsyncedFiles::over(&root, &aside, faults.clone(), Some(faults.clone()))
    }

    /// The directory of a tier on a disk.
    fn path(&self, tier: &str) -> PathBuf {
        self.disk.path().join("cache").join(tier)
    }

    fn tiers(&self) -> Vec<TierReport> {
        self.life().bare.store.tiers()
    }

    /// Whole shards on the disks that are used: tier and file, URL, bytes.
    fn whole(&self) -> Vec<(String, String, String, u64)> {
        let mut all = Vec::new();
        for tier in self.tiers().into_iter().filter(is_listed) {
            let whole = CacheContents::of(&self.path(&tier.name)).whole;
            let of = |(data, (url, len))| (tier.name.clone(), data, url, len);
            all.extend(whole.into_iter().map(of));
        }
        all
    }

    fn start(&mut self) {
        let pinned =
            Dataset { pin: true, ..Dataset::new("pinned", "**/0.tar", Evict::Lru).unwrap() };
        // Half for the one, a tenth at least for the other.
        let (half, tenth) = (Some(self.capacity / 2), self.capacity / 10);
        let tenant = |name: &str, min_bytes, max_bytes| {
            let name = name.to_owned();
            Tenant { name, min_bytes, max_bytes }
        };
        let bare = BareStoreConfig {
            datasets: vec![pinned],
            tenants: vec![tenant("most", 0, half), tenant("least", tenth, None)],
            look_after: LOOK_AFTER,
            files: self.files.clone(),
            faults: Some(self.files.clone()),
            more: self.more.clone(),
            ..BareStoreConfig::new(self.path("nvme"), self.capacity)
        };
        let bare = bare.open();
        // A new daemon knows no identity.
        for object in &mut self.objects {
            object.oldest = object.versions.len() - 1;
        }
        self.names_failed = false;
        self.life = Some(Life { bare, held: Vec::new() });
    }

    fn life(&self) -> &Life {
        self.life.as_ref().unwrap()
    }

    fn counters(&self) -> Counters {
        self.life().bare.store.counters()
    }

    /// Reads objects, all at the same time; with what became of each.
    fn read(&mut self, which: &[usize]) -> Vec<Result<()>> {
        let life = self.life.as_ref().unwrap();
        let tasks = which.iter().map(|at| {
            let object = &self.objects[*at];
            let urgency = if self.random.percent(15) { Urgency::Ahead } else { Urgency::Needed };
            let seeds = object.versions[object.oldest..].to_vec();
            let read = Read {
                store: life.bare.store.for_tenant(*self.random.pick(&TENANTS)),
                buffers: self.buffers.clone(),
                url: object.url.clone(),
                samples: object.samples,
                seeds,
                random: self.random.split(),
                urgency,
            };
            life.bare.runtime.spawn(read.run())
        });
        let tasks: Vec<_> = tasks.collect();
        tasks.into_iter().map(|task| life.bare.runtime.block_on(task).unwrap()).collect()
    }

    fn some(&mut self) -> usize {
        self.random.below(SAMPLES.len() as u64) as usize
    }

    /// One step; what it was.
    fn step(&mut self) -> String {
        match self.random.below(100) {
            0..45 => {
                let times = self.random.within(1..TOGETHER + 1);
                let which: Vec<_> = (0..times).map(|_| self.some()).collect();
                let outcomes = self.read(&which);
                for (at, outcome) in which.iter().zip(&outcomes) {
                    self.judge(*at, outcome);
                }
                format!("read {which:?}: {outcomes:?}")
            }
            45..53 => self.hold(),
            53..58 => {
                self.life.as_mut().unwrap().held.clear();
                "let go".to_owned()
            }
            58..63 => self.forget(),
            63..68 => self.replace(),
            68..74 => self.harm(),
            74..78 => self.scrub(),
            78..84 => self.turn(),
            84..86 => self.move_up(),
            86..89 => self.foresee(),
            89..92 => self.administer(),
            92..95 => self.restart(),
            _ => self.cut(),
        }
    }

    /// Checks that a read may have ended so.
    fn judge(&mut self, at: usize, outcome: &Result<()>) {
        let Err(error) = outcome else { return };
        let was_replaced = {
            let object = &self.objects[at];
            object.oldest + 1 < object.versions.len()
        };
        // Whoever only looks ahead is not let in at any price.
        let is_full = error.kind() == ErrorKind::Full;
        let ok =
            is_full || was_replaced || self.fault != DiskFault::None || self.files.power().is_off();
        assert!(ok, "read of {at} without a fault: {error}");
        if was_replaced && !is_full {
            // An origin that differs is asked anew, by the next.
            self.settle();
        }
    }

    fn hold(&mut self) -> String {
        let at = self.some();
        let life = self.life.as_mut().unwrap();
        if life.held.len() >= HELD {
            life.held.clear();
        }
        let url = &self.objects[at].url;
        let opened = life.bare.runtime.block_on(life.bare.store.shard(
            url,
            &Options::default(),
            Urgency::Needed,
        ));
        match opened {
            Ok(lease) if self.random.percent(50) => {
                life.held.push(Held::Claim { _claim: life.bare.store.claim(&lease) });
                format!("claim {at}")
            }
            Ok(lease) => {
                life.held.push(Held::ShardHandle { _lease: lease });
                format!("hold {at}")
            }
            Err(error) => format!("hold {at}: {error}"),
        }
    }

    fn forget(&mut self) -> String {
        let at = self.some();
        let life = self.life.as_mut().unwrap();
        // What somebody reads is forgotten, and its bytes go when the reader does.
        life.held.clear();
        let url = self.objects[at].url.clone();
        let forgot = life.bare.runtime.block_on(life.bare.store.forget(&url, false));
        if forgot.is_ok() {
            let object = &mut self.objects[at];
            object.oldest = object.versions.len() - 1;
        } else {
            let tiers = life.bare.store.tiers();
            let is_away = |tier: &TierReport| {
                let works = matches!(tier.condition, Condition::Normal | Condition::ReadOnly);
                tier.mode == Mode::Disabled || !works
            };
            let away = tiers.iter().any(is_away);
            assert!(away || self.fault != DiskFault::None, "forget without a fault: {forgot:?}");
        }
        format!("forget {at}: {forgot:?}")
    }

    /// A new object comes in an old one's place.
    fn replace(&mut self) -> String {
        let at = self.some();
        let object = &mut self.objects[at];
        if object.versions.len() > 1 && at == 0 {
            return "the pinned one is replaced once at most".to_owned();
        }
        let seed = object.versions.last().unwrap() + 100;
        let aside = object.path.with_extension("new");
        fs::write(&aside, shard(object.samples, seed, &SIZES)).unwrap();
        fs::rename(&aside, &object.path).unwrap();
        object.versions.push(seed);
        format!("replace {at}")
    }

    /// A bit goes wrong at rest.
    fn harm(&mut self) -> String {
        // What moves away just now may be gone before it is harmed.
        self.rest();
        let whole = self.whole();
        if whole.is_empty() {
            return "nothing to harm".to_owned();
        }
        let (tier, data, _, len) = self.random.pick(&whole).clone();
        let at = self.random.below(len);
        flip(&self.path(&tier).join("shards").join(&data), at);
        format!("harm {tier} {data} at {at}")
    }

    fn scrub(&mut self) -> String {
        let life = self.life();
        let scrub = life.bare.runtime.block_on(life.bare.store.scrub(false, |_| ()));
        if self.fault == DiskFault::None {
            let wrong = scrub.unwrap().wrong;
            self.settle();
            self.rest();
            for (tier, data, url, _) in self.whole() {
                let bytes = fs::read(self.path(&tier).join("shards").join(&data)).unwrap();
                let object = self.objects.iter().find(|object| object.url == url).unwrap();
                let is_right = |seed: &u64| shard(object.samples, *seed, &SIZES) == bytes;
                assert!(object.versions.iter().any(is_right), "scrub passed {data}");
            }
            return format!("scrub: {wrong} wrong");
        }
        "scrub in bad faults".to_owned()
    }

    /// One object is used again and again, so that it moves to a faster tier, where there is one.
    fn move_up(&mut self) -> String {
        let at = self.some();
        let outcomes: Vec<_> = (0..USES).flat_map(|_| self.read(&[at])).collect();
        for outcome in &outcomes {
            self.judge(at, outcome);
        }
        let moved = self.counters().moved_in;
        format!("use {at} again and again, {moved} moved so far: {outcomes:?}")
    }

    /// Jobs say what they will read, and read it; the node fetches ahead for them meanwhile.
    fn foresee(&mut self) -> String {
        let life = self.life.as_ref().unwrap();
        let jobs: Vec<_> = (0..self.random.within(1..JOBS + 1))
            .map(|job| {
                let uses = self.random.within(1..USES_TOLD);
                let uses: Vec<_> =
                    (0..uses).map(|_| self.random.below(SAMPLES.len() as u64) as usize).collect();
                let store =
                    life.bare.store.for_tenant(*self.random.pick(&TENANTS)).for_job(job + 1);
                (tell(&store, &self.objects, &uses), uses)
            })
            .collect();
        let mut told = Vec::new();
        for at in 0..USES_TOLD as usize {
            for (foreseen, uses) in &jobs {
                let Some(object) = uses.get(at).copied() else { continue };
                if let Ok(foreseen) = foreseen {
                    foreseen.advance(at as u64, Duration::ZERO);
                }
                let outcomes = self.read(&[object]);
                self.judge(object, &outcomes[0]);
            }
        }
        for (foreseen, uses) in jobs {
            told.push((foreseen.map(drop), uses));
        }
        // What is on its way for them comes all the same.
        self.settle();
        format!("foresee {told:?}")
    }

    /// An admin changes a tier, and it may be the only one.
    fn administer(&mut self) -> String {
        let tiers = self.tiers();
        let tier = self.random.pick(&tiers).clone();
        let mode =
            *self.random.pick(&[Mode::Draining, Mode::Disabled, Mode::Enabled, Mode::Enabled]);
        let changed = self.set_mode(&tier.name, mode);
        if mode == Mode::Draining && tier.mode == Mode::Disabled {
            assert_eq!(changed.as_ref().unwrap_err().kind(), ErrorKind::Invalid);
        }
        format!("{} was {:?}, is to be {mode:?}: {changed:?}", tier.name, tier.mode)
    }

    fn set_mode(&self, tier: &str, mode: Mode) -> Result<()> {
        let bare = &self.life().bare;
        bare.runtime.block_on(bare.store.set_mode(tier, mode))
    }

    fn turn(&mut self) -> String {
        const DISK_FAULTS: [DiskFault; 6] = [
            DiskFault::Reads,
            DiskFault::Writes,
            DiskFault::Full,
            DiskFault::Names,
            DiskFault::Short,
            DiskFault::Late,
        ];
        if self.fault != DiskFault::None {
            self.clear();
            return "the fault clears".to_owned();
        }
        self.fault = *self.random.pick(&DISK_FAULTS);
        let chance = *self.random.pick(&[5, 20, 60]);
        self.faults.set(self.fault, chance);
        self.names_failed |= self.fault == DiskFault::Names;
        format!("{:?} of {chance} %", self.fault)
    }

    /// Good weather: every device comes back, and takes what is read.
    fn clear(&mut self) {
        self.faults.set(DiskFault::None, 0);
        self.fault = DiskFault::None;
        self.life.as_mut().unwrap().held.clear();
        for tier in self.tiers() {
            // What is held of a directory keeps it for a moment.
            eventually("the tier is used again", || {
                self.set_mode(&tier.name, Mode::Enabled).is_ok()
            });
        }
        eventually("the devices are used again", || {
            self.tiers().iter().all(|tier| tier.condition == Condition::Normal)
        });
        self.rest();
        self.settle();
        let at = self.some();
        let before = self.counters();
        for outcome in self.read(&[at]) {
            self.judge(at, &outcome);
        }
        self.settle();
        let after = self.counters();
        let used = after.hits > before.hits || after.fills > before.fills;
        let was_open = after.misses == before.misses;
        assert!(used || was_open, "{at} is not kept though all is well: {after:?}");
    }

    fn end(&mut self) {
        let Life { bare, held } = self.life.take().unwrap();
        drop(held);
        bare.end();
    }

    fn restart(&mut self) -> String {
        self.faults.set(DiskFault::None, 0);
        self.fault = DiskFault::None;
        self.end();
        self.start();
        "restart".to_owned()
    }

    fn cut(&mut self) -> String {
        self.faults.set(DiskFault::None, 0);
        self.fault = DiskFault::None;
        let calls = self.random.within(1..60);
        self.files.power().goes_after(calls);
        // Less than that may happen in these; then it goes when nothing does.
        for _ in 0..self.random.below(4) {
            let which: Vec<_> = (0..3).map(|_| self.some()).collect();
            drop(self.read(&which));
        }
        self.files.power().off();
        self.end();
        let lost = self.files.cut(self.random.number());
        self.files = Self::files(&self.disk, &self.faults);
        self.start();
        format!("cut within {calls} calls: {lost:?}")
    }

    /// Waits until nothing is under way.
    fn settle(&self) {
        eventually("every miss has ended", || {
            let counters = self.counters();
            counters.misses == counters.ended()
        });
    }

    /// Waits until no shard moves, and none is about to.
    fn rest(&self) {
        self.settle();
        let moving = || {
            let counters = self.counters();
            let fills = self.life().bare.store.fills();
            (
                fills.running + fills.waiting + fills.paused > 0,
                counters.moved_in,
                counters.evictions,
            )
        };
        let (mut last, mut quiet) = (moving(), 0);
        eventually("nothing moves", || {
            let now = moving();
            quiet = if now == last && !now.0 { quiet + 1 } else { 0 };
            last = now;
            quiet > QUIET_LOOKS
        });
    }

    fn check(&self) {
        self.settle();
        eventually("memory comes back", || {
            self.life().bare.frames.in_use() == 0 && self.buffers.in_use() == 0
        });
        for TierReport { name, counters, .. } in self.tiers() {
            let (used, all) = (counters.used_bytes, counters.capacity_bytes);
            assert!(used <= all, "{used} of {all} on {name}");
        }
        // A shard that left while it is held keeps its bytes.
        if self.fault == DiskFault::None && self.life().held.is_empty() {
            eventually("what is reserved lies on the disks", || {
                self.tiers().iter().all(|tier| match tier.class {
                    Class::Memory => {
                        let part = PART_BYTES as u64;
                        tier.counters.used_bytes.is_multiple_of(part)
                    }
                    _ if tier.mode == Mode::Disabled => tier.counters.used_bytes == 0,
                    _ => self.is_at_rest(tier),
                })
            });
            // A move changes several of them, one after the other.
            eventually("data sets, tenants and tiers hold the same", || {
                let Holdings { datasets, tenants } = self.life().bare.store.holdings();
                let counters = self.counters();
                [datasets, tenants].iter().all(|holdings| {
                    let bytes: u64 = holdings.iter().map(|of| of.used_bytes).sum();
                    let shards: usize = holdings.iter().map(|of| of.shards).sum();
                    (bytes, shards) == (counters.used_bytes, counters.shards)
                })
            });
        }
    }

    fn is_at_rest(&self, tier: &TierReport) -> bool {
        let rest = CacheContents::of(&self.path(&tier.name));
        // A sidecar aside that could be neither renamed nor removed waits for the next start.
        let mut others = rest.others.iter();
        tier.counters.used_bytes == rest.bytes()
            && others.all(|file| self.names_failed && file.ends_with(".idx.new"))
    }

    /// Where what is pinned lies, on disks that are used and that nobody drains.
    fn pinned(&self) -> BTreeMap<(String, String), String> {
        let kept = self.tiers().into_iter().filter(|tier| tier.mode == Mode::Enabled);
        let kept: Vec<_> = kept.map(|tier| tier.name).collect();
        let pinned = |(tier, data, url, _): (String, String, String, u64)| {
            (url == self.objects[0].url && kept.contains(&tier)).then_some(((tier, data), url))
        };
        self.whole().into_iter().filter_map(pinned).collect()
    }

    /// A pinned shard is still present, unless this step may have dropped it.
    fn check_pinned(&self, before: &BTreeMap<(String, String), String>, step: &str) {
        let may = ["forget 0", "harm", "scrub", "cut"];
        let drops = may.iter().any(|word| step.starts_with(word))
            || self.fault != DiskFault::None
            || self.counters().corruptions > 0
            || step.starts_with("the fault");
        let (now, tiers) = (self.pinned(), self.tiers());
        for (at, url) in before {
            // A tier that is drained gives up what is pinned, too; one that is let go of keeps it.
            let is_kept = tiers.iter().any(|tier| tier.name == at.0 && tier.mode == Mode::Enabled);
            let has_it = now.contains_key(at);
            assert!(drops || !is_kept || has_it, "{url} was pinned on {}, and is gone", at.0);
        }
    }
}

/// One reader of one object.
struct Read {
    store: Store,
    buffers: Arena,
    url: String,
    samples: u64,
    seeds: Vec<u64>,
    random: Random,
    urgency: Urgency,
}

impl Read {
    async fn run(mut self) -> Result<()> {
        let mut last = None;
        for _ in 0..TRIES {
            let lease = self.store.shard(&self.url, &Options::default(), self.urgency).await?;
            self.store.record_use(&lease);
            let samples = self.samples;
            lease.wait(samples).await?;
            match self.read(&lease).await {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.store.drop_bad_copy(&lease, &error).await;
                    last = Some(error);
                }
                other => return other,
            }
        }
        Err(last.unwrap())
    }

    /// Reads some samples' images, neighbours in one read now and then.
    async fn read(&mut self, lease: &ShardHandle) -> Result<()> {
        // All that is read has one version.
        let mut version = None;
        for _ in 0..self.random.within(1..6) {
            let first = self.random.below(self.samples);
            let last = (first + self.random.below(3)).min(self.samples - 1);
            let (members, range) = {
                let index = lease.index();
                let of = |at: u64| {
                    let sample = index.sample(at as usize).unwrap();
                    index.members_of(&sample)[0]
                };
                let members: Vec<_> = (first..=last).map(|at| (at, of(at))).collect();
                let range = members[0].1.offset..members[members.len() - 1].1.end();
                (members, range)
            };
            let footprint = Shard::footprint(&range);
            let len = usize::try_from(footprint.end - footprint.start).unwrap();
            let span = self.buffers.lease(len).await?;
            let mut placed = lease.read(vec![(range, span)]).await.pop().unwrap();
            let places: Vec<_> =
                members.iter().map(|(_, member)| placed.check(member)).collect::<Result<_>>()?;
            let span = placed.into_span();
            for ((at, member), place) in members.iter().zip(places) {
                let from = place - span.offset();
                let bytes = &span[from..from + usize::try_from(member.len).unwrap()];
                let is_it = |seed: &&u64| image(**seed, *at, &SIZES) == bytes;
                let seed = self.seeds.iter().find(is_it);
                let seed =
                    seed.unwrap_or_else(|| panic!("{} sample {at} is not its origin's", self.url));
                assert_eq!(*version.get_or_insert(*seed), *seed, "two versions in one shard");
            }
        }
        Ok(())
    }
}

/// A job says that it will use these objects, one after the other, each a byte's worth of time.
fn tell(store: &Store, objects: &[Object], uses: &[usize]) -> Result<Announcement> {
    let bytes =
        objects.iter().map(|object| fs::metadata(&object.path).map_or(0, |file| file.len()));
    let uses = uses.to_vec();
    let reading = AnnouncedReads {
        name: "told".to_owned(),
        urls: objects.iter().map(|object| object.url.clone()).collect(),
        bytes: bytes.collect(),
        options: Options::default(),
        scope: Scope::Node(1.0),
        future: Box::new(move |shards: Vec<Shards>| {
            Box::new(Epochs::new(shards.clone(), move |number| {
                let at = |(start, object): (u64, &usize)| Use {
                    shard: shards[*object],
                    start,
                    end: start + 1,
                };
                let all = (0..).zip(&uses).map(at).collect();
                (number == 0).then_some(Foretold { uses: all, bytes: uses.len() as u64 })
            }))
        }),
    };
    store.announce(reading)
}

fn run(seed: u64) {
    let mut model = Model::new(seed);
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..STEPS {
            let before = model.pinned();
            let step = model.step();
            model.log.push(step.clone());
            model.check();
            model.check_pinned(&before, &step);
        }
        model.end();
    }));
    if let Err(panic) = told {
        for line in &model.log {
            forebay_testkit::say(line);
        }
        if model.life.is_some() {
            for tier in model.tiers() {
                let rest = CacheContents::of(&model.path(&tier.name));
                forebay_testkit::say(&format!("{tier:?}\n{rest:?}"));
            }
        }
        std::panic::resume_unwind(panic);
    }
}

/// Bears promises 1 (origin bytes or nothing), 3 (budgets) and 4 (crash at any instant).
#[test]
fn store_behaves_as_its_model() {
    for_seeds("FOREBAY_MODEL_SEED", "FOREBAY_MODEL_ROUNDS", SEEDS, run);
}
