//! `forebay tier`.

use std::time::Duration;

use forebay_api::status::TierLines;
use forebay_client::{Admin, Deadline};
use forebay_error::{Error, ErrorKind, Result};
use forebay_store::Mode;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::{ANSWER_TIMEOUT, Done, Failure, List, Target, path_part, print, print_json};

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
            let admin = drain.change.target.admin_if_running()?;
            let mut tier = change(&admin, &drain.change, Mode::Draining)?;
            if drain.wait && !drain.change.dry_run {
                tier = watch(&admin, &drain.change.name)?;
            }
            show(&tier, &drain.change)
        }
        Verb::Disable(arguments) => change_and_show(arguments, Mode::Disabled),
        Verb::Enable(arguments) => change_and_show(arguments, Mode::Enabled),
    }
}

fn ls(list: &List) -> Done {
    let admin = list.target.admin_if_running()?;
    let tiers: Vec<Value> = admin
        .get("/api/v1/tiers", &Deadline::after(ANSWER_TIMEOUT))
        .map_err(Failure::of_request)?;
    if list.json {
        return Ok(print_json(&tiers)?);
    }
    for tier in &tiers {
        print(&TierLines(tier).to_string())?;
    }
    Ok(())
}

fn change_and_show(arguments: &Change, mode: Mode) -> Done {
    let admin = arguments.target.admin_if_running()?;
    show(&change(&admin, arguments, mode)?, arguments)
}

/// Asks for a change, or for a rehearsal of it; with the tier as it is then.
fn change(admin: &Admin, arguments: &Change, mode: Mode) -> Done<Value> {
    let path = format!("{}?dry_run={}", path_of(&arguments.name), arguments.dry_run);
    let deadline = Deadline::after(ANSWER_TIMEOUT);
    admin.put(&path, &json!({ "mode": mode }), &deadline).map_err(Failure::of_request)
}

/// Shows a tier.
fn show(tier: &Value, arguments: &Change) -> Done {
    if arguments.json {
        return Ok(print_json(tier)?);
    }
    if arguments.dry_run {
        let (shards, used) = (number(tier, "shards"), number(tier, "used_bytes"));
        let used = bytesize::ByteSize(used).display().iec();
        return Ok(print(&format!("it holds {shards} shards ({used}); nothing was changed"))?);
    }
    Ok(print(&TierLines(tier).to_string())?)
}

/// Shows a bar until nothing is left on the tier; with the tier as it is then.
fn watch(admin: &Admin, name: &str) -> Done<Value> {
    let look = || -> Result<Value> { admin.get(&path_of(name), &Deadline::after(ANSWER_TIMEOUT)) };
    let all = number(&look()?, "used_bytes");
    let bar = ProgressBar::new(all).with_style(
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes}  {elapsed} (left {eta})")
            .expect("a constant, valid template"),
    );
    let done = Deadline::after(DRAIN_TIMEOUT).retry(|| {
        let tier = look()?;
        bar.set_position(all.saturating_sub(number(&tier, "used_bytes")));
        // Bytes without a shard are a newer release's, and stay.
        Ok((number(&tier, "shards") == 0).then_some(tier))
    })?;
    bar.finish_and_clear();
    done.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "the tier is not empty yet")
            .at("tier", name)
            .advise("see `forebay tier ls`: shards that jobs read leave when they are done")
            .into()
    })
}

fn path_of(tier: &str) -> String {
    format!("/api/v1/tiers/{}", path_part(tier))
}

fn number(tier: &Value, name: &str) -> u64 {
    tier.get(name).and_then(Value::as_u64).unwrap_or(0)
}
