//! Which requests are about more than a peer's own job, and what the audit log calls them.
//!
//! One rule: a request that is added is sorted here, or nothing compiles.

use forebay_error::shown;
use forebay_wire::message::{Request, TierChange};

/// What a request is about in a few words, and what it is called, if it is about more than the peer's own job.
pub(super) fn for_admins(request: &Request) -> Option<(&'static str, String)> {
    match request {
        Request::Hello { .. }
        | Request::Open(_)
        | Request::Start { .. }
        | Request::Play { .. }
        | Request::Mix { .. }
        | Request::Extent(_)
        | Request::Pick { .. }
        | Request::Bad(_)
        | Request::Decoded(_)
        | Request::Share { .. }
        | Request::Acknowledge { .. }
        | Request::Release { .. }
        | Request::Index { .. }
        | Request::List { .. }
        | Request::Pace { .. } => None,
        Request::Status => Some(("status", String::new())),
        Request::Scrub { keep } => Some(("scrub", if *keep { "tell" } else { "mend" }.to_owned())),
        Request::Tier { name, change } => Some(("tier", format!("{} {name}", word(*change)))),
        Request::Forget { url, dry } => {
            let what = if *dry { "count" } else { "drop" };
            Some(("evict", format!("{what} {}", shown(url))))
        }
        Request::Name { urls } => Some(("warm", format!("{} shards", urls.len()))),
        Request::Warm { .. } => Some(("warm", String::new())),
        Request::StopWarm { number } => Some(("warm", format!("stop {number}"))),
        Request::Check { url, .. } => Some(("check", shown(url))),
        Request::Apply { file, .. } => {
            Some(("policy", file.as_ref().map_or(String::new(), |file| file.name.clone())))
        }
    }
}

/// What admins call a change of a tier.
pub(super) fn word(change: TierChange) -> &'static str {
    match change {
        TierChange::Drain => "drain",
        TierChange::Disable => "disable",
        TierChange::Enable => "enable",
    }
}
