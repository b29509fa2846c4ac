//! A status document as text for people.

use std::fmt::{self, Write as _};

use bytesize::ByteSize;
use serde::Deserialize;

use crate::configuration::Configuration;
use crate::gpus::GpuReport;
use crate::progress::ProgressReport;

/// A status document as one screen of text.
#[derive(Debug)]
pub struct Screen<'a>(pub &'a serde_json::Value);

/// A part of a status document, read with a word for what is missing.
struct Part<'a>(&'a serde_json::Value);

impl Part<'_> {
    fn number(&self, path: &str) -> Option<u64> {
        let number = self.0.pointer(path)?;
        number.as_u64().or_else(|| number.as_f64().map(|number| number as u64))
    }

    fn count(&self, path: &str) -> u64 {
        self.number(path).unwrap_or(0)
    }

    fn size(&self, path: &str) -> String {
        ByteSize(self.count(path)).display().iec().to_string()
    }

    fn text(&self, path: &str) -> String {
        match self.0.pointer(path) {
            Some(serde_json::Value::String(text)) => printable(text),
            Some(other) => other.to_string(),
            None => "?".to_owned(),
        }
    }

    fn parts(&self, path: &str) -> impl Iterator<Item = Part<'_>> {
        let parts = self.0.pointer(path).and_then(serde_json::Value::as_array);
        parts.into_iter().flatten().map(Part)
    }
}

/// A tier of a status document, as lines of text.
pub struct TierLines<'a>(pub &'a serde_json::Value);

impl fmt::Display for TierLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tier = Part(self.0);
        let share = tier.count("/used_bytes") * 100 / tier.count("/capacity_bytes").max(1);
        write!(
            f,
            "{}  {}, {}  {} of {} ({share} %) in {} shards",
            tier.text("/name"),
            tier.text("/class"),
            tier.text("/mode"),
            tier.size("/used_bytes"),
            tier.size("/capacity_bytes"),
            tier.count("/shards"),
        )?;
        if tier.number("/path").is_none() && tier.0.pointer("/path").is_some() {
            write!(f, "  {}", tier.text("/path"))?;
        }
        if tier.0.pointer("/device").is_some() {
            write!(f, " on {}", tier.text("/device"))?;
        }
        if tier.text("/condition") != "normal" {
            write!(f, "\n        {}: {}", tier.text("/condition"), tier.text("/why"))?;
        }
        if tier.count("/limit_bytes") < tier.count("/capacity_bytes") {
            let limit = tier.size("/limit_bytes");
            write!(f, "\n        other data fill the disk: it may hold {limit} now")?;
        }
        if let Some(left) = tier.0.pointer("/writes_left_bytes").and_then(serde_json::Value::as_i64)
        {
            let size = ByteSize(left.unsigned_abs()).display().iec();
            let what = if left < 0 { "overdrawn by" } else { "left to write today:" };
            write!(f, "\n        {what} {size}")?;
        }
        write!(
            f,
            "\n        found {}, missed {}; fetched {} ({}), failed {}, moved in {}, evicted {}, corrupt {}",
            tier.count("/hits"),
            tier.count("/misses"),
            tier.count("/fills"),
            tier.size("/origin_bytes"),
            tier.count("/failed_fills"),
            tier.count("/moved_in"),
            tier.count("/evictions"),
            tier.count("/corruptions"),
        )?;
        if tier.0.pointer("/engine").is_none() {
            return Ok(());
        }
        let engine = match tier.0.pointer("/engine/kind/threads/reason") {
            Some(_) => format!("threads ({})", tier.text("/engine/kind/threads/reason")),
            None => {
                let flags =
                    tier.0.pointer("/engine/ring_flags").and_then(serde_json::Value::as_array);
                let flags = flags.into_iter().flatten().filter_map(serde_json::Value::as_str);
                format!("io_uring ({})", flags.collect::<Vec<_>>().join(", "))
            }
        };
        write!(
            f,
            "\n        {engine}; {} of memory registered",
            tier.size("/engine/registered_bytes")
        )?;
        if tier.count("/engine/unregistered_bytes") > 0 {
            write!(f, ", {} not", tier.size("/engine/unregistered_bytes"))?;
        }
        if let Some(refusal) = tier.0.pointer("/engine/refusal").and_then(|why| why.as_str()) {
            write!(f, "\n        registration failed: {refusal}")?;
        }
        Ok(())
    }
}

/// An endpoint of a status document, as lines of text.
struct SourceLines<'a>(&'a serde_json::Value);

impl fmt::Display for SourceLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = Part(self.0);
        write!(
            f,
            "{}  {} received, {} of {} requests in flight, {} waiting",
            source.text("/endpoint"),
            source.size("/bytes"),
            source.count("/under_way"),
            source.count("/limit"),
            source.count("/waiting"),
        )?;
        if source.text("/down") == "true" {
            write!(f, "\n        circuit breaker open: one request probes it now and then")?;
        }
        let (retries, hedges) = (source.count("/retries"), source.count("/hedges"));
        if retries + hedges + source.count("/breaks") > 0 {
            write!(
                f,
                "\n        {retries} retries, breaker opened {} times; {hedges} hedged requests, {} received twice",
                source.count("/breaks"),
                source.size("/hedged_bytes"),
            )?;
        }
        let compared = |what: &str| source.count(&format!("/checksums/{what}"));
        let (agreed, differed, untold) =
            (compared("agreed"), compared("differed"), compared("untold"));
        if agreed + differed + untold > 0 {
            write!(
                f,
                "\n        its own checksums: {agreed} shards agreed, {differed} differed, {} had none, {untold} not available",
                compared("none"),
            )?;
        }
        Ok(())
    }
}

/// Decoders of a job's rows, as a line of text; none without rows.
struct DecoderLine<'a>(&'a Part<'a>);

impl fmt::Display for DecoderLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decoders = self.0.0.pointer("/decoders").and_then(serde_json::Value::as_object);
        let made = decoders.into_iter().flatten().flat_map(|(by, reasons)| {
            let reasons = reasons.as_object().into_iter().flatten();
            reasons.map(move |(why, rows)| format!("{rows} by {by} ({why})"))
        });
        let made: Vec<_> = made.collect();
        if made.is_empty() { Ok(()) } else { writeln!(f, "        decoded: {}", made.join(", ")) }
    }
}

/// A job of a status document, as lines of text.
pub struct JobLines<'a>(pub &'a serde_json::Value);

impl fmt::Display for JobLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = Part(self.0);
        write!(
            f,
            "{} {}  slab {} for {} batches, {} with the trainer",
            job.count("/session"),
            job.text("/name"),
            job.size("/slab_bytes"),
            job.count("/slab_batches"),
            job.count("/lent_slots"),
        )?;
        if let Some(wrong) = job.number("/wrong_shards").filter(|wrong| *wrong > 0) {
            write!(f, ", {wrong} shards were corrupt")?;
        }
        match job.0.pointer("/tenant") {
            Some(_) => writeln!(f, ", tenant {}", job.text("/tenant"))?,
            None => writeln!(f)?,
        }
        let progress = job.0.pointer("/progress").map(ProgressReport::deserialize);
        if let Some(Ok(progress)) = progress {
            writeln!(f, "        {progress}")?;
        }
        write!(f, "{}{}", DecoderLine(&job), BadLines(&job))
    }
}

/// Skipped samples of a job, as lines of text; none if there are none.
struct BadLines<'a>(&'a Part<'a>);

impl fmt::Display for BadLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.0.pointer("/bad_samples/counts").and_then(serde_json::Value::as_object);
        let counts: Vec<_> = counts
            .into_iter()
            .flatten()
            .map(|(kind, count)| format!("{count} {}", printable(kind)))
            .collect();
        if counts.is_empty() {
            return Ok(());
        }
        writeln!(f, "        passed over: {}", counts.join(", "))?;
        for bad in self.0.parts("/bad_samples/last") {
            writeln!(f, "        {}: {}", bad.text("/kind"), bad.text("/message"))?;
        }
        Ok(())
    }
}

/// Returns the reason a job's missing shard does not come, from a status document.
pub fn why_not(lacks: &serde_json::Value) -> &'static str {
    match lacks.get("refused").and_then(serde_json::Value::as_str) {
        Some("room") => NO_ROOM,
        _ => "its origin does not give it",
    }
}

/// Text for a shard that comes only with its job.
const NO_ROOM: &str =
    "it has no room before then: what is here is needed sooner, or a quota is full";

/// Returns true if foresight covers none of a job's reads, from a status document: its missing
/// shards are then unknown in advance.
pub fn is_kept_by_use(foreseen: &serde_json::Value) -> bool {
    foreseen.get("shards").and_then(serde_json::Value::as_u64) == Some(0)
}

/// Expected reads, as lines of text; none if there are none.
struct ForesightLines<'a>(&'a serde_json::Value);

impl fmt::Display for ForesightLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = Part(self.0);
        let jobs = part.parts("/foresight/jobs").count();
        if jobs == 0 {
            return Ok(());
        }
        let slack = match self.0.pointer("/foresight/slack").and_then(serde_json::Value::as_f64) {
            None => "all they need is cached or in flight".to_owned(),
            Some(late) if late < 0.0 => format!("the next fetch is {:.1} s late", -late),
            Some(slack) => format!("the next fetch must begin within {slack:.1} s"),
        };
        writeln!(
            f,
            "foresight  {jobs} jobs; link {}/s; {slack}; {} shards prefetched, {} evicted for them",
            part.size("/foresight/bandwidth"),
            part.count("/foresight/fetches"),
            part.count("/foresight/evictions"),
        )?;
        for job in part.parts("/foresight/jobs").filter(|job| job.0.get("lacks").is_some()) {
            let seconds = |path: &str| job.0.pointer(path).and_then(serde_json::Value::as_f64);
            let needed = seconds("/lacks/needed_in").unwrap_or_default();
            let (number, url) = (job.count("/job"), job.text("/lacks/url"));
            write!(f, "        job {number} needs {url} in {needed:.1} s; ")?;
            match seconds("/lacks/arrives_in") {
                Some(arrives) => writeln!(f, "it arrives in {arrives:.1} s")?,
                None => writeln!(f, "{}", why_not(&job.0["lacks"]))?,
            }
        }
        if self.0.pointer("/foresight/lacks/cache").is_some() {
            writeln!(
                f,
                "        jobs wait: {} more cache, or {}/s more bandwidth would end that",
                part.size("/foresight/lacks/cache"),
                part.size("/foresight/lacks/bandwidth"),
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Screen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = Part(self.0);
        writeln!(f, "forebay {}  pid {}", status.text("/release"), status.text("/pid"))?;
        let configuration = status.0.pointer("/configuration").cloned();
        let configuration = configuration.and_then(|said| serde_json::from_value(said).ok());
        if let Some(configuration) = &configuration {
            let configuration: &Configuration = configuration;
            writeln!(f, "config  {configuration}")?;
        }
        for tier in status.parts("/tiers") {
            writeln!(f, "tier    {}", TierLines(tier.0))?;
        }
        for source in status.parts("/sources") {
            writeln!(f, "source  {}", SourceLines(source.0))?;
        }
        for mount in status.parts("/mounts").filter(|mount| mount.text("/hangs") == "true") {
            let stuck = mount.parts("/stuck").count();
            let mount = mount.text("/mount");
            writeln!(f, "mount   {mount} hangs: {stuck} readers wait for it")?;
        }
        write!(f, "{}", ForesightLines(self.0))?;
        if status.count("/cache/through_bytes") > 0 {
            let through = status.size("/cache/through_bytes");
            writeln!(f, "        read past every tier: {through}")?;
        }
        // Without rules there is but the rest, which is the cache.
        for (label, path) in [("dataset", "/cache/datasets"), ("tenant ", "/cache/tenants")] {
            let holdings: Vec<_> = status.parts(path).collect();
            for of in holdings.iter().filter(|_| holdings.len() > 1) {
                let max = of.number("/max_bytes").map(|_| format!(" of {}", of.size("/max_bytes")));
                write!(
                    f,
                    "{label} {}  {}{} in {} shards",
                    of.text("/name"),
                    of.size("/used_bytes"),
                    max.unwrap_or_default(),
                    of.count("/shards"),
                )?;
                match (of.0.pointer("/evict"), of.text("/cache").as_str()) {
                    (None, _) => writeln!(f)?,
                    // Members of a compressed file cannot be read in place.
                    (Some(_), "never") if of.count("/shards") > 0 => {
                        writeln!(f, ", only compressed shards are cached, {}", of.text("/evict"))?;
                    }
                    (Some(_), "never") => writeln!(f, ", never cached")?,
                    (Some(_), _) => writeln!(f, ", {}", of.text("/evict"))?,
                }
            }
        }
        writeln!(
            f,
            "fills   {} of {} running, {} waiting",
            status.count("/fills/running"),
            status.count("/fills/limit"),
            status.count("/fills/waiting"),
        )?;
        let mut pages = String::new();
        let total = status.count("/frames/bytes").max(1);
        for (rung, name) in
            [("hugetlb", "2 MiB hugetlb"), ("collapsed", "2 MiB collapsed"), ("small", "4 KiB")]
        {
            let share = status.count(&format!("/frames/pages/{rung}")) * 100 / total;
            write!(pages, "  {share} % {name}")?;
        }
        let (used, all) = (status.size("/frames/in_use_bytes"), status.size("/frames/bytes"));
        writeln!(f, "frames  {used} of {all}{pages}")?;
        let (used, all) = (status.size("/slab_bytes"), status.size("/slab_limit_bytes"));
        writeln!(f, "slabs   {used} of {all}")?;
        for job in status.parts("/jobs") {
            write!(f, "job     {}", JobLines(job.0))?;
        }
        let gpus = status.0.pointer("/gpus").map(GpuReport::deserialize);
        if let Some(Ok(gpus)) = gpus {
            write!(f, "{gpus}")?;
        }
        for warm in status.parts("/warm_ups") {
            let (fetched, cached) = (warm.count("/fetched"), warm.count("/cached"));
            writeln!(
                f,
                "warm    {} {}  {} of {} shards cached, {} fetched, {} failed",
                warm.count("/number"),
                if warm.text("/done") == "true" { "ended" } else { "runs" },
                fetched + cached,
                warm.count("/shards"),
                warm.size("/bytes"),
                warm.count("/failed"),
            )?;
        }
        if let Some(audit) = status.0.pointer("/audit").map(Part) {
            let (path, written) = (audit.text("/path"), audit.count("/written"));
            write!(f, "audit   {path}  {written} lines, {} lost", audit.count("/lost"))?;
            match audit.0.pointer("/failing") {
                Some(_) => writeln!(f, ", cannot be written: {}", audit.text("/failing"))?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

/// Text that others wrote, of which nothing moves the cursor or changes anything else of a
/// terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(shown).collect()
}

fn shown(c: char) -> char {
    if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }
}

/// Text of a trainer's as a terminal may show it.
pub fn cut(text: &str) -> String {
    text.chars().take(TEXT_MAX).map(shown).collect()
}

/// Characters kept of each text that a trainer says: a name has a kilobyte at most in any store,
/// and what is wrong fits as much.
pub(super) const TEXT_MAX: usize = 1024;
