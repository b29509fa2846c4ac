//! `forebay checkpoint show`.

use std::time::{Duration, UNIX_EPOCH};

use bytesize::ByteSize;
use forebay_checkpoints::{CheckpointReport, CheckpointsReport};
use forebay_client::{Deadline, Published};
use forebay_error::{ErrorKind, printable};
use serde::Serialize;

use super::super::{ANSWER_TIMEOUT, Done, Failure, Launcher, Query};
use super::{checkpoint, place};

/// End of the year 9999, beyond which dates have no text. A manifest may name any time.
const CALENDAR: Duration = Duration::from_secs(253_402_300_799);

/// Show a checkpoint: how far its files on this node are, and the files that are published.
///
/// Every file is listed with its length. A file that Forebay published has checksums, which each
/// restore compares.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Arguments {
    /// URL of the checkpoint.
    url: String,
    #[command(flatten)]
    query: Query,
}

/// A checkpoint as this node and its store know it.
#[derive(Debug, Serialize)]
struct Shown {
    /// Files on this node; none if there are none.
    local: Option<CheckpointReport>,
    /// Files in the store; none if nothing is published, or if it is not known.
    published: Option<Published>,
    /// Reason why it is not known, if the store does not tell.
    unknown: Option<String>,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let Arguments { url, query } = arguments;
    let place = place(&query.target, url, launcher)?;
    let published = place.list();
    let admin = query.target.admin(launcher)?;
    let report: CheckpointsReport = admin
        .get("/api/v1/checkpoints", &Deadline::after(ANSWER_TIMEOUT))
        .map_err(Failure::of_request)?;
    let url = url.trim_end_matches('/');
    let local = report.checkpoints.into_iter().find(|one| one.url == url);
    let (published, unknown) = match published {
        Ok(published) => (Some(published), None),
        // Files on their way are worth showing without an answer of the store.
        Err(error) if local.is_none() => return Err(error.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => (None, None),
        Err(error) => (None, Some(error.to_string())),
    };
    query.output.print(&Shown { local, published, unknown }, text)
}

fn text(Shown { local, published, unknown }: &Shown) -> String {
    let mut lines = vec!["on this node:".to_owned()];
    lines.push(match local {
        Some(local) => checkpoint(local),
        None => "  nothing".to_owned(),
    });
    let Some(Published { at_ms, step, files }) = published else {
        let why = unknown.as_deref().map_or_else(|| "not published yet".to_owned(), printable);
        lines.push(format!("in the store:\n  {why}"));
        return lines.join("\n");
    };
    let at = match at_ms {
        Some(at) => {
            let since = Duration::from_millis(*at).min(CALENDAR);
            format!("published {}", humantime::format_rfc3339_seconds(UNIX_EPOCH + since))
        }
        None => "not published by Forebay".to_owned(),
    };
    let step = step.map_or(String::new(), |step| format!(", step {step}"));
    lines.push(format!("in the store: {at}{step}"));
    lines.extend(files.iter().map(|file| {
        let len = ByteSize(file.len).display().iec().to_string();
        let checked = if file.is_checked { "" } else { "  (without checksums)" };
        format!("  {len:>10}  {}{checked}", printable(&file.name))
    }));
    lines.join("\n")
}
