//! `encryption` of a tier: `"ephemeral"`, or a table that names a key file.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};
use forebay_store::Encryption as Kind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

/// The word for a key that lives as long as the daemon.
const EPHEMERAL: &str = "ephemeral";

/// Encryption of a tier's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encryption(pub(crate) Kind);

/// `{ key_file = "…" }`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    key_file: PathBuf,
}

impl<'de> Deserialize<'de> for Encryption {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Encryption;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{EPHEMERAL}\" or {{ key_file = \"PATH\" }}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Encryption, E> {
                match text {
                    EPHEMERAL => Ok(Encryption(Kind::Ephemeral)),
                    _ => Err(E::unknown_variant(text, &[EPHEMERAL])),
                }
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Encryption, A::Error> {
                let KeyFile { key_file } =
                    Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Encryption(Kind::KeyFile(key_file)))
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl JsonSchema for Encryption {
    fn schema_name() -> Cow<'static, str> {
        "Encryption".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`ephemeral`, or the file of the key: 32 bytes, readable by the daemon's user alone",
            "anyOf": [
                { "const": EPHEMERAL },
                {
                    "type": "object",
                    "properties": { "key_file": { "type": "string" } },
                    "required": ["key_file"],
                    "additionalProperties": false,
                },
            ],
            "examples": [EPHEMERAL],
        })
    }
}

impl Encryption {
    /// Rejects a key that lies beside what it encrypts.
    pub(crate) fn check(&self, tier: &str, path: Option<&Path>) -> Result<()> {
        let refuse = |what: &str| Error::new(ErrorKind::Invalid, what).at("tier", tier);
        let Some(path) = path else {
            return Err(refuse("encryption applies to disks only"));
        };
        match &self.0 {
            Kind::KeyFile(key_file) if !key_file.is_absolute() => {
                Err(refuse("the path of a key file must be absolute"))
            }
            Kind::KeyFile(key_file) if key_file.starts_with(path) => {
                Err(refuse("the key file lies in the tier that it encrypts")
                    .at("key_file", key_file.display())
                    .advise("keep it on another disk: who takes this one would have both"))
            }
            Kind::KeyFile(_) | Kind::Ephemeral => Ok(()),
        }
    }

    /// The value as it is written.
    pub(crate) fn shown(&self) -> Value {
        match &self.0 {
            Kind::KeyFile(key_file) => json!({ "key_file": key_file }),
            Kind::Ephemeral => json!(EPHEMERAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::Encryption as Kind;

    use crate::Config;

    const TIER: &str = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";

    #[test]
    fn key_file_and_ephemeral_keys_are_read() {
        let of = |text: &str| {
            let config = Config::parse(&format!("{TIER}{text}")).unwrap();
            config.tiers().unwrap().remove(0).encryption
        };
        assert_eq!(of(""), None);
        assert_eq!(of("encryption = 'ephemeral'\n"), Some(Kind::Ephemeral));
        let file = Kind::KeyFile("/etc/forebay/nvme.key".into());
        assert_eq!(of("encryption = { key_file = '/etc/forebay/nvme.key' }\n"), Some(file));
    }

    #[test]
    fn changed_encryption_needs_a_restart() {
        let of = |text: &str| Config::parse(&format!("{TIER}{text}")).unwrap();
        let all = [
            of(""),
            of("encryption = 'ephemeral'\n"),
            of("encryption = { key_file = '/a' }\n"),
            of("encryption = { key_file = '/b' }\n"),
        ];
        for (at, old) in all.iter().enumerate() {
            assert_eq!(crate::diff(old, old, "", 0), []);
            for new in &all[at + 1..] {
                let changes = crate::diff(old, new, "", 0);
                assert!(!changes.is_empty(), "{changes:?}");
                assert!(changes.iter().all(|change| change.needs_restart(old)), "{changes:?}");
            }
        }
    }

    #[test]
    fn wrong_encryption_is_rejected_with_its_place() {
        let memory = "[[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '1GiB'\n";
        for (text, wanted) in [
            (format!("{TIER}encryption = 'ephemerel'\n"), ["line=5", "ephemeral"]),
            (format!("{TIER}encryption = true\n"), ["line=5", "key_file"]),
            (format!("{TIER}encryption = {{ key = '/k' }}\n"), ["line=5", "key_file"]),
            (format!("{TIER}encryption = {{}}\n"), ["line=5", "key_file"]),
            (format!("{TIER}encryption = {{ key_file = 'k' }}\n"), ["absolute", "tier=nvme"]),
            (
                format!("{TIER}encryption = {{ key_file = '/m/k' }}\n"),
                ["another disk", "tier=nvme"],
            ),
            (format!("{memory}encryption = 'ephemeral'\n"), ["disks only", "tier=ram"]),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(wanted.iter().all(|wanted| error.contains(wanted)), "{text}: {error}");
        }
    }
}
