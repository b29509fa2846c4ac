//! `forebay dataset pin` and `unpin`.

use forebay_api::requests::{Pin as Pinned, Wanted};
use forebay_client::Deadline;

use super::super::{Change, Done, Failure, Query, SEARCH_TIMEOUT, path_part, print};

/// Keep shards in the cache until they are unpinned.
///
/// Cached shards stay, and so do those fetched later; `forebay dataset warm` fetches them. A pin
/// outlives the daemon. It makes no room: where everything is pinned, new shards are rejected, or
/// read from their origin.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Pin {
    /// URLs of shards, as jobs name them; quoted URL patterns (`*` stays within a folder, `**`
    /// crosses folders); names of data sets.
    #[arg(required_unless_present = "list", value_name = "URL|PATTERN|NAME")]
    pins: Vec<String>,
    /// List every pin instead.
    #[arg(long, conflicts_with_all = ["pins", "dry_run"])]
    list: bool,
    #[command(flatten)]
    change: Change,
}

/// Remove pins: their shards can be evicted again.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Unpin {
    /// Pins, as printed by `forebay dataset pin --list`, or as they were given.
    #[arg(required = true, value_name = "URL|PATTERN|NAME")]
    pins: Vec<String>,
    #[command(flatten)]
    change: Change,
}

pub(super) fn pin(Pin { pins, list, change }: &Pin) -> Done {
    let admin = change.target.admin_if_running()?;
    if *list {
        let query = Query { target: change.target.clone(), output: change.output };
        return query.show(&admin, "/api/v1/pins", |pins: &Vec<String>| pins.join("\n"));
    }
    let path = format!("/api/v1/pins?dry_run={}", change.dry_run);
    let wanted = Wanted { pins: pins.clone() };
    let pinned = admin.post(&path, &wanted, &Deadline::after(SEARCH_TIMEOUT));
    let pinned: Vec<Pinned> = pinned.map_err(Failure::of_request)?;
    let what = if change.dry_run { "would be pinned" } else { "pinned" };
    change.output.print(&pinned, |pinned| {
        let line =
            |one: &Pinned| format!("{}  {what}; {} shards of it are cached\n", one.pin, one.shards);
        pinned.iter().map(line).collect()
    })
}

pub(super) fn unpin(Unpin { pins, change }: &Unpin) -> Done {
    let admin = change.target.admin_if_running()?;
    let mut left = Vec::new();
    for pin in pins {
        let path = format!("/api/v1/pins?pin={}&dry_run={}", path_part(pin), change.dry_run);
        let answer = admin.delete(&path, &Deadline::after(SEARCH_TIMEOUT));
        left = answer.map_err(Failure::of_request)?;
        if !change.output.json {
            let what = if change.dry_run { "would be unpinned" } else { "unpinned" };
            print(&format!("{pin}  {what}"))?;
        }
    }
    if !change.output.json {
        return Ok(());
    }
    change.output.print(&left, |left: &Vec<String>| left.join("\n"))
}
