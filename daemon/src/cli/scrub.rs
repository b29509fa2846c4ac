//! `forebay scrub`.

use forebay_error::{Error, ErrorKind};
use forebay_store::Scrub;
use forebay_wire::frame::Receiver;
use forebay_wire::message::{Reply, Request};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Done, Launcher, Target, print, print_json, unexpected};

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
    let connection = arguments.target.connect(launcher)?;
    connection.send(&Request::Scrub { keep: arguments.dry_run })?;
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template(
            "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {elapsed} (left {eta})  {msg}",
        )
        .expect("a constant, valid template"),
    );
    let mut receiver = Receiver::default();
    let scrub: Scrub = loop {
        let json = match connection.receive(&mut receiver)? {
            Reply::Scrub(json) => json,
            Reply::Failed { error, .. } => return Err(error.into()),
            _ => return Err(unexpected().into()),
        };
        let scrub: Scrub = serde_json::from_str(&json).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("the daemon's report cannot be read: {error}"))
        })?;
        bar.set_length(scrub.bytes);
        bar.set_position(scrub.bytes_done);
        bar.set_message(format!("{} wrong", scrub.wrong));
        if scrub.done {
            break scrub;
        }
    };
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
