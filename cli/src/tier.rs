//! `forebay tier`.

use std::time::Duration;

use bytesize::ByteSize;
use forebay_api::requests::TierUse;
use forebay_api::status::TierLines;
use forebay_client::{Admin, Deadline};
use forebay_error::{Error, ErrorKind, Result};
use forebay_store::{Mode, TierReport};
use indicatif::ProgressBar;

use super::{ANSWER_TIMEOUT, Change, Done, Failure, Query, bar_style, path_part};

/// Limit of the wait for a drain. A terabyte leaves a slow disk within it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// List the cache's tiers, or change the use of one.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the tiers: their contents, devices and counters.
    Ls(Query),
    /// Empty a tier: move its shards to other tiers, or evict them; new shards go elsewhere.
    ///
    /// Jobs go on reading from it meanwhile. `forebay tier enable` reverts it.
    Drain(Drain),
    /// Stop using a tier at once; its device may then be removed.
    ///
    /// Shards that only this tier has are fetched again when needed. Its files stay, and count
    /// again after `forebay tier enable`.
    Disable(Use),
    /// Use a tier again; its directory is scanned.
    Enable(Use),
}

#[derive(Debug, clap::Args)]
pub(super) struct Use {
    /// The tier, as printed by `forebay tier ls`.
    name: String,
    #[command(flatten)]
    change: Change,
}

#[derive(Debug, clap::Args)]
pub(super) struct Drain {
    #[command(flatten)]
    tier: Use,
    /// Wait until the tier is empty.
    #[arg(long)]
    wait: bool,
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Ls(query) => {
            let admin = query.target.admin_if_running()?;
            let lines = |tiers: &Vec<TierReport>| {
                let lines: Vec<_> = tiers.iter().map(|tier| TierLines(tier).to_string()).collect();
                lines.join("\n")
            };
            query.show(&admin, "/api/v1/tiers", lines)
        }
        Verb::Drain(Drain { tier, wait }) => {
            let admin = tier.change.target.admin_if_running()?;
            let mut report = set_mode(&admin, tier, Mode::Draining)?;
            if *wait && !tier.change.dry_run {
                report = watch(&admin, &tier.name)?;
            }
            print(&report, &tier.change)
        }
        Verb::Disable(tier) => set_mode_and_print(tier, Mode::Disabled),
        Verb::Enable(tier) => set_mode_and_print(tier, Mode::Enabled),
    }
}

fn set_mode_and_print(tier: &Use, mode: Mode) -> Done {
    let admin = tier.change.target.admin_if_running()?;
    print(&set_mode(&admin, tier, mode)?, &tier.change)
}

/// Changes the mode of a tier, or rehearses that; returns the tier as it is then.
fn set_mode(admin: &Admin, tier: &Use, mode: Mode) -> Done<TierReport> {
    let path = format!("{}?dry_run={}", path_of(&tier.name), tier.change.dry_run);
    let deadline = Deadline::after(ANSWER_TIMEOUT);
    admin.put(&path, &TierUse { mode }, &deadline).map_err(Failure::of_request)
}

fn print(tier: &TierReport, change: &Change) -> Done {
    change.output.print(tier, |tier| {
        if change.dry_run {
            let used = ByteSize(tier.counters.used_bytes).display().iec();
            let shards = tier.counters.shards;
            return format!("the tier holds {shards} shards ({used}); nothing was changed");
        }
        TierLines(tier).to_string()
    })
}

/// Shows a bar until the tier is empty; returns the tier as it is then.
fn watch(admin: &Admin, name: &str) -> Done<TierReport> {
    let look =
        || -> Result<TierReport> { admin.get(&path_of(name), &Deadline::after(ANSWER_TIMEOUT)) };
    let all = look()?.counters.used_bytes;
    let bar = ProgressBar::new(all)
        .with_style(bar_style("{bar:40} {bytes}/{total_bytes}  {elapsed} (left {eta})"));
    let done = Deadline::after(DRAIN_TIMEOUT).retry(|| {
        let tier = look()?;
        bar.set_position(all.saturating_sub(tier.counters.used_bytes));
        // Other bytes belong to a newer release, and stay.
        let is_empty = tier.counters.shards == 0 && tier.counters.leaving == 0;
        Ok(is_empty.then_some(tier))
    })?;
    bar.finish_and_clear();
    done.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "the tier is not empty yet")
            .at("tier", name)
            .advise("see `forebay tier ls`: open shards are evicted when their readers are done")
            .into()
    })
}

fn path_of(tier: &str) -> String {
    format!("/api/v1/tiers/{}", path_part(tier))
}
