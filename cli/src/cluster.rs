//! `forebay cluster`.

use bytesize::ByteSize;
use forebay_peers::{ClusterReport, OwnerReport, PeerReport};

use super::{Done, Query, path_part};

/// Show the nodes that share their caches, or the node that owns a shard.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the members, as this node sees them: down ones, bytes received, and fallbacks.
    Ls(Query),
    /// Name the node that owns a shard: it fetches the shard once for all, and keeps it.
    Owner(Owner),
}

#[derive(Debug, clap::Args)]
pub(super) struct Owner {
    /// The shard's URL, as jobs name it.
    url: String,
    #[command(flatten)]
    query: Query,
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Ls(query) => {
            let admin = query.target.admin_if_running()?;
            query.show(&admin, "/api/v1/cluster", list)
        }
        Verb::Owner(Owner { url, query }) => {
            let admin = query.target.admin_if_running()?;
            let path = format!("/api/v1/cluster/owner?url={}", path_part(url));
            query.show(&admin, &path, owner)
        }
    }
}

fn list(cluster: &ClusterReport) -> String {
    let ClusterReport { node, group, address, members, serving, source, .. } = cluster;
    let sent = ByteSize(serving.sent_bytes).display().iec();
    let mut lines = vec![format!(
        "{node} at {address}, cluster {group} of {} nodes; {sent} sent in {} requests",
        members.len(),
        serving.requests
    )];
    if cluster.is_frozen {
        let error = cluster.list_error.as_deref().unwrap_or("it gives no list");
        let error = forebay_error::printable(error);
        lines.push(format!("the member list is an older one: {source}: {error}"));
    }
    if !members.iter().any(|member| member.is_self) {
        lines.push(format!("{node} is not in the member list: the others reject it"));
    }
    let width = members.iter().map(|member| member.name.len()).max().unwrap_or(0);
    lines.extend(members.iter().map(|found| member(found, width)));
    lines.join("\n")
}

/// A member, in a line.
fn member(member: &PeerReport, width: usize) -> String {
    let PeerReport { name, address, slots, .. } = member;
    let state = match (member.is_self, member.is_down) {
        (true, _) => "this node",
        (false, true) => "down",
        (false, false) => "up",
    };
    let received = ByteSize(member.received_bytes).display().iec().to_string();
    let mut line =
        format!("  {name:width$}  {state:9}  {slots:>3} slots  {received:>10} received  {address}");
    let fallbacks: Vec<_> =
        member.fallbacks.iter().map(|(why, count)| format!("{count} {}", why.name())).collect();
    if !fallbacks.is_empty() {
        line += &format!("\n    fallbacks: {}", fallbacks.join(", "));
    }
    if let Some(error) = member.error.as_ref().filter(|_| member.is_down) {
        line += &format!("\n    {}", forebay_error::printable(error));
    }
    line
}

fn owner(placed: &OwnerReport) -> String {
    let OwnerReport { url, owner, next, is_self } = placed;
    let Some(owner) = owner else {
        return format!("{url}: no owner; each node fetches it for itself");
    };
    let here = if *is_self { " (this node)" } else { "" };
    let next = next.as_ref().map_or(String::new(), |next| format!("; {next} is next"));
    format!("{url}: {owner}{here}{next}")
}
