//! What an admin sees: one document, as JSON for scripts and as text for people.

use std::fmt::{self, Write as _};

use bytesize::ByteSize;
use forebay_store::{Counters, Holding};
use forebay_uring::{EngineReport, PageReport};
use serde::{Deserialize, Serialize};

use crate::compose::Node;

/// A daemon's state.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Its release.
    pub release: &'static str,
    /// Its process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: f64,
    /// The I/O engine: which one, why, and what it counted.
    pub engine: EngineReport,
    /// Memory for bytes on their way in.
    pub frames: Memory,
    /// The tier.
    pub tier: Tier,
    /// Bytes of all slabs, and the limit.
    pub slab_bytes: usize,
    /// Bytes all slabs together may have.
    pub slab_limit_bytes: usize,
    /// Jobs connected now.
    pub jobs: Vec<Job>,
}

/// A piece of pinned memory.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    /// Its size.
    pub bytes: usize,
    /// Bytes of it in use.
    pub in_use_bytes: usize,
    /// Bytes of it by page size: the rungs of the huge-page ladder.
    pub pages: PageReport,
}

/// A tier.
#[derive(Debug, Clone, Serialize)]
pub struct Tier {
    /// Its directory.
    pub path: String,
    /// What it counted.
    #[serde(flatten)]
    pub counters: Counters,
    /// What it holds of each data set; last what belongs to none.
    pub datasets: Vec<Holding>,
}

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub session: u64,
    /// Its name.
    pub name: String,
    /// Bytes of its slab.
    pub slab_bytes: usize,
    /// Batches the slab was sized for; below `prefetch` where memory is short.
    pub slab_batches: u32,
    /// Bytes of the slab in slots.
    pub leased_bytes: usize,
    /// Slots with the trainer.
    pub lent_slots: usize,
}

impl Status {
    /// The state of `node` now.
    pub(crate) async fn of(node: &Node) -> Self {
        let sessions = node.sessions.lock().await.clone();
        let job = |(session, name, memory): (_, _, forebay_engine::session::Memory)| Job {
            session,
            name,
            slab_bytes: memory.slab_bytes,
            slab_batches: memory.batches,
            leased_bytes: memory.leased_bytes,
            lent_slots: memory.lent_slots,
        };
        Self {
            release: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            uptime_seconds: node.started.elapsed().as_secs_f64(),
            engine: node.engine.report(),
            frames: Memory {
                bytes: node.frames.capacity(),
                in_use_bytes: node.frames.in_use(),
                pages: node.frames.region().pages(),
            },
            tier: Tier {
                path: node.store.directory().display().to_string(),
                counters: node.store.counters(),
                datasets: node.store.holdings(),
            },
            slab_bytes: node.slabs.used(),
            slab_limit_bytes: node.slabs.limit(),
            jobs: sessions.iter().map(|session| job(session.describe())).collect(),
        }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings always encode")
    }
}

/// A status document as one screen of text.
#[derive(Debug)]
pub(crate) struct Screen<'a>(pub(crate) &'a serde_json::Value);

impl fmt::Display for Screen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |path: &str| self.0.pointer(path).and_then(serde_json::Value::as_u64);
        let size = |path: &str| ByteSize(number(path).unwrap_or(0)).display().iec().to_string();
        let text = |path: &str| match self.0.pointer(path) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => "?".to_owned(),
        };
        let count = |path: &str| number(path).unwrap_or(0);
        writeln!(f, "forebay {}  pid {}", text("/release"), text("/pid"))?;
        writeln!(
            f,
            "tier    {}  {} of {} in {} shards",
            text("/tier/path"),
            size("/tier/used_bytes"),
            size("/tier/capacity_bytes"),
            count("/tier/shards"),
        )?;
        writeln!(
            f,
            "        found {}, missed {}; fetched {} ({}), failed {}, evicted {}, corrupt {}",
            count("/tier/hits"),
            count("/tier/misses"),
            count("/tier/fills"),
            size("/tier/origin_bytes"),
            count("/tier/failed_fills"),
            count("/tier/evictions"),
            count("/tier/corruptions"),
        )?;
        let datasets = self.0.pointer("/tier/datasets").and_then(serde_json::Value::as_array);
        // Without rules there is but the rest, which is the tier.
        for dataset in datasets.filter(|all| all.len() > 1).into_iter().flatten() {
            let number = |name: &str| dataset.get(name).and_then(serde_json::Value::as_u64);
            let text = |name: &str| dataset.get(name).and_then(serde_json::Value::as_str);
            let size = |bytes: u64| ByteSize(bytes).display().iec();
            let used = size(number("used_bytes").unwrap_or(0));
            let max = number("max_bytes").map(|max| format!(" of {}", size(max)));
            writeln!(
                f,
                "        {}  {used}{} in {} shards, {}",
                text("name").unwrap_or("?"),
                max.unwrap_or_default(),
                number("shards").unwrap_or(0),
                text("evict").unwrap_or("?"),
            )?;
        }
        let engine = match self.0.pointer("/engine/kind/threads/reason") {
            Some(_) => format!("threads ({})", text("/engine/kind/threads/reason")),
            None => format!("io_uring ({})", text("/engine/ring_flags")),
        };
        let (registered, plain) = (size("/engine/registered_bytes"), "/engine/unregistered_bytes");
        writeln!(f, "engine  {engine}; memory registered {registered}, not {}", size(plain))?;
        if let Some(refusal) = self.0.pointer("/engine/refusal").and_then(|why| why.as_str()) {
            writeln!(f, "        registration was refused: {refusal}")?;
        }
        let mut pages = String::new();
        let total = count("/frames/bytes").max(1);
        for (rung, name) in
            [("hugetlb", "2 MiB hugetlb"), ("collapsed", "2 MiB collapsed"), ("small", "4 KiB")]
        {
            let share = count(&format!("/frames/pages/{rung}")) * 100 / total;
            write!(pages, "  {share} % {name}")?;
        }
        writeln!(
            f,
            "frames  {} of {}{pages}",
            size("/frames/in_use_bytes"),
            size("/frames/bytes")
        )?;
        writeln!(f, "slabs   {} of {}", size("/slab_bytes"), size("/slab_limit_bytes"))?;
        let jobs = self.0.pointer("/jobs").and_then(serde_json::Value::as_array);
        for job in jobs.into_iter().flatten() {
            let number = |name: &str| job.get(name).and_then(serde_json::Value::as_u64);
            let slab = number("slab_bytes").unwrap_or(0);
            let lent = number("lent_slots").unwrap_or(0);
            let batches = number("slab_batches").unwrap_or(0);
            writeln!(
                f,
                "job     {} {}  slab {} for {batches} batches, {lent} with the trainer",
                number("session").unwrap_or(0),
                job.get("name").and_then(serde_json::Value::as_str).unwrap_or("?"),
                ByteSize(slab).display().iec(),
            )?;
        }
        Ok(())
    }
}
