//! Contenders in turns, and the table that comes of it.

use std::collections::BTreeMap;

use forebay_source::Options;
use serde_json::{Value, json};

use crate::Bench;
use crate::rivals::{Object, TOOLS, fetch, is_here};
use crate::run::{Fresh, Took, timed};

/// The store's name in tables.
const OURS: &str = "forebay";

/// The middle of some numbers, and the lowest and the highest.
pub(crate) fn spread(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    [numbers[numbers.len() / 2], numbers[0], numbers[numbers.len() - 1]]
}

/// Lets the store and every tool that is installed fetch the object, in turns.
pub(crate) fn contest(bench: &Bench, url: &str, options: &Options, object: &Object) -> Value {
    let (tools, missing): (Vec<_>, Vec<_>) = TOOLS.iter().partition(|tool| is_here(tool));
    for (missing, _) in missing {
        println!("  {missing} is not installed and takes no part");
    }
    let mut all: BTreeMap<&str, Vec<Took>> = BTreeMap::new();
    for round in 0..bench.rounds {
        let mut order: Vec<usize> = (0..=tools.len()).collect();
        order.rotate_left(round % (tools.len() + 1));
        for turn in order {
            let (name, took) = match tools.get(turn) {
                Some(tool) => (tool.0, fetch(tool, object, &bench.directory)),
                None => {
                    let fresh = Fresh::open(&bench.directory);
                    (OURS, timed(|| fresh.fetch(url, options)))
                }
            };
            all.entry(name).or_default().push(took);
        }
    }
    table(bench.bytes, &all)
}

fn table(bytes: u64, all: &BTreeMap<&str, Vec<Took>>) -> Value {
    let gb = bytes as f64 / 1e9;
    let mut told = serde_json::Map::new();
    let mut best: Option<(&str, f64, f64)> = None;
    let mut ours = (0.0, 0.0);
    for (name, tooks) in all {
        let rate = spread(tooks.iter().map(|took| gb / took.seconds).collect());
        let cpu = spread(tooks.iter().map(|took| took.cpu / gb).collect());
        println!(
            "  {name:8} {:6.3} GB/s ({:.3}..{:.3})  {:5.2} CPU-s/GB ({:.2}..{:.2})",
            rate[0], rate[1], rate[2], cpu[0], cpu[1], cpu[2]
        );
        if *name == OURS {
            ours = (rate[0], cpu[0]);
        } else if best.is_none_or(|(_, best, _)| rate[0] > best) {
            best = Some((name, rate[0], cpu[0]));
        }
        let (rates, cpus): (Vec<_>, Vec<_>) =
            tooks.iter().map(|took| (gb / took.seconds, took.cpu / gb)).unzip();
        told.insert(
            (*name).to_owned(),
            json!({ "gb_per_second": rates, "cpu_seconds_per_gb": cpus }),
        );
    }
    if let Some((name, rate, cpu)) = best {
        let (rate, cpu) = (ours.0 / rate, ours.1 / cpu);
        println!("  of the fastest tool, {name}: {rate:.2} of its rate, {cpu:.2} of its CPU");
        told.insert("best".to_owned(), json!({ "tool": name, "rate": rate, "cpu": cpu }));
    }
    told.insert("bytes".to_owned(), bytes.into());
    Value::Object(told)
}
