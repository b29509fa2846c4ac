//! `forebay dataset`.

mod check;
mod warm;

use std::collections::HashSet;
use std::time::Duration;

use forebay_client::Deadline;
use forebay_shard::Commands;
use forebay_wire::message::{Reply, Request};
use serde::Serialize;

use super::{Done, Failure, Launcher, Target, print, print_json, shards, unexpected};

/// Heads of a million shards are read within this time.
const FORGET_TIMEOUT: Duration = Duration::from_secs(120);

/// Look after what the cache holds of data sets.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Drop every copy of shards now, whatever their version, on every tier.
    ///
    /// Pinned ones, too; jobs that read one finish with the old copy. The next use asks the origin
    /// which version there is and fetches it anew.
    Evict(Evict),
    Warm(warm::Warm),
    Check(check::Check),
}

#[derive(Debug, clap::Args)]
pub(super) struct Evict {
    /// The shards' URLs, as jobs name them.
    #[arg(required = true, value_name = "URL")]
    urls: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Only count the copies.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What became of a shard.
#[derive(Debug, Serialize)]
struct Forgot<'a> {
    url: &'a str,
    copies: u64,
    dropped: bool,
}

pub(super) fn run(verb: &Verb, launcher: &Launcher) -> Done {
    match verb {
        Verb::Evict(arguments) => evict(arguments),
        Verb::Warm(arguments) => warm::run(arguments, launcher),
        Verb::Check(arguments) => check::run(arguments, launcher),
    }
}

/// The shards a command line names, each once.
fn distinct(arguments: &[String], target: &Target, launcher: &Launcher) -> Done<Vec<String>> {
    // A command is run by a job, and these have none.
    let mut urls = shards(arguments, Commands::Refused, target, launcher)?;
    let mut seen = HashSet::with_capacity(urls.len());
    urls.retain(|url| seen.insert(url.clone()));
    Ok(urls)
}

fn evict(arguments: &Evict) -> Done {
    let connection = arguments.target.connect_if_running()?;
    let mut all = Vec::with_capacity(arguments.urls.len());
    for url in &arguments.urls {
        let asked = Request::Forget { url: url.clone(), dry: arguments.dry_run };
        let answer = connection.ask(&asked, &Deadline::after(FORGET_TIMEOUT));
        match answer.map_err(Failure::of_request)? {
            Reply::Forgot { copies } => {
                all.push(Forgot { url, copies, dropped: !arguments.dry_run });
            }
            _ => return Err(unexpected().into()),
        }
    }
    if arguments.json {
        return Ok(print_json(&all)?);
    }
    for Forgot { url, copies, dropped } in &all {
        let what = if *dropped { "dropped" } else { "would be dropped" };
        print(&format!("{url}  {copies} {what}"))?;
    }
    Ok(())
}
