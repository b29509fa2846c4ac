//! `forebay scrub`.

use forebay_api::scrubs::Scrubbing;
use forebay_client::Deadline;
use forebay_error::{Error, ErrorKind};
use forebay_store::Scrub;
use indicatif::{ProgressBar, ProgressStyle};

use super::{ANSWER_TIMEOUT, Done, Failure, Launcher, Target, print, print_json, unexpected};

/// Compare every byte in the cache with what its origin sent.
///
/// The daemon reads each shard beside its other work and drops what is wrong; the next use fetches
/// it anew. Exit code 1 tells that something was wrong. A daemon is started if none runs.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Tell what is wrong and leave it.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let admin = arguments.target.admin(launcher)?;
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template(
            "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {elapsed} (left {eta})  {msg}",
        )
        .expect("a constant, valid template"),
    );
    let mut last = None;
    let show = |told: Scrubbing| {
        bar.set_length(told.scrub.bytes);
        bar.set_position(told.scrub.bytes_done);
        bar.set_message(format!("{} wrong", told.scrub.wrong));
        last = Some(told);
        Ok(())
    };
    let path = format!("/api/v1/scrubs?follow=true&dry_run={}", arguments.dry_run);
    let followed = admin.follow(&path, &(), show, &Deadline::after(ANSWER_TIMEOUT));
    followed.map_err(Failure::of_request)?;
    let scrub = last.filter(|told| told.scrub.done).ok_or_else(unexpected)?.scrub;
    bar.finish_and_clear();
    tell(&scrub, arguments.json)?;
    if scrub.wrong == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, "copies in the cache are wrong")
        .at("wrong", scrub.wrong)
        .at("left", scrub.wrong - scrub.dropped)
        .advise("look at the device: `dmesg`, SMART; what was dropped is fetched anew")
        .into())
}

fn tell(scrub: &Scrub, json: bool) -> Done {
    if json {
        return Ok(print_json(scrub)?);
    }
    for flaw in &scrub.flaws {
        let what = if flaw.dropped { "dropped" } else { "left" };
        print(&format!("{}  {}  {}  {what}", flaw.tier, flaw.file, flaw.why))?;
    }
    let size = bytesize::ByteSize(scrub.bytes_done).display().iec();
    Ok(print(&format!("{} shards, {size}, {} wrong", scrub.shards_done, scrub.wrong))?)
}
