//! Differences between two configurations, in an admin's words.
//!
//! The comparison is of effective values, defaults included; a URL is shown without its secrets.

use std::fmt;

use forebay_store::Class;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Config;
use super::show::{document, written};

/// One thing that is another one now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The table: `dataset`.
    section: String,
    /// Name of the entry, or its pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "change")]
enum What {
    /// It was not there.
    Added,
    /// It is gone.
    Removed,
    /// The first that matches counts: their names, of those that were and are there.
    Order { from: Vec<String>, to: Vec<String> },
    /// Values of a key; null where it is absent.
    Changed {
        key: String,
        from: Value,
        to: Value,
        /// True if only hidden values differ.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        hidden: bool,
    },
}

/// Returns the changes from `old` to `new`; `socket` and `memory` are the defaults of both.
pub fn diff(old: &Config, new: &Config, socket: &str, memory: u64) -> Vec<Change> {
    let both = |config: &Config| Both {
        shown: document(config, socket, memory),
        whole: written(config, socket, memory, str::to_owned),
    };
    let (old, new) = (both(old), both(new));
    let mut changes = Vec::new();
    for section in old.shown.as_object().into_iter().flatten().map(|(section, _)| section) {
        match (&old.shown[section], &new.shown[section]) {
            (Value::Array(_), Value::Array(_)) => {
                let (old, new) = (old.tables(section), new.tables(section));
                tables(section, &old, &new, &mut changes);
            }
            _ => {
                let (old, new) = (old.section(section), new.section(section));
                keys(section, None, &old, &new, &mut changes);
            }
        }
    }
    changes
}

impl Change {
    /// Returns true if a daemon that runs `old` has to restart. A change unknown here is assumed to
    /// need it.
    pub fn needs_restart(&self, old: &Config) -> bool {
        let key = match &self.what {
            What::Changed { key, .. } => Some(key.as_str()),
            What::Added | What::Removed | What::Order { .. } => None,
        };
        let is_memory = |name: &str| {
            old.tier.iter().any(|tier| tier.name == name && tier.class == Class::Memory)
        };
        match (self.section.as_str(), key) {
            ("source" | "dataset" | "checkpoint" | "tenant" | "prices", _)
            | (
                "daemon",
                Some("groups" | "admin_group" | "max_connections" | "max_sessions_per_user"),
            ) => false,
            ("tier", Some("watermarks.low" | "watermarks.high")) => false,
            ("tier", Some("capacity" | "keep_free")) => self.name.as_deref().is_some_and(is_memory),
            _ => true,
        }
    }
}

/// A document, and the same with what is not shown.
struct Both {
    shown: Value,
    whole: Value,
}

/// Keys with what they say, as shown and whole; those of inner tables with a dot.
struct Table {
    name: String,
    keys: Map<String, Value>,
    whole: Map<String, Value>,
}

impl Both {
    fn section(&self, section: &str) -> Table {
        Table::of(&self.shown[section], &self.whole[section])
    }

    fn tables(&self, section: &str) -> Vec<Table> {
        let list = |document: &Value| document[section].as_array().cloned().unwrap_or_default();
        let pairs = list(&self.shown).into_iter().zip(list(&self.whole));
        pairs.map(|(shown, whole)| Table::of(&shown, &whole)).collect()
    }
}

impl Table {
    fn of(shown: &Value, whole: &Value) -> Self {
        let name = ["name", "match", "path"].iter().find_map(|key| shown[key].as_str());
        Self { name: name.unwrap_or_default().to_owned(), keys: flat(shown), whole: flat(whole) }
    }
}

fn flat(table: &Value) -> Map<String, Value> {
    let mut keys = Map::new();
    for (key, value) in table.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => {
                let inner = flat(value).into_iter();
                keys.extend(inner.map(|(inner, value)| (format!("{key}.{inner}"), value)));
            }
            value => drop(keys.insert(key.clone(), value.clone())),
        }
    }
    keys
}

fn tables(section: &str, old: &[Table], new: &[Table], changes: &mut Vec<Change>) {
    let named = |tables: &[Table], name: &str| tables.iter().position(|table| table.name == name);
    let mut tell = |name: Option<&str>, what: What| {
        let name = name.map(str::to_owned);
        changes.push(Change { section: section.to_owned(), name, what });
    };
    for gone in old.iter().filter(|table| named(new, &table.name).is_none()) {
        tell(Some(&gone.name), What::Removed);
    }
    for added in new.iter().filter(|table| named(old, &table.name).is_none()) {
        tell(Some(&added.name), What::Added);
    }
    let order = |tables: &[Table], others: &[Table]| -> Vec<String> {
        let stays = tables.iter().filter(|table| named(others, &table.name).is_some());
        stays.map(|table| table.name.clone()).collect()
    };
    let (from, to) = (order(old, new), order(new, old));
    if from != to {
        tell(None, What::Order { from, to });
    }
    for table in new {
        if let Some(before) = named(old, &table.name) {
            keys(section, Some(&table.name), &old[before], table, changes);
        }
    }
}

fn keys(section: &str, name: Option<&str>, old: &Table, new: &Table, changes: &mut Vec<Change>) {
    let gone = old.whole.keys().filter(|key| !new.whole.contains_key(*key));
    for key in new.whole.keys().chain(gone) {
        if old.whole.get(key) == new.whole.get(key) {
            continue;
        }
        let says = |table: &Table| table.keys.get(key).cloned().unwrap_or_default();
        let (from, to) = (says(old), says(new));
        let hidden = from == to;
        changes.push(Change {
            section: section.to_owned(),
            name: name.map(str::to_owned),
            what: What::Changed { key: key.clone(), from, to, hidden },
        });
    }
}

/// Returns the names of a section's entries: one, and several.
fn called(section: &str) -> (&str, &str) {
    match section {
        "dataset" => ("data set", "data sets"),
        "checkpoint" => ("checkpoints", "checkpoint rules"),
        "tier" => ("tier", "tiers"),
        "source" => ("source", "sources"),
        "tenant" => ("tenant", "tenants"),
        "listen" => ("socket", "sockets"),
        "audit" => ("audit log", "audit logs"),
        other => (other, other),
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, several) = called(&self.section);
        match (&self.name, &self.what) {
            (_, What::Order { .. }) => write!(f, "{several}: ")?,
            (Some(name), _) => write!(f, "{one} {name}: ")?,
            (None, _) => write!(f, "{one}: ")?,
        }
        match &self.what {
            What::Added => f.write_str("added"),
            What::Removed => f.write_str("removed"),
            What::Order { from, to } => {
                write!(f, "order changed: {} -> {}", from.join(", "), to.join(", "))
            }
            What::Changed { key, hidden: true, .. } => {
                write!(f, "{key} changed in a hidden part")
            }
            What::Changed { key, from, to, .. } => {
                write!(f, "{key} {} -> {}", Said(from), Said(to))
            }
        }
    }
}

/// A value as a sentence has it.
struct Said<'a>(&'a Value);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("unset"),
            Value::String(text) => f.write_str(text),
            Value::Array(list) if list.is_empty() => f.write_str("none"),
            Value::Array(list) => {
                for (at, value) in list.iter().enumerate() {
                    write!(f, "{}{}", if at == 0 { "" } else { ", " }, Said(value))?;
                }
                Ok(())
            }
            other => other.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIER: &str = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1TiB'\n";

    fn told(old: &str, new: &str) -> Vec<String> {
        let read = |text: &str| Config::parse(&format!("{TIER}{text}")).unwrap();
        let changes = diff(&read(old), &read(new), "/run/f.sock", 1 << 30);
        changes.iter().map(Change::to_string).collect()
    }

    #[test]
    fn changes_are_described_in_words() {
        let a = "[[dataset]]\nname = 'a'\nmatch = 's3://a/**'\nquota = { max = '500GiB' }\n";
        let b = "[[dataset]]\nname = 'b'\nmatch = 's3://b/**'\n";
        let c = "[[dataset]]\nname = 'c'\nmatch = 's3://c/**'\n";
        let cluster = "[cluster]\nname = 'n'\nlisten = '10.0.0.1:1'\ncert = '/c'\nkey = '/k'\n\
                       ca = '/a'\nmembers = { file = '/m' }\n";
        for (old, new, changes) in [
            (a.to_owned(), a.to_owned(), vec![]),
            (a.to_owned(), a.replace("500", "600"), vec!["data set a: quota.max 500GiB -> 600GiB"]),
            (a.to_owned(), a.replace("500GiB", "512000MiB"), vec![]),
            (
                a.to_owned(),
                a.replace("quota = { max = '500GiB' }", "pin = true\ntiers = ['nvme']"),
                vec![
                    "data set a: pin false -> true",
                    "data set a: tiers unset -> nvme",
                    "data set a: quota.max 500GiB -> unset",
                ],
            ),
            (
                format!("{a}{b}"),
                format!("{b}{c}"),
                vec!["data set a: removed", "data set c: added"],
            ),
            (
                format!("{a}{b}{c}"),
                format!("{c}{a}{b}"),
                vec!["data sets: order changed: a, b, c -> c, a, b"],
            ),
            (
                a.to_owned(),
                format!(
                    "{a}allow = {{ groups = [7] }}\n[[listen]]\npath = '/run/x'\n[audit]\npath = '/a'\n"
                ),
                vec![
                    "data set a: allow.groups unset -> 7",
                    "socket /run/x: added",
                    "audit log: path unset -> /a",
                    "audit log: max_size unset -> 64MiB",
                    "audit log: keep unset -> 7",
                ],
            ),
            (
                "[leases]\nredis = 'redis://h:1'\n[daemon]\n".to_owned(),
                "[daemon]\ngroups = ['root', 12]\nmemory = '2GiB'\n".to_owned(),
                vec![
                    "daemon: memory 1GiB -> 2GiB",
                    "daemon: groups none -> root, 12",
                    "leases: redis redis://h:1 -> unset",
                ],
            ),
            (
                format!("{cluster}weight = 3\n"),
                cluster.replace("file = '/m'", "redis = 'redis://h:1'"),
                vec![
                    "cluster: weight 3 -> auto",
                    "cluster: members.redis unset -> redis://h:1",
                    "cluster: members.file /m -> unset",
                ],
            ),
        ] {
            let mut told = told(&old, &new);
            let mut changes: Vec<_> = changes.into_iter().map(str::to_owned).collect();
            told.sort();
            changes.sort();
            assert_eq!(told, changes, "{old} {new}");
        }
    }

    #[test]
    fn checkpoint_rules_are_named_by_their_pattern() {
        let runs = "[[checkpoint]]\nmatch = 's3://runs/**'\n";
        let limited = format!("{runs}reserve = '1GiB'\nkeep = {{ last = 3 }}\n");
        assert_eq!(
            told(runs, &limited),
            [
                "checkpoints s3://runs/**: keep.last unset -> 3",
                "checkpoints s3://runs/**: reserve 0B -> 1GiB",
            ]
        );
        assert_eq!(told(runs, ""), ["checkpoints s3://runs/**: removed"]);
    }

    #[test]
    fn cluster_changes_need_a_restart_and_shares_do_not() {
        let read = |text: &str| Config::parse(&format!("{TIER}{text}")).unwrap();
        let cluster = "[cluster]\nname = 'n'\nlisten = '10.0.0.1:1'\ncert = '/c'\nkey = '/k'\n\
                       ca = '/a'\nmembers = { file = '/m' }\n";
        let dataset = "[[dataset]]\nname = 'a'\nmatch = 's3://a/**'\n";
        for (old, new, needed) in [
            ("", cluster, true),
            (cluster, &cluster.replace("10.0.0.1", "10.0.0.2"), true),
            (cluster, &cluster.replace("'/m'", "'/other'"), true),
            (dataset, &format!("{dataset}peers = false\n"), false),
            (dataset, &format!("{dataset}copies = 2\n"), false),
            ("", "[[checkpoint]]\nmatch = 's3://runs/**'\n", false),
        ] {
            let (old, new) = (read(old), read(new));
            let changes = diff(&old, &new, "/run/f.sock", 1 << 30);
            assert!(!changes.is_empty());
            assert!(
                changes.iter().all(|change| change.needs_restart(&old) == needed),
                "{changes:?}"
            );
        }
    }

    #[test]
    fn changed_secret_is_reported_but_not_shown() {
        let source = "[[source]]\nmatch = 's3://a/'\nproxy = 'http://u:old@proxy.example:1'\n";
        let told = told(source, &source.replace("old", "new"));
        assert_eq!(told, ["source s3://a/: proxy changed in a hidden part"]);
    }
}
