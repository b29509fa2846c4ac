//! A status document as text for people.
//!
//! Rule: text of others is printed without control characters, and names are those of the document.

use std::fmt;

use bytesize::ByteSize;
use forebay_checkpoints::CheckpointsReport;
use forebay_error::{printable, printable_char};
use forebay_peers::ClusterReport;
use forebay_source::LinkReport;
use forebay_store::{
    Cache, Condition, Expected, ForecastReport, ForeseenJob, Holding, KeyKind, Refusal, TierReport,
};
use forebay_uring::{EngineKind, EngineReport};
use serde::Serialize;
use serde_json::Value;

use super::{AuditReport, Awaited, BadSamples, Job, Memory, SlowSample, Status};
use crate::cluster::{differences, is_well, member_state, own_troubles};
use crate::warm::Warming;

/// Characters kept of each text from a trainer. Object names have at most a kilobyte in any store,
/// and an error fits in as much.
pub(super) const TEXT_MAX: usize = 1024;

/// Members named that are not well: as many as a screen has room for.
const MEMBERS_SHOWN: usize = 8;

/// Reason for a shard that comes only when its job does.
const NO_ROOM: &str =
    "there is no room for it before then: cached shards are needed sooner, or a quota is full";

/// Returns a trainer's text, cut and printable.
#[must_use]
pub fn cut(text: &str) -> String {
    text.chars().take(TEXT_MAX).map(printable_char).collect()
}

/// Returns the word that documents use for a class, a mode, a condition or a policy.
///
/// # Panics
/// If the value is not an enum of plain words.
#[must_use]
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        other => panic!("not a word: {other:?}"),
    }
}

/// Returns the reason why a shard that a job lacks does not arrive.
#[must_use]
pub fn why_not(lacks: &Expected) -> &'static str {
    match lacks.refused {
        Some(Refusal::Room) => NO_ROOM,
        Some(Refusal::Origin) | None => "its origin does not deliver it",
    }
}

/// True if prefetching decides about none of the job's shards. Missing shards are then unknown in
/// advance.
#[must_use]
pub fn is_kept_by_use(job: &ForeseenJob) -> bool {
    job.shards == 0
}

fn size(bytes: impl TryInto<u64>) -> String {
    ByteSize(bytes.try_into().unwrap_or(u64::MAX)).display().iec().to_string()
}

/// A tier as lines of text.
#[derive(Debug)]
pub struct TierLines<'a>(pub &'a TierReport);

impl fmt::Display for TierLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tier, counters) = (self.0, &self.0.counters);
        let share = counters.used_bytes.saturating_mul(100) / counters.capacity_bytes.max(1);
        write!(
            f,
            "{}  {}, {}  {} of {} ({share} %) in {} shards",
            printable(&tier.name),
            word(&tier.class),
            word(&tier.mode),
            size(counters.used_bytes),
            size(counters.capacity_bytes),
            counters.shards,
        )?;
        if counters.excerpts > 0 {
            write!(f, ", {} of them excerpts", counters.excerpts)?;
        }
        if let Some(path) = &tier.path {
            write!(f, "  {}", printable(path))?;
        }
        if let Some(device) = &tier.device {
            write!(f, " on {}", printable(device))?;
        }
        match tier.encryption {
            Some(KeyKind::KeyFile) => write!(f, ", encrypted")?,
            Some(KeyKind::Ephemeral) => write!(f, ", encrypted with an ephemeral key")?,
            None => {}
        }
        if tier.condition != Condition::Normal {
            let why = tier.why.as_deref().map_or_else(|| "?".to_owned(), printable);
            write!(f, "\n        {}: {why}", word(&tier.condition))?;
        }
        if counters.limit_bytes < counters.capacity_bytes {
            let limit = size(counters.limit_bytes);
            write!(f, "\n        other data fill the disk: it may hold {limit} now")?;
        }
        if let Some(lent) = tier.lent_bytes.filter(|lent| *lent > 0) {
            write!(f, "\n        trainers read {} of it in place", size(lent))?;
        }
        if let Some(left) = tier.writes_left_bytes {
            let what = match left < 0 {
                true => "written beyond writes_per_day:",
                false => "left to write today:",
            };
            write!(f, "\n        {what} {}", size(left.unsigned_abs()))?;
        }
        write!(
            f,
            "\n        hits {}, misses {}; fetched {} ({}), failed {}, moved in {}, evicted {}, \
             corrupt {}",
            counters.hits,
            counters.misses,
            counters.fills,
            size(counters.origin_bytes),
            counters.failed_fills,
            counters.moved_in,
            counters.evictions,
            counters.corruptions,
        )?;
        tier.engine.as_ref().map_or(Ok(()), |engine| write_engine(f, engine))
    }
}

fn write_engine(f: &mut fmt::Formatter<'_>, engine: &EngineReport) -> fmt::Result {
    let kind = match &engine.kind {
        EngineKind::Threads { reason } => format!("threads ({})", printable(reason)),
        _ => format!("io_uring ({})", engine.ring_flags.join(", ")),
    };
    write!(f, "\n        {kind}; {} of memory registered", size(engine.registered_bytes))?;
    if engine.unregistered_bytes > 0 {
        write!(f, ", {} not", size(engine.unregistered_bytes))?;
    }
    match &engine.refusal {
        Some(refusal) => write!(f, "\n        registration failed: {}", printable(refusal)),
        None => Ok(()),
    }
}

fn write_source(f: &mut fmt::Formatter<'_>, source: &LinkReport) -> fmt::Result {
    write!(
        f,
        "source  {}  {} received, {} of {} requests in flight, {} waiting",
        printable(&source.endpoint),
        size(source.bytes),
        source.under_way,
        source.limit,
        source.waiting,
    )?;
    if source.puts > 0 {
        write!(f, "\n        {} written by {} requests", size(source.written_bytes), source.puts)?;
    }
    if source.down {
        write!(f, "\n        circuit breaker open: one request probes it now and then")?;
    }
    if source.retries + source.hedges + source.breaks > 0 {
        write!(
            f,
            "\n        {} retries, breaker opened {} times; {} hedged requests, {} received twice",
            source.retries,
            source.breaks,
            source.hedges,
            size(source.hedged_bytes),
        )?;
    }
    let sums = &source.checksums;
    if sums.agreed + sums.differed + sums.untold > 0 {
        write!(
            f,
            "\n        its own checksums: {} shards agreed, {} differed, {} had none, {} not available",
            sums.agreed, sums.differed, sums.none, sums.untold,
        )?;
    }
    writeln!(f)
}

/// A job as lines of text.
#[derive(Debug)]
pub struct JobLines<'a>(pub &'a Job);

impl fmt::Display for JobLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = self.0;
        write!(
            f,
            "{} {}  slab {} for {} batches, {} with the trainer",
            job.session,
            printable(&job.name),
            size(job.slab_bytes),
            job.slab_batches,
            job.lent_slots,
        )?;
        if job.wrong_shards > 0 {
            write!(f, ", {} shards were corrupt", job.wrong_shards)?;
        }
        match &job.tenant {
            Some(tenant) => writeln!(f, ", tenant {}", printable(tenant))?,
            None => writeln!(f)?,
        }
        if let Some(reading) = &job.reading {
            writeln!(f, "        reads {reading}")?;
        }
        if let Some(progress) = &job.progress {
            writeln!(f, "        {progress}")?;
        }
        if let Some(Awaited { waited_for, seconds, url, endpoint, last_error }) = &job.awaited {
            // Words of the daemon's own.
            let what = match waited_for.as_str() {
                "slot" => "memory that the trainer returns with its batches".to_owned(),
                "slab" => "memory that other jobs hold".to_owned(),
                "queue" => "a shard that another rank holds".to_owned(),
                "tier_read" => "a read from a tier".to_owned(),
                other => printable(other),
            };
            write!(f, "        has waited {seconds} s for {what}")?;
            for (what, value) in [("", url), ("at ", endpoint), ("last error: ", last_error)] {
                if let Some(value) = value {
                    write!(f, ", {what}{}", printable(value))?;
                }
            }
            writeln!(f)?;
        }
        let decoded = job.told.decoders.iter().flat_map(|(by, reasons)| {
            reasons.iter().map(move |(why, rows)| format!("{rows} by {by} ({why})"))
        });
        let decoded: Vec<_> = decoded.map(|one| printable(&one)).collect();
        if !decoded.is_empty() {
            writeln!(f, "        decoded: {}", decoded.join(", "))?;
        }
        if let Some(slow) = job.told.slowest.first() {
            writeln!(f, "        slowest: {slow}")?;
        }
        write_bad(f, &job.told.bad_samples)
    }
}

impl fmt::Display for SlowSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, url, stage, field, seconds } = self;
        write!(f, "{}", printable(stage))?;
        if let Some(field) = field {
            write!(f, " of {}", printable(field))?;
        }
        let ms = seconds * 1e3;
        write!(f, " took {ms:.0} ms for {} in {}", printable(key), printable(url))
    }
}

fn write_bad(f: &mut fmt::Formatter<'_>, bad: &BadSamples) -> fmt::Result {
    if bad.counts.is_empty() {
        return Ok(());
    }
    let counts = bad.counts.iter().map(|(kind, count)| format!("{count} {}", printable(kind)));
    writeln!(f, "        skipped: {}", counts.collect::<Vec<_>>().join(", "))?;
    for sample in &bad.last {
        let (kind, message) = (printable(&sample.kind), printable(&sample.message));
        writeln!(f, "        {kind}: {message}")?;
    }
    Ok(())
}

fn write_foresight(f: &mut fmt::Formatter<'_>, forecast: &ForecastReport) -> fmt::Result {
    if forecast.jobs.is_empty() {
        return Ok(());
    }
    let slack = match forecast.slack {
        None => "all they need is cached or in flight".to_owned(),
        Some(late) if late < 0.0 => format!("the next fetch is {:.1} s late", -late),
        Some(slack) => format!("the next fetch must begin within {slack:.1} s"),
    };
    writeln!(
        f,
        "foresight  {} jobs; link {}/s; {slack}; {} shards prefetched, {} evicted for them",
        forecast.jobs.len(),
        size(forecast.bandwidth as u64),
        forecast.fetches,
        forecast.evictions,
    )?;
    for job in &forecast.jobs {
        let Some(lacks) = &job.lacks else { continue };
        let (url, needed) = (printable(&lacks.url), lacks.needed_in);
        write!(f, "        job {} needs {url} in {needed:.1} s; ", job.job)?;
        match lacks.arrives_in {
            Some(arrives) => writeln!(f, "it arrives in {arrives:.1} s")?,
            None => writeln!(f, "{}", why_not(lacks))?,
        }
    }
    let Some(remedy) = &forecast.lacks else { return Ok(()) };
    let cache = remedy.cache.map(|bytes| format!("{} more cache", size(bytes)));
    let link = remedy.bandwidth.map(|rate| format!("{}/s more bandwidth", size(rate as u64)));
    let more: Vec<_> = cache.into_iter().chain(link).collect();
    match more.is_empty() {
        true => Ok(()),
        false => writeln!(f, "        jobs wait: {} would end that", more.join(", or ")),
    }
}

fn write_holding(f: &mut fmt::Formatter<'_>, label: &str, of: &Holding) -> fmt::Result {
    let max = of.max_bytes.map(|max| format!(" of {}", size(max))).unwrap_or_default();
    write!(
        f,
        "{label} {}  {}{max} in {} shards",
        printable(&of.name),
        size(of.used_bytes),
        of.shards,
    )?;
    match (of.evict, of.cache) {
        (None, _) => writeln!(f),
        // Compressed shards have no members to be read in place.
        (Some(evict), Some(Cache::Never)) if of.shards > 0 => {
            writeln!(f, ", only compressed shards are cached, {}", evict.name())
        }
        (Some(_), Some(Cache::Never)) => writeln!(f, ", never cached"),
        (Some(evict), _) => writeln!(f, ", {}", evict.name()),
    }
}

fn write_frames(f: &mut fmt::Formatter<'_>, frames: &Memory) -> fmt::Result {
    write!(f, "frames  {} of {}", size(frames.in_use_bytes), size(frames.bytes))?;
    if frames.copies_bytes > 0 {
        write!(f, ", and {} of copies", size(frames.copies_bytes))?;
    }
    let pages = &frames.pages;
    for (bytes, name) in [
        (pages.hugetlb, "2 MiB hugetlb"),
        (pages.collapsed, "2 MiB collapsed"),
        (pages.small, "4 KiB"),
    ] {
        write!(f, "  {} % {name}", bytes.saturating_mul(100) / frames.bytes.max(1))?;
    }
    writeln!(f)
}

fn write_warm_up(f: &mut fmt::Formatter<'_>, warm: &Warming) -> fmt::Result {
    writeln!(
        f,
        "warm    number {}, {}  {} of {} shards cached, {} fetched, {} failed",
        warm.number,
        if warm.done { "ended" } else { "running" },
        warm.fetched + warm.cached,
        warm.shards,
        size(warm.bytes),
        warm.failed,
    )
}

fn write_audit(f: &mut fmt::Formatter<'_>, audit: &AuditReport) -> fmt::Result {
    let AuditReport { path, written, lost, failing } = audit;
    write!(f, "audit   {}  {written} lines, {lost} lost", printable(&path.to_string_lossy()))?;
    match failing {
        Some(why) => writeln!(f, ", cannot be written: {}", printable(why)),
        None => writeln!(f),
    }
}

/// Checkpoints in a line; nothing on a node that has none.
fn write_checkpoints(f: &mut fmt::Formatter<'_>, all: &CheckpointsReport) -> fmt::Result {
    if all.checkpoints.is_empty() {
        return Ok(());
    }
    let oldest =
        all.oldest_seconds.map_or(String::new(), |age| format!(", the oldest for {age} s"));
    writeln!(
        f,
        "saves   {} checkpoints, {} on the tiers, {} not in the store yet{oldest}",
        all.checkpoints.len(),
        size(all.staged_bytes),
        size(all.backlog_bytes),
    )?;
    match all.held_files {
        0 => Ok(()),
        held => {
            writeln!(f, "        {held} files fail to upload: `forebay checkpoint ls` tells why")
        }
    }
}

fn write_cluster(f: &mut fmt::Formatter<'_>, cluster: &ClusterReport) -> fmt::Result {
    let (members, group) = (&cluster.members, printable(&cluster.group));
    let received = members.iter().map(|member| member.received_bytes).sum::<u64>();
    writeln!(
        f,
        "cluster {group}  {} nodes, {} received from them, {} sent to them",
        members.len(),
        size(received),
        size(cluster.serving.sent_bytes),
    )?;
    for trouble in own_troubles(cluster) {
        writeln!(f, "        {trouble}")?;
    }
    // A large cluster has a thousand members that are well.
    for member in members.iter().filter(|member| !is_well(member)).take(MEMBERS_SHOWN) {
        let (name, state) = (printable(&member.name), member_state(member));
        let told: Vec<_> = std::iter::once(state.to_owned()).chain(differences(member)).collect();
        writeln!(f, "        {name}: {}", told.join(", "))?;
    }
    Ok(())
}

/// The whole status on one screen.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "forebay {}  pid {}", printable(&self.release), self.pid)?;
        if let Some(configuration) = &self.configuration {
            writeln!(f, "config  {configuration}")?;
        }
        for tier in &self.tiers {
            writeln!(f, "tier    {}", TierLines(tier))?;
        }
        self.sources.iter().try_for_each(|source| write_source(f, source))?;
        self.cluster.as_ref().map_or(Ok(()), |cluster| write_cluster(f, cluster))?;
        for mount in self.mounts.iter().filter(|mount| mount.hangs) {
            let (path, stuck) = (mount.mount.to_string_lossy(), mount.stuck.len());
            writeln!(f, "mount   {} hangs: {stuck} readers wait for it", printable(&path))?;
        }
        write_foresight(f, &self.foresight)?;
        if self.cache.counters.through_bytes > 0 {
            let through = size(self.cache.counters.through_bytes);
            writeln!(f, "        read past every tier: {through}")?;
        }
        // Without rules the only entry is the rest, which is the whole cache.
        let holdings = &self.cache.holdings;
        for (label, all) in [("dataset", &holdings.datasets), ("tenant ", &holdings.tenants)] {
            for of in all.iter().filter(|_| all.len() > 1) {
                write_holding(f, label, of)?;
            }
        }
        let fills = &self.fills;
        writeln!(
            f,
            "fills   {} of {} running, {} waiting, {} paused",
            fills.running, fills.limit, fills.waiting, fills.paused
        )?;
        write_frames(f, &self.frames)?;
        writeln!(f, "slabs   {} of {}", size(self.slab_bytes), size(self.slab_limit_bytes))?;
        write_checkpoints(f, &self.checkpoints)?;
        for job in &self.jobs {
            write!(f, "job     {}", JobLines(job))?;
        }
        if let Some(gpus) = &self.gpus {
            write!(f, "{gpus}")?;
        }
        self.warm_ups.iter().try_for_each(|warm| write_warm_up(f, warm))?;
        self.audit.as_ref().map_or(Ok(()), |audit| write_audit(f, audit))
    }
}
