//! The configuration's JSON Schema, by which editors complete and check a file while it is written.
//!
//! Keys, words and what they mean are those of the types that read the file; nothing is
//! written down a second time.

use std::borrow::Cow;
use std::marker::PhantomData;

use forebay_cluster::MAX_SLOTS;
use forebay_store::Watermarks as Marks;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema, schema_for};
use serde::Deserialize;
use serde_json::Value;

use super::accounts::User;
use super::tree::{FilePosition, Node, Value as Said};
use super::values::{Reader, Skipped, What};
use super::{Config, Group, Rate, Weight};

/// The schema of a file.
pub fn schema() -> Value {
    let mut schema = schema_for!(Config);
    schema.insert("title".to_owned(), "The configuration of a Forebay node daemon".into());
    schema.to_value()
}

/// A size, as a number of bytes or with its unit.
pub(super) struct Size;

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "bytes, or a size like \"3TiB\" or \"500GB\"",
            "type": ["string", "integer"],
            "minimum": 0,
            "pattern": r"^\s*[0-9.]+\s*([kKmMgGtTpPeE]i?)?[bB]?\s*$",
            "examples": ["3TiB", "500GB"],
        })
    }
}

/// A size, or a share of the disk.
pub(super) struct KeepFree;

impl JsonSchema for KeepFree {
    fn schema_name() -> Cow<'static, str> {
        "KeepFree".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a share of the disk like \"5%\", or a size",
            "type": "string",
            "examples": ["5%", "100GiB"],
        })
    }
}

/// A duration.
pub(super) struct Time;

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a duration like \"30d\" or \"12h\"",
            "type": "string",
            "examples": ["30d", "12h"],
        })
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "bits or bytes per second, like \"10Gbit/s\" or \"500MB/s\"",
            "type": "string",
            "examples": ["10Gbit/s", "500MB/s"],
        })
    }
}

impl JsonSchema for Group {
    fn schema_name() -> Cow<'static, str> {
        "Group".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        account("a group's name or its gid")
    }
}

impl JsonSchema for User {
    fn schema_name() -> Cow<'static, str> {
        "User".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        account("a user's name or uid")
    }
}

fn account(description: &str) -> Schema {
    json_schema!({
        "description": description,
        "type": ["string", "integer"],
        "minimum": 0,
        "maximum": u32::MAX,
    })
}

/// The mode of a socket.
pub(super) struct Mode;

impl JsonSchema for Mode {
    fn schema_name() -> Cow<'static, str> {
        "Mode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "the mode of the socket, as for chmod: write permission allows to connect",
            "type": "string",
            "pattern": "^ *0*[0-7]{1,3} *$",
            "examples": ["0660", "0666"],
        })
    }
}

impl JsonSchema for Weight {
    fn schema_name() -> Cow<'static, str> {
        "Weight".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`auto`, by the capacity of the tiers, or slots in proportion to other nodes",
            "anyOf": [
                { "const": "auto" },
                { "type": "integer", "minimum": 1, "maximum": MAX_SLOTS },
            ],
            "examples": ["auto", 16],
        })
    }
}

/// Jobs in a time.
pub(super) struct Opens;

impl JsonSchema for Opens {
    fn schema_name() -> Cow<'static, str> {
        "Opens".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "jobs per time, like \"32/s\" or \"600/min\"",
            "type": "string",
            "pattern": "^ *[0-9]+ */ *(s|min|h) *$",
            "examples": ["32/s", "600/min"],
        })
    }
}

/// `watermarks = { low, high }`, as shares of the tier's capacity.
pub(super) struct Watermarks;

impl JsonSchema for Watermarks {
    fn schema_name() -> Cow<'static, str> {
        "Watermarks".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let keys = keys::<Marks>();
        let share = |key: &str| {
            let says = match key {
                "low" => "Eviction stops below this share of the capacity.",
                _ => "Eviction starts above this share of the capacity.",
            };
            let share = json_schema!({
                "description": says, "type": "number", "minimum": 0, "maximum": 1,
            });
            (key.to_owned(), share.to_value())
        };
        let properties: serde_json::Map<_, _> = keys.iter().copied().map(share).collect();
        json_schema!({
            "description": "Shards are evicted above `high` until `low`: shares of the capacity.",
            "type": "object",
            "properties": properties,
            "required": keys,
            "additionalProperties": false,
        })
    }
}

/// One of the words that `T` knows.
pub(super) struct Word<T>(PhantomData<T>);

impl<T: for<'t> Deserialize<'t>> JsonSchema for Word<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": words::<T>() })
    }
}

/// Returns the values `T` lists as known when it rejects an unknown one.
fn known<T: for<'t> Deserialize<'t>>(value: Said) -> &'static [&'static str] {
    let node = Node { place: FilePosition::START, value };
    match T::deserialize(Reader { node: &node, skipped: &Skipped::new() }) {
        Err(fault) => match fault.what {
            What::UnknownKey(_, known) | What::UnknownWord(_, known) => known,
            _ => &[],
        },
        Ok(_) => &[],
    }
}

/// A word that nothing is called by.
const NONSENSE: &str = "\u{0}";

/// The words of an enumeration.
fn words<T: for<'t> Deserialize<'t>>() -> &'static [&'static str] {
    known::<T>(Said::Text(NONSENSE.to_owned()))
}

/// The keys of a table.
fn keys<T: for<'t> Deserialize<'t>>() -> &'static [&'static str] {
    let key = super::tree::Key { text: NONSENSE.to_owned(), place: FilePosition::START };
    let value = Node { place: FilePosition::START, value: Said::Null };
    known::<T>(Said::Table(vec![(key, value)]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_store::{Cache, Class, Evict};

    use super::*;
    use crate::{
        Allow, Audit, Checkpoint, Cluster, Daemon, Dataset, Keep, Leases, Listen, Members, Prices,
        Quota, Source, Tenant, Tier,
    };

    /// A table of the schema.
    fn table<'a>(schema: &'a Value, name: &str) -> &'a Value {
        if name.is_empty() { schema } else { &schema["$defs"][name] }
    }

    fn same<T: for<'t> Deserialize<'t>>(schema: &Value, name: &str) {
        let table = table(schema, name);
        let properties = table["properties"].as_object().unwrap_or_else(|| panic!("{name}"));
        let told: BTreeSet<_> = properties.keys().map(String::as_str).collect();
        assert_eq!(told, keys::<T>().iter().copied().collect(), "{name}");
        assert_eq!(table["additionalProperties"], false, "{name}");
        for (key, property) in properties {
            let says =
                property.get("description").or_else(|| property["$ref"].as_str().map(|_| property));
            assert!(says.is_some(), "{name}.{key} has no description");
        }
        // More than its own name.
        let says = table["description"].as_str().unwrap_or_default();
        assert!(says.contains(": ") && says.ends_with('.'), "{name}: {says}");
    }

    #[test]
    fn schema_and_parser_know_the_same_keys() {
        let schema = schema();
        same::<Config>(&schema, "");
        same::<Daemon>(&schema, "Daemon");
        same::<Tier>(&schema, "Tier");
        same::<Source>(&schema, "Source");
        same::<Dataset>(&schema, "Dataset");
        same::<Checkpoint>(&schema, "Checkpoint");
        same::<Keep>(&schema, "Keep");
        same::<Tenant>(&schema, "Tenant");
        same::<Quota>(&schema, "Quota");
        same::<Leases>(&schema, "Leases");
        same::<Cluster>(&schema, "Cluster");
        same::<Members>(&schema, "Members");
        same::<Allow>(&schema, "Allow");
        same::<Listen>(&schema, "Listen");
        same::<Audit>(&schema, "Audit");
        same::<Prices>(&schema, "Prices");
        same::<Marks>(&schema, "Watermarks");
    }

    #[test]
    fn schema_and_parser_know_the_same_words() {
        let schema = schema();
        let words = |table: &str, key: &str| {
            let words = schema["$defs"][table]["properties"][key]["enum"].as_array().unwrap();
            words.iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let known: BTreeSet<_> = Evict::ALL.iter().map(|evict| evict.name().to_owned()).collect();
        assert_eq!(words("Dataset", "evict").into_iter().collect::<BTreeSet<_>>(), known);
        assert_eq!(words("Tier", "class"), ["memory", "nvme", "ssd", "hdd"]);
        assert_eq!(words("Dataset", "cache"), ["always", "never"]);
        assert_eq!(words("Daemon", "log"), ["text", "json"]);
        assert_eq!(super::words::<Class>().len() + super::words::<Cache>().len(), 6);
    }

    #[test]
    fn schema_marks_required_keys() {
        let schema = schema();
        for (name, required) in [
            ("", vec!["tier"]),
            ("Tier", vec!["name", "capacity"]),
            ("Source", vec!["match"]),
            ("Dataset", vec!["name", "match"]),
            ("Checkpoint", vec!["match"]),
            ("Keep", vec!["last"]),
            ("Tenant", vec!["name"]),
            ("Listen", vec!["path"]),
            ("Audit", vec!["path"]),
            ("Cluster", vec!["name", "listen", "cert", "key", "ca", "members"]),
        ] {
            let told = table(&schema, name)["required"].as_array().unwrap();
            let told: BTreeSet<_> = told.iter().map(|key| key.as_str().unwrap()).collect();
            assert_eq!(told, required.into_iter().collect(), "{name}");
        }
    }
}
