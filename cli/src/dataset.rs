//! `forebay dataset`.

mod check;
mod pin;
mod warm;

use std::collections::HashSet;
use std::path::Path;

use forebay_api::datasets::DatasetReport;
use forebay_api::requests::{Evicted, Shards};
use forebay_client::Deadline;
use forebay_error::{ErrorKind, Result};
use forebay_shard::Commands;

use super::{
    ANSWER_TIMEOUT, Change, Done, Failure, Launcher, Named, Query, SEARCH_TIMEOUT, Target,
    path_part, shards,
};

/// List data sets; pin, evict, fetch or check their shards.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the data sets: the rule of each, and its cached bytes.
    Ls(Query),
    /// Show one data set.
    Show(Show),
    /// Evict every copy of shards now: all versions, all tiers, pinned ones too.
    ///
    /// Jobs that read a copy finish with it; jobs that ask for a shard while it still arrives share
    /// that fetch. The next use asks the origin for the current version and fetches it.
    Evict(Evict),
    Pin(pin::Pin),
    Unpin(pin::Unpin),
    Warm(warm::Warm),
    Check(check::Check),
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The data set, as printed by `forebay dataset ls`.
    name: String,
    #[command(flatten)]
    query: Query,
}

#[derive(Debug, clap::Args)]
pub(super) struct Evict {
    /// URLs of shards, as jobs name them; quoted URL patterns (`*` stays within a folder, `**`
    /// crosses folders); names of data sets.
    #[arg(required = true, value_name = "URL|PATTERN|NAME")]
    urls: Vec<String>,
    #[command(flatten)]
    change: Change,
}

pub(super) fn run(verb: &Verb, launcher: &Launcher) -> Done {
    match verb {
        Verb::Ls(arguments) => ls(arguments),
        Verb::Show(arguments) => show(arguments),
        Verb::Evict(arguments) => evict(arguments),
        Verb::Pin(arguments) => pin::pin(arguments),
        Verb::Unpin(arguments) => pin::unpin(arguments),
        Verb::Warm(arguments) => warm::run(arguments, launcher),
        Verb::Check(arguments) => check::run(arguments, launcher),
    }
}

fn ls(query: &Query) -> Done {
    let admin = query.target.admin_if_running()?;
    query.show(&admin, "/api/v1/datasets", |all: &Vec<DatasetReport>| {
        all.iter().map(DatasetReport::to_string).collect::<Vec<_>>().join("\n")
    })
}

fn show(Show { name, query }: &Show) -> Done {
    let admin = query.target.admin_if_running()?;
    query.show(&admin, &path_of(name), DatasetReport::to_string)
}

fn path_of(name: &str) -> String {
    format!("/api/v1/datasets/{}", path_part(name))
}

/// Returns the shards that a command line names, each once.
fn distinct(arguments: &[String], target: &Target, launcher: &Launcher) -> Done<Named> {
    let arguments = arguments.iter().map(|argument| pattern_of(argument, target));
    let arguments = arguments.collect::<Done<Vec<_>>>()?;
    // Commands are run by jobs, and these shards have none.
    let mut named = shards(&arguments, Commands::Refused, target, launcher)?;
    let mut seen = HashSet::with_capacity(named.urls.len());
    named.urls.retain(|url| seen.insert(url.clone()));
    Ok(named)
}

/// Returns the pattern of the data set that an argument names, or the argument itself.
fn pattern_of(argument: &str, target: &Target) -> Done<String> {
    if argument.contains(['/', ':', '{', '*', '?', '[']) || Path::new(argument).exists() {
        return Ok(argument.to_owned());
    }
    // Without a daemon there are no data sets, and the argument is a path that does not exist.
    let Ok(admin) = target.admin_if_running() else { return Ok(argument.to_owned()) };
    let found: Result<DatasetReport> =
        admin.get(&path_of(argument), &Deadline::after(ANSWER_TIMEOUT));
    match found {
        Ok(dataset) => Ok(dataset.r#match),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(argument.to_owned()),
        Err(error) => Err(Failure::of_request(error)),
    }
}

fn evict(Evict { urls, change }: &Evict) -> Done {
    let admin = change.target.admin_if_running()?;
    let path = format!("/api/v1/evictions?dry_run={}", change.dry_run);
    let request = Shards { urls: urls.clone() };
    let answer = admin.post(&path, &request, &Deadline::after(SEARCH_TIMEOUT));
    let evicted: Vec<Evicted> = answer.map_err(Failure::of_request)?;
    change.output.print(&evicted, |evicted| {
        let line = |one: &Evicted| {
            let what = if one.dropped { "evicted" } else { "would be evicted" };
            let copies = if one.copies == 1 { "copy" } else { "copies" };
            format!("{}  {} {copies} {what}\n", one.url, one.copies)
        };
        evicted.iter().map(line).collect()
    })
}
