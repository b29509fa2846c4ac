//! `forebay explain`.

use forebay_api::requests::Explanation;
use forebay_client::Deadline;

use super::{Done, Failure, SEARCH_TIMEOUT, Target, path_part, print, print_json};

/// Tell why a shard is where it is, or is not cached, and what will happen to it next.
///
/// Which data set it belongs to, where copies of it are, what keeps them or lets them go, and what a job
/// that wants it will cause. Its origin is not asked: `forebay dataset check` does that.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The shard's URL, as jobs name it.
    url: String,
    #[command(flatten)]
    target: Target,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let admin = arguments.target.admin_if_running()?;
    let path = format!("/api/v1/shards?url={}", path_part(&arguments.url));
    let explained = admin.get(&path, &Deadline::after(SEARCH_TIMEOUT));
    let explained: Explanation = explained.map_err(Failure::of_request)?;
    if arguments.json {
        return Ok(print_json(&explained)?);
    }
    print(&explained.url)?;
    for (label, sentences) in [("why", &explained.why), ("next", &explained.next)] {
        for sentence in sentences {
            print(&format!("  {label:<5} {sentence}"))?;
        }
    }
    Ok(())
}
