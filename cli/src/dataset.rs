//! `forebay dataset`.

mod check;
mod pin;
mod warm;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use forebay_api::requests::{Evicted, Shards};
use forebay_client::Deadline;
use forebay_error::{ErrorKind, Result};
use forebay_shard::Commands;
use serde_json::Value;

use super::{
    ANSWER_TIMEOUT, Done, Failure, Launcher, List, SEARCH_TIMEOUT, Target, path_part, print,
    print_json, shards,
};

/// Look after what the cache holds of data sets.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show every data set: what is said of it, and what it holds.
    Ls(List),
    /// Show one data set.
    Show(Show),
    /// Drop every copy of shards now, whatever their version, on every tier.
    ///
    /// Pinned ones, too; jobs that read one finish with the old copy, and those that come to one
    /// that still arrives join them. The next use asks the origin which version there is and
    /// fetches it anew.
    Evict(Evict),
    Pin(pin::Pin),
    Unpin(pin::Unpin),
    Warm(warm::Warm),
    Check(check::Check),
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The data set, as `forebay dataset ls` names it.
    name: String,
    #[command(flatten)]
    target: Target,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Evict {
    /// Shards' URLs, as jobs name them; quoted patterns of URLs (`*` stays within a folder, `**` crosses
    /// them); names of data sets.
    #[arg(required = true, value_name = "URL|PATTERN|NAME")]
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

fn ls(List { target, json }: &List) -> Done {
    let admin = target.admin_if_running()?;
    let all = admin.get("/api/v1/datasets", &Deadline::after(ANSWER_TIMEOUT));
    let all: Vec<Value> = all.map_err(Failure::of_request)?;
    if *json {
        return Ok(print_json(&all)?);
    }
    all.iter().try_for_each(|one| Ok(print(&DatasetLines(one).to_string())?))
}

fn show(Show { name, target, json }: &Show) -> Done {
    let admin = target.admin_if_running()?;
    let path = format!("/api/v1/datasets/{}", path_part(name));
    let one = admin.get(&path, &Deadline::after(ANSWER_TIMEOUT));
    let one: Value = one.map_err(Failure::of_request)?;
    if *json {
        return Ok(print_json(&one)?);
    }
    Ok(print(&DatasetLines(&one).to_string())?)
}

/// A data set as lines of text.
struct DatasetLines<'a>(&'a Value);

impl fmt::Display for DatasetLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |key: &str| self.0.get(key).and_then(Value::as_str).unwrap_or("?");
        let number = |key: &str| self.0.get(key).and_then(Value::as_u64);
        let size = |bytes: u64| ByteSize(bytes).display().iec().to_string();
        let is = |key: &str| self.0.get(key).and_then(Value::as_bool).unwrap_or(false);
        write!(
            f,
            "{}  {}  {} in {} shards",
            text("name"),
            text("match"),
            size(number("used_bytes").unwrap_or(0)),
            number("shards").unwrap_or(0)
        )?;
        let mut says = vec![format!("evict {}", text("evict"))];
        says.extend((text("cache") == "never").then(|| "never cached".to_owned()));
        says.extend(is("pin").then(|| "pinned".to_owned()));
        says.extend(
            number("min_bytes").filter(|min| *min > 0).map(|min| format!("at least {}", size(min))),
        );
        says.extend(number("max_bytes").map(|max| format!("at most {}", size(max))));
        let time = |seconds: u64| humantime::format_duration(Duration::from_secs(seconds));
        says.extend(number("ttl_seconds").map(|ttl| format!("fetched anew after {}", time(ttl))));
        says.extend(number("dont_evict_seconds").map(|keep| format!("kept for {}", time(keep))));
        says.extend(is("scan_bypass").then(|| "what is read once passes".to_owned()));
        says.extend(number("bandwidth").map(|rate| format!("{}/s at most", size(rate))));
        let priority = self.0.get("priority").and_then(Value::as_i64).unwrap_or(0);
        says.extend((priority != 0).then(|| format!("priority {priority}")));
        let tiers = self.0.get("tiers").and_then(Value::as_array).into_iter().flatten();
        let tiers: Vec<_> = tiers.filter_map(Value::as_str).collect();
        says.extend((!tiers.is_empty()).then(|| format!("on {}", tiers.join(", "))));
        write!(f, "\n        {}", says.join("; "))
    }
}

/// The shards a command line names, each once.
fn distinct(arguments: &[String], target: &Target, launcher: &Launcher) -> Done<Vec<String>> {
    // A command is run by a job, and these have none.
    let arguments = arguments.iter().map(|argument| named(argument, target));
    let arguments = arguments.collect::<Done<Vec<_>>>()?;
    let mut urls = shards(&arguments, Commands::Refused, target, launcher)?;
    let mut seen = HashSet::with_capacity(urls.len());
    urls.retain(|url| seen.insert(url.clone()));
    Ok(urls)
}

/// The pattern of the data set that an argument names; itself if it names none.
fn named(argument: &str, target: &Target) -> Done<String> {
    if argument.contains(['/', ':', '{', '*', '?', '[']) || Path::new(argument).exists() {
        return Ok(argument.to_owned());
    }
    // Without a daemon there are no data sets, and the argument is a path that does not exist.
    let Ok(admin) = target.admin_if_running() else { return Ok(argument.to_owned()) };
    let path = format!("/api/v1/datasets/{}", path_part(argument));
    let found: Result<Value> = admin.get(&path, &Deadline::after(ANSWER_TIMEOUT));
    match found {
        Ok(set) => Ok(set.get("match").and_then(Value::as_str).unwrap_or(argument).to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(argument.to_owned()),
        Err(error) => Err(Failure::of_request(error)),
    }
}

fn evict(arguments: &Evict) -> Done {
    let admin = arguments.target.admin_if_running()?;
    let path = format!("/api/v1/evictions?dry_run={}", arguments.dry_run);
    let asked = Shards { urls: arguments.urls.clone() };
    let answer = admin.post(&path, &asked, &Deadline::after(SEARCH_TIMEOUT));
    let all: Vec<Evicted> = answer.map_err(Failure::of_request)?;
    if arguments.json {
        return Ok(print_json(&all)?);
    }
    for Evicted { url, copies, dropped } in &all {
        let what = if *dropped { "dropped" } else { "would be dropped" };
        print(&format!("{url}  {copies} {what}"))?;
    }
    Ok(())
}
