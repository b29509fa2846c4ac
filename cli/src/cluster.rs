//! `forebay cluster`.

use bytesize::ByteSize;
use forebay_api::cluster::{differences, fallbacks, member_state, own_troubles};
use forebay_api::requests::ClusterUse;
use forebay_client::Deadline;
use forebay_peers::{ClusterReport, DrainReport, OwnerReport, PeerReport};

use super::{ANSWER_TIMEOUT, Change, Done, Failure, Query, path_part};

/// Show the nodes that share their caches, or the node that owns a shard.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the members, as this node sees them: down ones, bytes received, and fallbacks.
    Ls(Query),
    /// Name the node that owns a shard: it fetches the shard once for all, and keeps it.
    Owner(Owner),
    /// Have this node leave the cluster in good order: new shards are placed on other nodes.
    ///
    /// It serves the other nodes on. With a list in Redis it leaves the list; a list in a file or
    /// in DNS is changed by its administrator, and the answer says how. A restart of the daemon
    /// undoes it.
    Drain(Drain),
}

#[derive(Debug, clap::Args)]
pub(super) struct Drain {
    /// Come back instead.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    change: Change,
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
        Verb::Drain(Drain { undo, change }) => {
            let admin = change.target.admin_if_running()?;
            let path = format!("/api/v1/cluster?dry_run={}", change.dry_run);
            let deadline = Deadline::after(ANSWER_TIMEOUT);
            let drained = admin.put(&path, &ClusterUse { draining: !undo }, &deadline);
            let drained: DrainReport = drained.map_err(Failure::of_request)?;
            change.output.print(&drained, departure)
        }
        Verb::Owner(Owner { url, query }) => {
            let admin = query.target.admin_if_running()?;
            let path = format!("/api/v1/cluster/owner?url={}", path_part(url));
            query.show(&admin, &path, owner)
        }
    }
}

fn departure(report: &DrainReport) -> String {
    let DrainReport { node, is_draining, is_listed, advice } = report;
    let state = if *is_draining { "draining" } else { "in use" };
    let listed = if *is_listed { "in the member list" } else { "not in the member list" };
    let advice = advice.as_ref().map_or(String::new(), |advice| format!("\n{advice}"));
    format!("{node} is {state}, {listed}{advice}")
}

fn list(cluster: &ClusterReport) -> String {
    let ClusterReport { node, group, address, members, serving, .. } = cluster;
    let sent = ByteSize(serving.sent_bytes).display().iec();
    let mut lines = vec![format!(
        "{node} at {address}, cluster {group} of {} nodes; {sent} sent in {} requests",
        members.len(),
        serving.requests
    )];
    lines.extend(own_troubles(cluster));
    if let Some(ends) = &cluster.certificate.ends {
        lines.push(format!("its certificate is valid until {ends}"));
    }
    let width = members.iter().map(|member| member.name.len()).max().unwrap_or(0);
    lines.extend(members.iter().map(|found| member(found, width)));
    lines.join("\n")
}

/// A member, in a line.
fn member(member: &PeerReport, width: usize) -> String {
    let PeerReport { name, address, slots, .. } = member;
    let state = member_state(member);
    let received = ByteSize(member.received_bytes).display().iec().to_string();
    let mut line =
        format!("  {name:width$}  {state:9}  {slots:>3} slots  {received:>10} received  {address}");
    let fallbacks = fallbacks(member);
    if !fallbacks.is_empty() {
        line += &format!("\n    fallbacks: {fallbacks}");
    }
    let differences = differences(member);
    if !differences.is_empty() {
        line += &format!("\n    {}", differences.join(", "));
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
