//! `forebay scrub`.

use std::fmt::Write as _;

use bytesize::ByteSize;
use forebay_api::scrubs::Scrubbing;
use forebay_client::Deadline;
use forebay_error::{Error, ErrorKind};
use forebay_store::Scrub;
use indicatif::ProgressBar;

use super::{ANSWER_TIMEOUT, Change, Done, Failure, Launcher, bar_style, unexpected};

/// Verify every cached byte against its origin's checksums.
///
/// The daemon reads each shard beside its other work and drops wrong copies; the next use fetches
/// them again. Exit code 1: something was wrong. A daemon is started if none runs.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    change: Change,
}

pub(super) fn run(Arguments { change }: &Arguments, launcher: &Launcher) -> Done {
    let admin = change.target.admin(launcher)?;
    let bar = ProgressBar::new(0).with_style(bar_style(
        "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {elapsed} (left {eta})  {msg}",
    ));
    let mut last = None;
    let show = |progress: Scrubbing| {
        bar.set_length(progress.scrub.bytes);
        bar.set_position(progress.scrub.bytes_done);
        bar.set_message(format!("{} wrong", progress.scrub.wrong));
        last = Some(progress);
        Ok(())
    };
    let path = format!("/api/v1/scrubs?follow=true&dry_run={}", change.dry_run);
    let followed = admin.follow(&path, &(), show, &Deadline::after(ANSWER_TIMEOUT));
    followed.map_err(Failure::of_request)?;
    let scrub = last.filter(|last| last.scrub.done).ok_or_else(unexpected)?.scrub;
    bar.finish_and_clear();
    change.output.print(&scrub, text)?;
    if scrub.wrong == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, "copies in the cache are corrupt")
        .at("wrong", scrub.wrong)
        .at("left", scrub.wrong - scrub.dropped)
        .advise("check the device: `dmesg`, SMART; dropped copies are fetched again")
        .into())
}

fn text(scrub: &Scrub) -> String {
    let mut text = String::new();
    for flaw in &scrub.flaws {
        let what = if flaw.dropped { "dropped" } else { "left" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}  {}  {}  {what}", flaw.tier, flaw.file, flaw.why);
    }
    let size = ByteSize(scrub.bytes_done).display().iec();
    let _ = write!(text, "{} shards, {size}, {} corrupt", scrub.shards_done, scrub.wrong);
    text
}
