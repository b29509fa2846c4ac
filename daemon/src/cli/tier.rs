//! `forebay tier`.

use std::time::Duration;

use forebay_client::{Connection, Deadline};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Reply, Request, TierChange};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::{ANSWER_TIMEOUT, Done, Failure, Target, print, print_json, unexpected};
use crate::status::TierLines;

/// How long a drain is watched at most. A terabyte leaves a slow disk within that.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Show the cache's tiers, or change how one is used.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show each tier: what it holds, how its device does, what it counted.
    Ls(List),
    /// Move what a tier holds to other tiers, or let it go; nothing new comes to it.
    ///
    /// Jobs go on reading from it meanwhile. `forebay tier enable` takes it back.
    Drain(Drain),
    /// Let go of a tier at once: its device may be taken away.
    ///
    /// What only it holds is fetched anew when it is needed. Its files stay, and count again after
    /// `forebay tier enable`.
    Disable(Change),
    /// Use a tier again; a directory that was let go of is listed anew.
    Enable(Change),
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    #[command(flatten)]
    target: Target,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The tier, as `forebay tier ls` names it.
    name: String,
    #[command(flatten)]
    target: Target,
    /// Tell what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the tier as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Drain {
    #[command(flatten)]
    change: Change,
    /// Wait until the tier is empty.
    #[arg(long)]
    wait: bool,
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Ls(list) => ls(list),
        Verb::Drain(drain) => {
            let connection = change(&drain.change, TierChange::Drain)?;
            if drain.wait && !drain.change.dry_run {
                watch(&connection, &drain.change.name)?;
            }
            show(&connection, &drain.change)
        }
        Verb::Disable(arguments) => {
            let connection = change(arguments, TierChange::Disable)?;
            show(&connection, arguments)
        }
        Verb::Enable(arguments) => {
            let connection = change(arguments, TierChange::Enable)?;
            show(&connection, arguments)
        }
    }
}

fn ls(list: &List) -> Done {
    let tiers = tiers(&list.target.connect_if_running()?)?;
    if list.json {
        return Ok(print_json(&tiers)?);
    }
    for tier in &tiers {
        print(&TierLines(tier).to_string())?;
    }
    Ok(())
}

/// Asks for a change, unless only a rehearsal is wanted.
fn change(arguments: &Change, change: TierChange) -> Done<Connection> {
    let connection = arguments.target.connect_if_running()?;
    if arguments.dry_run {
        return Ok(connection);
    }
    let name = arguments.name.clone();
    let asked = Request::Tier { name, change };
    match connection.ask(&asked, &Deadline::after(ANSWER_TIMEOUT)).map_err(Failure::of_request)? {
        Reply::Changed => Ok(connection),
        _ => Err(unexpected().into()),
    }
}

/// Shows the tier as it is now.
fn show(connection: &Connection, arguments: &Change) -> Done {
    let tier = find(&tiers(connection)?, &arguments.name)?;
    if arguments.json {
        return Ok(print_json(&tier)?);
    }
    if arguments.dry_run {
        let (shards, used) = (number(&tier, "shards"), number(&tier, "used_bytes"));
        let used = bytesize::ByteSize(used).display().iec();
        return Ok(print(&format!("it holds {shards} shards ({used}); nothing was changed"))?);
    }
    Ok(print(&TierLines(&tier).to_string())?)
}

/// Shows a bar until nothing is left on the tier.
fn watch(connection: &Connection, name: &str) -> Done {
    let left = || -> Result<(u64, u64)> {
        let tier = find(&tiers(connection)?, name)?;
        Ok((number(&tier, "shards"), number(&tier, "used_bytes")))
    };
    let (_, all) = left()?;
    let bar = ProgressBar::new(all).with_style(
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes}  {elapsed} (left {eta})")
            .expect("a constant, valid template"),
    );
    let done = Deadline::after(DRAIN_TIMEOUT).retry(|| {
        let (shards, bytes) = left()?;
        bar.set_position(all.saturating_sub(bytes));
        // Bytes without a shard are a newer release's, and stay.
        Ok((shards == 0).then_some(()))
    })?;
    bar.finish_and_clear();
    done.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "the tier is not empty yet")
            .at("tier", name)
            .advise("see `forebay tier ls`: shards that jobs read leave when they are done")
            .into()
    })
}

fn tiers(connection: &Connection) -> Result<Vec<Value>> {
    let answer = connection.ask(&Request::Status, &Deadline::after(ANSWER_TIMEOUT))?;
    let Reply::Status(json) = answer else { return Err(unexpected()) };
    let mut status: Value = serde_json::from_str(&json).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the daemon's status cannot be read: {error}"))
    })?;
    match status.get_mut("tiers").map(Value::take) {
        Some(Value::Array(tiers)) => Ok(tiers),
        _ => Err(unexpected()),
    }
}

fn find(tiers: &[Value], name: &str) -> Result<Value> {
    let is_it = |tier: &&Value| tier.get("name").and_then(Value::as_str) == Some(name);
    tiers.iter().find(is_it).cloned().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "there is no tier of this name")
            .at("tier", name)
            .advise("see `forebay tier ls`")
    })
}

fn number(tier: &Value, name: &str) -> u64 {
    tier.get(name).and_then(Value::as_u64).unwrap_or(0)
}
