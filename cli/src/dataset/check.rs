//! `forebay dataset check`.
//!
//! Each shard is told by itself, in the order it was named; one that cannot be asked for keeps
//! nothing of the others from being told.

use std::collections::BTreeMap;

use bytesize::ByteSize;
use forebay_api::requests::{Check as Asked, Finding};
use forebay_client::{Admin, Deadline};
use forebay_error::{Error, ErrorKind, Problem, Result, shown};
use forebay_source::Options;
use forebay_store::CopyState as Held;
use indicatif::ProgressBar;
use serde::{Serialize, Serializer};

use super::super::{
    ANSWER_TIMEOUT, Done, Launcher, Named, Query, WithLeftOut, bar_style, print, print_json,
    unexpected,
};
use super::distinct;

/// Compare what the cache has of shards with what their origin has now.
///
/// Each is whole, partial, arriving, absent (not cached), stale (the origin has another version),
/// missing (the origin has none), broken (its archive breaks off) or unknown (the origin gives no
/// answer). Exit code 1 tells that one is stale, missing, broken, unknown, or wrong. Nothing is
/// changed; a daemon is started if none runs.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Check {
    /// Shards: URLs or paths, with braces (`{000..099}`) and globs; or a data set's name, for what
    /// its pattern matches.
    #[arg(required = true, value_name = "URLS")]
    urls: Vec<String>,
    /// Also read every whole copy and compare all of its bytes, and so each member, with the
    /// checksums of what the origin sent.
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    query: Query,
}

/// State of a shard, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ShardStatus {
    Whole,
    Partial,
    Arriving,
    Absent,
    Stale,
    Missing,
    Broken,
    Unknown,
}

impl ShardStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Partial => "partial",
            Self::Arriving => "arriving",
            Self::Absent => "absent",
            Self::Stale => "stale",
            Self::Missing => "missing",
            Self::Broken => "broken",
            Self::Unknown => "unknown",
        }
    }

    /// Returns true if origin and cache agree, as far as both are present.
    fn is_right(self) -> bool {
        matches!(self, Self::Whole | Self::Partial | Self::Arriving | Self::Absent)
    }
}

/// Result for a shard.
#[derive(Debug, Serialize)]
pub(super) struct Answer<'a> {
    #[serde(serialize_with = "without_query")]
    pub(super) url: &'a str,
    pub(super) state: ShardStatus,
    /// The tier that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    /// Bytes of the origin's object.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Bytes that are here of one that is not whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    here_bytes: Option<u64>,
    /// Excerpts of it.
    excerpts: u64,
    /// Difference from the origin's bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong: Option<String>,
    /// Reason the origin gives no version.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn without_query<S: Serializer>(url: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&shown(url))
}

/// Totals.
#[derive(Serialize)]
struct Document<'a> {
    shards: &'a [Answer<'a>],
    summary: BTreeMap<&'static str, u64>,
    wrong: u64,
}

impl<'a> Answer<'a> {
    fn of(url: &'a str, found: Finding) -> Self {
        let Finding { copy, tier, bytes, here_bytes, excerpts, origin, flaw, error, .. } = found;
        let error = origin.or(error).map(Problem::into_error);
        let state = match (&error, copy) {
            (Some(error), Some(_)) if error.kind() == ErrorKind::NotFound => ShardStatus::Missing,
            (Some(_), _) | (None, None) => ShardStatus::Unknown,
            (None, Some(Held::Whole)) => ShardStatus::Whole,
            (None, Some(Held::Partial)) => ShardStatus::Partial,
            (None, Some(Held::Arriving)) => ShardStatus::Arriving,
            (None, Some(Held::Broken)) => ShardStatus::Broken,
            (None, Some(Held::Stale)) => ShardStatus::Stale,
            (None, Some(Held::Absent)) => ShardStatus::Absent,
        };
        let wrong = flaw.map(|flaw| flaw.into_error().to_string());
        let error = error.map(|error| error.to_string());
        Self { url, state, tier, bytes, here_bytes, excerpts, wrong, error }
    }

    /// Bytes that a fetch would bring.
    pub(super) fn missing_bytes(&self) -> Option<u64> {
        Some(self.bytes?.saturating_sub(self.here_bytes.unwrap_or(0)))
    }

    fn line(&self) -> String {
        let size = |bytes: u64| ByteSize(bytes).display().iec().to_string();
        let mut line = format!("{}  {}", shown(self.url), self.state.word());
        let on = self.tier.as_ref().map(|tier| format!(" on {tier}")).unwrap_or_default();
        line += &match (self.state, &self.error) {
            (ShardStatus::Partial | ShardStatus::Arriving, _) => {
                let (here, all) = (self.here_bytes.unwrap_or(0), self.bytes.unwrap_or(0));
                format!("{on}, {} of {}", size(here), size(all))
            }
            (ShardStatus::Stale, _) => format!("{on}: the origin has another version"),
            (ShardStatus::Missing, _) if self.tier.is_some() => {
                format!(" at its origin; a copy is{on}")
            }
            (ShardStatus::Missing, _) => " at its origin".to_owned(),
            (ShardStatus::Unknown, Some(error)) => format!(": {error}"),
            (ShardStatus::Absent, _) => ": not cached".to_owned(),
            _ => on,
        };
        match self.excerpts {
            0 => {}
            1 => line += ", an excerpt of it is",
            many => line += &format!(", {many} excerpts of it are"),
        }
        match &self.wrong {
            Some(wrong) => format!("{line}, wrong: {wrong}"),
            None => line,
        }
    }
}

pub(super) fn run(arguments: &Check, launcher: &Launcher) -> Done {
    let Named { urls, left_out } = distinct(&arguments.urls, &arguments.query.target, launcher)?;
    let admin = arguments.query.target.admin(launcher)?;
    let tell = |answer: &Answer<'_>| match arguments.query.output.json {
        true => Ok(()),
        false => print(&answer.line()),
    };
    let answers = ask(&admin, &urls, arguments.verify, tell)?;
    let mut summary = BTreeMap::new();
    for answer in &answers {
        *summary.entry(answer.state.word()).or_default() += 1;
    }
    let wrong = answers.iter().filter(|answer| answer.wrong.is_some()).count() as u64;
    let differ = answers.iter().filter(|answer| !answer.state.is_right() || answer.wrong.is_some());
    let differ = differ.count();
    if arguments.query.output.json {
        let document = &Document { shards: &answers, summary, wrong };
        print_json(&WithLeftOut { document, left_out: &left_out })?;
    } else {
        let counts = summary.iter().map(|(word, count): (_, &u64)| format!("{count} {word}"));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let verified = if arguments.verify { format!(", {wrong} wrong") } else { String::new() };
        print(&format!("{} shards: {counts}{verified}", answers.len()))?;
    }
    if differ == 0 {
        return Ok(());
    }
    let is_unknown = |answer: &Answer<'_>| matches!(answer.state, ShardStatus::Unknown);
    let all_unknown = answers.iter().all(|answer| answer.state.is_right() || is_unknown(answer));
    let kind = match (wrong > 0, all_unknown) {
        (true, _) => ErrorKind::Corrupt,
        (false, true) => ErrorKind::Unavailable,
        (false, false) => ErrorKind::Invalid,
    };
    let advice = if all_unknown {
        "check the origin and its credentials, then check again"
    } else {
        "`forebay dataset warm` replaces stale copies, as a job's next use does; `forebay scrub` \
         drops corrupt ones; upload missing and broken shards again"
    };
    Err(Error::new(kind, "cache and origin differ in some shards")
        .at("shards", differ)
        .advise(advice)
        .into())
}

/// Has the daemon look for every shard, several at once, and hands each answer to `tell` in the
/// shards' order.
pub(super) fn ask<'a>(
    admin: &Admin,
    urls: &'a [String],
    verify: bool,
    tell: impl Fn(&Answer<'a>) -> Result<()>,
) -> Result<Vec<Answer<'a>>> {
    let bar = ProgressBar::new(urls.len() as u64)
        .with_style(bar_style("{bar:40} {pos}/{len} shards  {elapsed} (left {eta})"));
    let mut answers = Vec::with_capacity(urls.len());
    let note = |found: Finding| {
        let url = urls.get(answers.len()).filter(|url| **url == found.url);
        let answer = Answer::of(url.ok_or_else(unexpected)?, found);
        bar.inc(1);
        bar.suspend(|| tell(&answer))?;
        answers.push(answer);
        Ok(())
    };
    let asked = Asked { urls: urls.to_vec(), origin: Options::from_env().into_map(), verify };
    admin.follow("/api/v1/checks", &asked, note, &Deadline::after(ANSWER_TIMEOUT))?;
    bar.finish_and_clear();
    if answers.len() < urls.len() {
        return Err(unexpected());
    }
    Ok(answers)
}
