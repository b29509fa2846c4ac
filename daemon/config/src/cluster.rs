//! `[cluster]`: the other nodes with which a node shares its cache.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use forebay_cluster::{MAX_SLOTS, Member};
use forebay_error::{Error, ErrorKind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

use super::{Config, Rate, check_redis};
use crate::settings::{ClusterConfig, MembersSource, PeerTlsFiles};

/// Name of the cluster, unless told otherwise.
const GROUP: &str = "default";

/// Longest name of a group: that of a DNS label, for it becomes part of keys and messages.
const GROUP_MAX: usize = 63;

/// Longest DNS name.
const DNS_MAX: usize = 253;

/// Word for slots by capacity.
const AUTO: &str = "auto";

/// `[cluster]`: the node in a cluster, and where the list of members comes from.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Name in the node's certificate; no other node of the cluster has it.
    pub name: String,
    /// Address of the server for other nodes, like `10.0.0.17:9481`.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Host and port by which other nodes reach that server; none: `listen`.
    pub address: Option<String>,
    /// The node's certificate, and those that lead from it to the authority.
    pub cert: PathBuf,
    /// Private key: owned by the daemon's user and readable by it only.
    pub key: PathBuf,
    /// The authority that signs the certificates of all nodes.
    pub ca: PathBuf,
    /// Name of the cluster: nodes of other groups are no members.
    pub group: Option<String>,
    /// Share of the shards that the node owns: `auto`, by capacity, or slots.
    #[serde(default)]
    pub weight: Weight,
    /// Bytes per second that the node sends to others, at most.
    pub serve: Option<Rate>,
    /// Where the list of members comes from.
    pub members: Members,
}

/// `members = { file } | { dns, port } | { redis }`: where the list of members comes from.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Members {
    /// A file with a line `NAME HOST:PORT [SLOTS]` for each member.
    pub file: Option<PathBuf>,
    /// A DNS name whose addresses are the members.
    pub dns: Option<String>,
    /// With `dns`: the port of every member; none: that of `listen`.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// The Redis or Valkey server where members register.
    pub redis: Option<String>,
}

/// Slots of a node; none: by capacity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight(Option<u16>);

impl Weight {
    /// The weight as the file has it.
    pub(super) fn shown(self) -> Value {
        self.0.map_or_else(|| json!(AUTO), |slots| json!(slots))
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Weight;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{AUTO}\" or a whole number from 1 to {MAX_SLOTS}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Weight, E> {
                match text {
                    AUTO => Ok(Weight(None)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Weight, E> {
                let slots = u16::try_from(number).ok();
                match slots.filter(|slots| (1..=MAX_SLOTS).contains(slots)) {
                    Some(slots) => Ok(Weight(Some(slots))),
                    None => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
                }
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Cluster {
    /// Host and port by which other nodes reach this one.
    pub(super) fn address(&self) -> String {
        self.address.clone().unwrap_or_else(|| self.listen.to_string())
    }

    /// Name of the cluster.
    pub(super) fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(GROUP)
    }

    /// Port of every member, where DNS names them.
    pub(super) fn port(&self) -> Option<u16> {
        self.members.dns.as_ref().map(|_| self.members.port.unwrap_or(self.listen.port()))
    }

    /// Returns the settings of the node.
    ///
    /// # Errors
    /// `Invalid` naming the key. A message names its key first: by that its place is found.
    pub(super) fn node(&self) -> Result<ClusterConfig> {
        let refuse = |what: String, advice: &str| {
            Err(Error::new(ErrorKind::Invalid, what).advise(advice.to_owned()))
        };
        if self.address.is_none() && self.listen.ip().is_unspecified() {
            return refuse(
                format!("listen = \"{}\" is no address for other nodes", self.listen),
                "add address = \"HOST:PORT\", by which other nodes reach this one",
            );
        }
        let slots = self.weight.0.unwrap_or(1);
        Member { name: self.name.clone(), address: self.address(), slots }.check()?;
        for (key, path) in [("cert", &self.cert), ("key", &self.key), ("ca", &self.ca)] {
            if !path.is_absolute() {
                return refuse(format!("{key} must be an absolute path"), "begin it with `/`");
            }
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let group = self.group();
        if !(1..=GROUP_MAX).contains(&group.len()) || !group.chars().all(is_word) {
            return refuse(
                format!("group must have 1 to {GROUP_MAX} letters, digits, `-`, `.` or `_`"),
                "write it like `pool-a`",
            );
        }
        let Self { cert, key, ca, .. } = self.clone();
        Ok(ClusterConfig {
            name: self.name.clone(),
            listen: self.listen,
            address: self.address(),
            tls: PeerTlsFiles { cert, key, ca },
            group: group.to_owned(),
            weight: self.weight.0,
            serve: self.serve.map(Rate::bytes),
            members: self.members()?,
        })
    }

    /// The source of the member list.
    fn members(&self) -> Result<MembersSource> {
        let refuse = |what: &str, advice: &str| {
            Err(Error::new(ErrorKind::Invalid, what.to_owned()).advise(advice.to_owned()))
        };
        let Members { file, dns, redis, port } = &self.members;
        if port.is_some() && dns.is_none() {
            return refuse("members.port applies to members.dns only", "leave `port` out");
        }
        match (file, dns, redis) {
            (Some(file), None, None) if file.is_absolute() => Ok(MembersSource::File(file.clone())),
            (Some(_), None, None) => {
                refuse("members.file must be an absolute path", "begin it with `/`")
            }
            (None, Some(name), None) if !is_host(name) => refuse(
                "members.dns is not a host name",
                "write it without scheme and port, like `forebay-peers.ml.svc`",
            ),
            (None, Some(name), None) => match self.port() {
                Some(port) if port > 0 => Ok(MembersSource::Dns { name: name.clone(), port }),
                _ => refuse("members.port must be 1 or more", "give the port of all members"),
            },
            (None, None, Some(address)) => {
                check_redis("members.redis", address)?;
                Ok(MembersSource::Redis(address.clone()))
            }
            _ => refuse(
                "members must name one source",
                "write { file = \"/etc/forebay/members\" }, { dns = \"NAME\" } or { redis = \"redis://…\" }",
            ),
        }
    }
}

/// Returns true for the name of a host, or a name of several.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        let may_be = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        !label.is_empty() && label.bytes().all(may_be)
    };
    name.len() <= DNS_MAX && name.strip_suffix('.').unwrap_or(name).split('.').all(is_label)
}

impl Config {
    /// Returns the node's place in a cluster, if it is in one.
    ///
    /// # Errors
    /// `Invalid` naming the key that is wrong.
    pub fn cluster(&self) -> Result<Option<ClusterConfig>> {
        self.cluster.as_ref().map(Cluster::node).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIER: &str = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";

    const NODE: &str = "[cluster]\nname = 'node17'\nlisten = '10.0.0.17:9481'\n\
                        cert = '/c.pem'\nkey = '/k.pem'\nca = '/ca.pem'\n";

    fn read(text: &str) -> Result<Option<ClusterConfig>> {
        Config::parse(&format!("{TIER}{text}"))?.cluster()
    }

    #[test]
    fn node_without_the_table_is_in_no_cluster() {
        assert_eq!(read("").unwrap(), None);
    }

    #[test]
    fn cluster_is_read_with_its_defaults() {
        let config = read(&format!("{NODE}members = {{ file = '/etc/members' }}\n"));
        let wanted = ClusterConfig {
            name: "node17".to_owned(),
            listen: "10.0.0.17:9481".parse().unwrap(),
            address: "10.0.0.17:9481".to_owned(),
            tls: PeerTlsFiles { cert: "/c.pem".into(), key: "/k.pem".into(), ca: "/ca.pem".into() },
            group: "default".to_owned(),
            weight: None,
            serve: None,
            members: MembersSource::File("/etc/members".into()),
        };
        assert_eq!(config.unwrap(), Some(wanted));
    }

    #[test]
    fn every_key_of_a_cluster_is_read() {
        let node = NODE.replace("10.0.0.17", "0.0.0.0");
        let config = read(&format!(
            "{node}address = 'node17.ml:9000'\ngroup = 'pool-a'\nweight = 24\n\
             serve = '20Gbit/s'\nmembers = {{ dns = 'forebay-peers.ml.svc' }}\n"
        ));
        let config = config.unwrap().unwrap();
        assert_eq!((config.address.as_str(), config.group.as_str()), ("node17.ml:9000", "pool-a"));
        assert_eq!((config.weight, config.serve), (Some(24), Some(2_500_000_000)));
        let dns = |port| MembersSource::Dns { name: "forebay-peers.ml.svc".to_owned(), port };
        assert_eq!(config.members, dns(9481));
        let config = read(&format!(
            "{NODE}weight = 'auto'\nmembers = {{ dns = 'forebay-peers.ml.svc', port = 9000 }}\n"
        ));
        assert_eq!(config.unwrap().unwrap().members, dns(9000));
    }

    #[test]
    fn addresses_of_redis_are_those_of_leases() {
        for address in ["redis://h:6379", "rediss://u:p@h", "unix:///run/redis.sock"] {
            let config = read(&format!("{NODE}members = {{ redis = '{address}' }}\n")).unwrap();
            assert_eq!(config.unwrap().members, MembersSource::Redis(address.to_owned()));
        }
    }

    /// Lines count from the file's start: the table begins in line 5.
    #[test]
    fn mistakes_of_a_cluster_are_reported_with_their_line() {
        let members = "members = { file = '/etc/members' }\n";
        let node = |from: &str, to: &str| format!("{}{members}", NODE.replace(from, to));
        let with = |members: &str| format!("{NODE}members = {members}\n");
        let more = |key: &str| format!("{NODE}{members}{key}\n");
        for (text, words) in [
            (NODE.to_owned(), ["line=5", "missing key `members`"]),
            (node("name = 'node17'\n", ""), ["line=5", "missing key `name`"]),
            (node("node17", "no/de"), ["line=6", "invalid name"]),
            (node("10.0.0.17", "0.0.0.0"), ["line=7", "address = \"HOST:PORT\""]),
            (node("10.0.0.17", "[::]"), ["line=7", "address = \"HOST:PORT\""]),
            (node("10.0.0.17", "node17"), ["line=7", "listen"]),
            (node("/c.pem", "c.pem"), ["line=8", "cert"]),
            (node("/k.pem", "k.pem"), ["line=9", "key"]),
            (node("'/ca.pem'", "'ca.pem'"), ["line=10", "ca must"]),
            (more("address = 'node17'"), ["line=12", "host:port"]),
            (more("group = 'a b'"), ["line=12", "group"]),
            (more("weight = 0"), ["line=12", "from 1 to 256"]),
            (more("weight = 257"), ["line=12", "from 1 to 256"]),
            (more("weight = 'all'"), ["line=12", "\"auto\""]),
            (more("serve = '20Gb/s'"), ["line=12", "serve"]),
            (more("nodes = 3"), ["line=12", "unknown key `nodes`"]),
            (with("{}"), ["line=11", "one source"]),
            (with("{ file = '/a', dns = 'b' }"), ["line=11", "one source"]),
            (with("{ file = 'a' }"), ["line=11", "members.file"]),
            (with("{ file = '/a', port = 1 }"), ["line=11", "members.port"]),
            (with("{ dns = 'h:9481' }"), ["line=11", "members.dns"]),
            (with("{ dns = 'a..b' }"), ["line=11", "members.dns"]),
            (with("{ dns = 'h', port = 0 }"), ["line=11", "members.port"]),
            (with("{ dns = 'h', port = 65536 }"), ["line=11", "port"]),
            (with("{ redis = 'h:6379' }"), ["line=11", "members.redis"]),
            (with("{ etcd = 'h:6379' }"), ["line=11", "unknown key `etcd`"]),
        ] {
            let error = read(&text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}: {text}");
        }
    }

    #[test]
    fn password_in_a_rejected_address_is_hidden() {
        let error = read(&format!("{NODE}members = {{ redis = 'http://u:hunter2@h' }}\n"));
        let error = error.unwrap_err();
        assert!(error.place("members.redis").is_some() && !error.to_string().contains("hunter2"));
    }
}
