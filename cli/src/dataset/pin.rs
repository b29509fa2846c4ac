//! `forebay dataset pin` and `unpin`.

use forebay_api::requests::{Pin as Pinned, Wanted};
use forebay_client::Deadline;

use super::super::{
    ANSWER_TIMEOUT, Done, Failure, SEARCH_TIMEOUT, Target, path_part, print, print_json,
};

/// Keep shards in the cache, whatever else needs room, until they are unpinned.
///
/// What is here stays, and so does what of it is fetched later; `forebay dataset warm` fetches it. A pin outlives
/// the daemon. It does not make room: where all is pinned, new shards are refused, or read through.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Pin {
    /// Shards' URLs, as jobs name them; quoted patterns of URLs (`*` stays within a folder, `**` crosses
    /// them); names of data sets.
    #[arg(required_unless_present = "list", value_name = "URL|PATTERN|NAME")]
    pins: Vec<String>,
    /// List every pin instead.
    #[arg(long, conflicts_with_all = ["pins", "dry_run"])]
    list: bool,
    #[command(flatten)]
    target: Target,
    /// Only count the shards that are here.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Take back pins: what they kept may go as any other.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Unpin {
    /// What was pinned, as `forebay dataset pin --list` shows it, or as it was named.
    #[arg(required = true, value_name = "URL|PATTERN|NAME")]
    pins: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Tell whether there are such pins, and leave them.
    #[arg(long)]
    dry_run: bool,
    /// Print the pins that are left as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn pin(Pin { pins, list, target, dry_run, json }: &Pin) -> Done {
    let admin = target.admin_if_running()?;
    if *list {
        let pins = admin.get("/api/v1/pins", &Deadline::after(ANSWER_TIMEOUT));
        let pins: Vec<String> = pins.map_err(Failure::of_request)?;
        return show(&pins, *json);
    }
    let path = format!("/api/v1/pins?dry_run={dry_run}");
    let wanted = Wanted { pins: pins.clone() };
    let pinned = admin.post(&path, &wanted, &Deadline::after(SEARCH_TIMEOUT));
    let pinned: Vec<Pinned> = pinned.map_err(Failure::of_request)?;
    if *json {
        return Ok(print_json(&pinned)?);
    }
    let what = if *dry_run { "would be pinned" } else { "pinned" };
    for Pinned { pin, shards } in &pinned {
        print(&format!("{pin}  {what}; {shards} shards of it are here"))?;
    }
    Ok(())
}

pub(super) fn unpin(Unpin { pins, target, dry_run, json }: &Unpin) -> Done {
    let admin = target.admin_if_running()?;
    let mut left = Vec::new();
    for pin in pins {
        let path = format!("/api/v1/pins?pin={}&dry_run={dry_run}", path_part(pin));
        let answer = admin.delete(&path, &Deadline::after(SEARCH_TIMEOUT));
        left = answer.map_err(Failure::of_request)?;
        if !json {
            let what = if *dry_run { "would be unpinned" } else { "unpinned" };
            print(&format!("{pin}  {what}"))?;
        }
    }
    if *json { show(&left, true) } else { Ok(()) }
}

fn show(pins: &[String], json: bool) -> Done {
    if json {
        return Ok(print_json(&pins)?);
    }
    pins.iter().try_for_each(|pin| Ok(print(pin)?))
}
