//! `forebay policy simulate --nodes N`: one job on a cluster that is made up.

use std::collections::HashMap;
use std::fmt::Write as _;

use bytesize::ByteSize;
use forebay_cluster::{Member, ObjectKey, Ring};
use forebay_engine::plan;
use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::simulate::cluster::{
    Cluster, ClusterReport, Figures, Heirs, Loss, NodeNumber, Spread,
};
use forebay_wire::message;
use indicatif::ProgressBar;
use serde_json::json;

use super::{BATCH, count};
use crate::{Done, Failure, bar_style, print, print_json};

/// Hashes that placement takes at most: a minute's worth.
const HASHES_MAX: u64 = 1 << 34;

/// Slots of a node unless told otherwise.
const SLOTS: u16 = 1;

/// Cluster on the command line.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Play one job on a cluster of N nodes, each with a cache of `--cache`, and count bytes rather
    /// than time: from the origin, between nodes, and written; with nodes on their own beside it.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=forebay_cluster::MAX_MEMBERS as i64),
        conflicts_with_all = [
            "trace", "bandwidth", "jobs", "rate", "one_in", "fixed", "jitter", "policy", "against", "plot"
        ],
    )]
    nodes: Option<u32>,
    /// Number of ranks on each node.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "nodes", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,
    /// Slots of the nodes, in turn: `16,16,32` for two nodes and one twice their size, again and
    /// again. Caches are in proportion, with `--cache` as their mean.
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "nodes", value_parser = clap::value_parser!(u16).range(1..=i64::from(forebay_cluster::MAX_SLOTS)))]
    slots: Vec<u16>,
    /// Number of nodes lost at once: those that keep most.
    #[arg(long, value_name = "K", default_value_t = 1, requires = "nodes", value_parser = clap::value_parser!(u32).range(1..))]
    lose: u32,
}

impl Arguments {
    /// Returns true if a cluster is to be played.
    pub(super) fn is_given(&self) -> bool {
        self.nodes.is_some()
    }
}

/// A cluster and its job, made up.
struct MadeUp {
    ring: Ring,
    lanes: u32,
    cluster: Cluster,
}

pub(super) fn run(arguments: &super::Arguments) -> Done {
    let bar = ProgressBar::no_length();
    bar.set_style(bar_style("placement {wide_bar} {pos}/{len}"));
    let made_up = arguments.cluster(&bar).map_err(Failure::Usage)?;
    bar.finish_and_clear();
    let report = made_up.cluster.play().map_err(Failure::Usage)?;
    let lose = arguments.cluster.lose as usize;
    let loss = made_up.cluster.lose(lose, |lost| made_up.heirs(lost)).map_err(Failure::Usage)?;
    if arguments.output.json {
        return Ok(print_json(&document(arguments, &made_up, &report, &loss))?);
    }
    Ok(print(text(arguments, &made_up, &report, &loss).trim_end())?)
}

impl super::Arguments {
    fn cluster(&self, bar: &ProgressBar) -> Result<MadeUp> {
        let shards = self.shards()?;
        let nodes = self.cluster.nodes.expect("a cluster is given");
        if self.cluster.lose >= nodes {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a cluster that loses all its nodes is none",
            )
            .at("nodes", nodes)
            .at("lose", self.cluster.lose));
        }
        let given = if self.cluster.slots.is_empty() { &[SLOTS][..] } else { &self.cluster.slots };
        let slots: Vec<u16> = given.iter().copied().cycle().take(nodes as usize).collect();
        let all: u64 = slots.iter().map(|slots| u64::from(*slots)).sum();
        if all.saturating_mul(u64::from(shards)) > HASHES_MAX {
            return Err(Error::new(ErrorKind::Invalid, "the placement takes too many hashes")
                .at("slots", all)
                .at("shards", shards)
                .advise("give larger shards, or fewer slots"));
        }
        let order = message::Order { world_size: nodes * self.cluster.ranks, ..self.order(BATCH) };
        let lanes = super::lanes(&order, shards)?;
        let is_whole = plan::Share::new(&order, lanes, 0).takes_whole_lanes();
        let cache = u128::from(self.capacity()) * u128::from(nodes);
        let room = |slots: &u16| {
            let bytes = cache * u128::from(*slots) / u128::from(all);
            u64::try_from(bytes / u128::from(self.shard.as_u64())).unwrap_or(u64::MAX)
        };
        let rooms = slots.iter().map(room).collect();
        let members = slots.iter().zip(0..).map(|(slots, node)| Member {
            name: name(node),
            address: format!("{}:1", name(node)),
            slots: *slots,
        });
        let ring = Ring::new(members.collect())?;
        let numbers = numbers(&ring);
        bar.set_length(u64::from(shards));
        let mut owners = Vec::with_capacity(shards as usize);
        for shard in 0..shards {
            let owner = ring.owner(key(shard)).expect("there are nodes");
            owners.push(numbers[owner.name.as_str()]);
            bar.inc(1);
        }
        let cluster = Cluster {
            rooms,
            slots,
            owners,
            lanes: is_whole.then_some(lanes),
            epochs: self.epochs,
            seed: 0,
        };
        Ok(MadeUp { ring, lanes, cluster })
    }
}

impl MadeUp {
    /// Returns the owners of shards in the ring without these nodes.
    fn heirs(&self, lost: &[NodeNumber]) -> Result<Heirs> {
        let lost: Vec<String> = lost.iter().map(|node| name(*node)).collect();
        let stay = self.ring.members().iter().filter(|member| !lost.contains(&member.name));
        let ring = Ring::new(stay.cloned().collect())?;
        let numbers: HashMap<String, NodeNumber> =
            numbers(&self.ring).into_iter().map(|(name, node)| (name.to_owned(), node)).collect();
        Ok(Box::new(move |shard| {
            let heir = ring.owner(key(shard)).expect("some nodes are left");
            numbers[&heir.name]
        }))
    }
}

/// Returns the name of a node, in whose order a ring has its members.
fn name(node: NodeNumber) -> String {
    format!("node{node:06}")
}

fn numbers(ring: &Ring) -> HashMap<&str, NodeNumber> {
    ring.members().iter().map(|member| member.name.as_str()).zip(0..).collect()
}

fn key(shard: u32) -> ObjectKey {
    ObjectKey::new("https://origin", &format!("s3://simulated/{shard:08}.tar"))
}

fn text(
    arguments: &super::Arguments,
    made_up: &MadeUp,
    report: &ClusterReport,
    loss: &Loss,
) -> String {
    let MadeUp { lanes, cluster, .. } = made_up;
    let (nodes, shards) = (cluster.rooms.len(), cluster.owners.len());
    let (data, cache) = (arguments.data.as_u64(), arguments.capacity());
    let mut text = format!(
        "{} of {}; {}, {}; cache {} a node ({:.1} %)\n{}, {}\n\n",
        count(nodes, "node"),
        count(arguments.cluster.ranks as usize, "rank"),
        count(shards, "shard"),
        ByteSize(data),
        ByteSize(cache),
        100.0 * cache as f64 / data.max(1) as f64,
        count(*lanes as usize, "lane"),
        match cluster.lanes {
            Some(_) => "whole ones to each rank",
            None => "a slice of every one to each rank",
        },
    );
    let _ = writeln!(
        text,
        "{:<20} {:>13} {:>14} {:>14} {:>9}",
        "data sets per epoch", "first: origin", "later: origin", "between nodes", "written"
    );
    let mut row = |name: &str, first: f64, later: f64, peer: Option<f64>, written: f64| {
        let peer = peer.map_or_else(|| "-".to_owned(), |peer| format!("{peer:.2}"));
        let _ = writeln!(text, "{name:<20} {first:>13.2} {later:>14.2} {peer:>14} {written:>9.2}");
    };
    let Figures { origin, peer, records, written, clairvoyant, lru, .. } = &report.warm;
    row("cluster", report.cold.origin, *origin, Some(*peer), *written);
    row("cluster, no guests", report.cold.origin, *origin, Some(*records), 0.0);
    let cold = (report.cold.clairvoyant.origin, report.cold.lru.origin);
    row("alone, clairvoyant", cold.0, clairvoyant.origin, None, clairvoyant.written);
    row("alone, lru", cold.1, lru.origin, None, lru.written);
    let spread = |spread: Spread| {
        format!("{:.2} to {:.2} (mean {:.2})", spread.min, spread.max, spread.mean)
    };
    let _ = writeln!(
        text,
        "\na node receives {} of the bytes that it reads, and sends {}",
        spread(report.warm.received),
        spread(report.warm.served)
    );
    let _ = writeln!(
        text,
        "the most loaded owner has {:.2} times the mean; {:.1} % of the data find no room on their owners",
        report.imbalance,
        100.0 * report.without_room
    );
    let _ = writeln!(
        text,
        "without {}: {:.4} data sets fetched anew, then {:.2} in each epoch; most loaded owner {:.2}",
        count(loss.nodes.len(), "node"),
        loss.anew,
        loss.origin,
        loss.imbalance
    );
    text
}

fn document(
    arguments: &super::Arguments,
    made_up: &MadeUp,
    report: &ClusterReport,
    loss: &Loss,
) -> serde_json::Value {
    let MadeUp { lanes, cluster, .. } = made_up;
    json!({
        "nodes": cluster.rooms.len(),
        "ranks": arguments.cluster.ranks,
        "shards": cluster.owners.len(),
        "capacity": arguments.capacity(),
        "lanes": lanes,
        "whole_lanes": cluster.lanes.is_some(),
        "cluster": report,
        "loss": loss,
    })
}
