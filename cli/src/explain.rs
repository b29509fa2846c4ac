//! `forebay explain`.

use std::fmt::Write as _;

use forebay_api::requests::Explanation;
use forebay_error::{printable, shown};

use super::{Done, Query, SEARCH_TIMEOUT, path_part};

/// Explain the location of a shard, and what happens to it next.
///
/// It names the shard's data set, its copies, the rules that keep or evict them, and the effect of
/// the next use. The origin is not asked: `forebay dataset check` does that.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The shard's URL, as jobs name it.
    url: String,
    #[command(flatten)]
    query: Query,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let admin = arguments.query.target.admin_if_running()?;
    let path = format!("/api/v1/shards?url={}", path_part(&arguments.url));
    arguments.query.show_within(SEARCH_TIMEOUT, &admin, &path, text)
}

fn text(explanation: &Explanation) -> String {
    let mut text = shown(&explanation.url);
    for (label, sentences) in [("why", &explanation.why), ("next", &explanation.next)] {
        for sentence in sentences {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {label:<5} {}", printable(sentence));
        }
    }
    text
}
