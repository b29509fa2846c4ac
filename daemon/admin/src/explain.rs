//! Explains a shard's place, or its absence, and its next step.
//!
//! Each sentence rests on one fact from the store; an unknown fact is reported as unknown.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use bytesize::ByteSize;
use forebay_api::requests::Explanation;
use forebay_error::{Result, shown};
use forebay_node::Node;
use forebay_peers::message::Presence;
use forebay_peers::{HolderReport, PlacementReport};
use forebay_store::{CopyReport, CopyState, Explained, Mode, TierRoom};
use serde::Deserialize;

use super::access::Caller;
use super::body::Query;
use super::refusal::Refusal;

/// The shard.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// URL, as jobs name it.
    url: String,
}

/// Explains a shard's place, or its absence, and its next step.
#[utoipa::path(get, path = "/api/v1/shards", tag = "shards",
    params(Which),
    responses((status = 200, body = Explanation)))]
pub(super) async fn explain(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Query(Which { url }): Query<Which>,
) -> Result<Json<Explanation>, Refusal> {
    let store = caller.store(&node);
    let facts = store.explain(&url).await?;
    let (placement, unknown) = match store.placement(&url).await {
        Ok(placement) => (placement, None),
        Err(error) => (None, Some(format!("its owner is unknown: {}", error.message()))),
    };
    let owner = placement.as_ref().and_then(|placement| placement.owner.as_ref());
    let elsewhere = owner.filter(|owner| !owner.is_self).map(|owner| owner.node.as_str());
    let (mut why, next) = (why(&facts, elsewhere), next(&facts, elsewhere));
    why.extend(node.sessions.lock().await.iter().flat_map(|of| of.uses_of(&url)));
    why.extend(unknown);
    why.extend(placement.iter().flat_map(placed));
    Ok(Json(Explanation { url: shown(&url), why, next, facts, placement }))
}

/// The nodes that may have a shard, a sentence each.
fn placed(placement: &PlacementReport) -> Vec<String> {
    let Some(owner) = &placement.owner else {
        return vec!["nodes of the cluster do not share it: each fetches it for itself".to_owned()];
    };
    let mut sentences = vec![format!("node {} owns it{}", named(owner), has(owner))];
    if let Some(next) = &placement.next {
        let sentence = format!(
            "node {} is asked for its copy if the owner has none, and owns it if the owner leaves{}",
            named(next),
            has(next)
        );
        sentences.push(sentence);
    }
    sentences
}

fn named(holder: &HolderReport) -> String {
    let here = if holder.is_self { " (this one)" } else { "" };
    format!("{}{here}", holder.node)
}

/// Copy of a shard on a node, as the end of a sentence.
fn has(holder: &HolderReport) -> String {
    match (holder.presence, &holder.error) {
        (Some(Presence::Whole), _) => ": it has a whole copy".to_owned(),
        (Some(Presence::Part), _) => ": it has a part of it".to_owned(),
        (Some(Presence::Absent), _) => ": it has no copy".to_owned(),
        (None, Some(error)) => format!(": it does not say if it has a copy: {error}"),
        (None, None) => String::new(),
    }
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

fn time(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

/// Returns the reasons for the copies here. `elsewhere`: another node that owns the shard.
fn why(facts: &Explained, elsewhere: Option<&str>) -> Vec<String> {
    let mut why = Vec::new();
    why.push(match (&facts.dataset, &facts.matches) {
        (Some(name), Some(pattern)) => {
            format!(
                "it belongs to data set {name}: its pattern {pattern} is the first that matches"
            )
        }
        _ => "no [[dataset]] matches it: the defaults apply".to_owned(),
    });
    why.extend(facts.copies.iter().map(copy));
    if facts.copies.is_empty() {
        match elsewhere {
            Some(node) => why.push(format!("no copy is kept here: node {node} keeps it")),
            None => why.extend(why_not(facts)),
        }
    }
    why
}

/// A copy, in a sentence.
fn copy(kept: &CopyReport) -> String {
    let CopyReport { tier, bytes, age_seconds, uses, .. } = kept;
    let what = if kept.excerpt { "an excerpt of it, the members that a job wants," } else { "it" };
    let (bytes, age) = (size(*bytes), time(*age_seconds));
    let charged = match &kept.tenant {
        Some(tenant) => format!(", charged to tenant {tenant}, whose job fetched it"),
        None => String::new(),
    };
    match kept.state {
        CopyState::Arriving => format!("{what} is being fetched to tier {tier}{charged}"),
        CopyState::Partial => {
            format!("a part of it is on tier {tier}: its fetch was interrupted {age} ago{charged}")
        }
        CopyState::Broken => {
            format!(
                "its readable part is on tier {tier}: the origin's archive is truncated{charged}"
            )
        }
        CopyState::Whole | CopyState::Stale | CopyState::Absent => {
            format!(
                "{what} is on tier {tier} ({bytes}), fetched {age} ago and used {uses} times since{charged}"
            )
        }
    }
}

/// Returns the reasons there is no copy.
fn why_not(facts: &Explained) -> Vec<String> {
    if !facts.keeps {
        return vec!["its data set has cache = \"never\": it is read from its origin".to_owned()];
    }
    let mut why = Vec::new();
    let bytes = match &facts.origin {
        None => {
            why.push("it was not requested recently: a job or a warm-up fetches shards".to_owned());
            None
        }
        Some(said) => {
            let ago = time(said.seconds_ago as u64);
            if let Some(error) = &said.error {
                why.push(format!("its origin failed {ago} ago: {error}"));
            } else {
                why.push(format!(
                    "it was requested {ago} ago and is not cached: its fetch failed, or it was evicted or dropped since"
                ));
            }
            said.bytes
        }
    };
    let takers: Vec<&TierRoom> = facts.tiers.iter().filter(|tier| takes(tier)).collect();
    if takers.is_empty() {
        why.push("no tier accepts it: each is failing, draining, disabled, or not among its data set's tiers".to_owned());
    }
    if let (Some(bytes), Some(most)) = (bytes, takers.iter().map(|tier| tier.limit_bytes).max())
        && bytes > most
    {
        why.push(format!(
            "its size is {}, and no tier may hold more than {}",
            size(bytes),
            size(most)
        ));
    }
    for quota in &facts.quotas {
        if bytes.is_some_and(|bytes| bytes > quota.max_bytes) {
            why.push(format!("it exceeds the quota of {} ({})", quota.name, size(quota.max_bytes)));
        }
    }
    why
}

fn takes(tier: &TierRoom) -> bool {
    tier.allowed && tier.mode == Mode::Enabled && tier.condition.is_in_use()
}

fn next(facts: &Explained, elsewhere: Option<&str>) -> Vec<String> {
    if let (true, Some(node)) = (facts.copies.is_empty(), elsewhere) {
        return vec![format!(
            "jobs read its records from node {node}; a copy comes here if none serves it, or if \
             there is room to spare for one that is read again"
        )];
    }
    if facts.copies.is_empty() {
        return vec![match facts.keeps {
            true => next_without_a_copy(facts),
            false => "no part of it is cached".to_owned(),
        }];
    }
    facts.copies.iter().map(|kept| next_of(kept, facts)).collect()
}

fn next_without_a_copy(facts: &Explained) -> String {
    let Some(tier) = facts.tiers.iter().find(|tier| takes(tier)) else {
        return "jobs read it from its origin: no tier accepts it".to_owned();
    };
    let free = tier.limit_bytes.saturating_sub(tier.used_bytes);
    let full = facts.quotas.iter().find(|quota| quota.used_bytes >= quota.max_bytes);
    match full {
        Some(quota) => format!(
            "when a job requests it, {} evicts another shard for it: its quota is full ({})",
            quota.name,
            size(quota.max_bytes)
        ),
        None => format!(
            "it is fetched to tier {} when a job requests it; {} are free there",
            tier.tier,
            size(free)
        ),
    }
}

/// Returns the next step of a copy, by the first rule that applies.
fn next_of(kept: &CopyReport, facts: &Explained) -> String {
    let tier = &kept.tier;
    let is_leaving = facts.tiers.iter().any(|of| of.tier == *tier && of.mode == Mode::Draining);
    let mut next = if kept.state == CopyState::Arriving {
        format!("on {tier}: it is being fetched, and served meanwhile")
    } else if is_leaving {
        format!("on {tier}: it moves to another tier, or is evicted: {tier} is draining")
    } else if kept.in_use {
        format!("on {tier}: it stays while readers have it open")
    } else if kept.pinned {
        format!("on {tier}: it stays: an admin pinned it (until `forebay dataset unpin`)")
    } else if facts.pinned && !kept.passes {
        format!("on {tier}: it stays: its data set is pinned")
    } else if let Some(left) = kept.kept_for_seconds {
        format!("on {tier}: it stays at least {} more: its data set's dont_evict_time", time(left))
    } else if kept.passes {
        format!("on {tier}: it is evicted among the first: it was not admitted, or is incomplete")
    } else if kept.within_minimum {
        format!(
            "on {tier}: only shards of its own data set and tenant evict it: a quota.min protects it"
        )
    } else if kept.claimed {
        format!("on {tier}: it is in a job's window: it is evicted only if nothing else can be")
    } else {
        format!(
            "on {tier}: it is evicted when room is needed, in the order of its data set's policy"
        )
    };
    if let Some(until) = kept.needed_in_seconds {
        next += &match until {
            0.0 => "; a job needs it now".to_owned(),
            until => format!("; a job needs it in about {}", time(until.ceil() as u64)),
        };
    }
    if let Some(left) = kept.stale_in_seconds {
        next += &match left {
            0 => "; its ttl has passed: it is fetched again when a job requests it".to_owned(),
            left => format!("; its ttl passes in {}", time(left)),
        };
    }
    next
}
