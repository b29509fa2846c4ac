//! The node daemon's configuration file.
//!
//! Unknown content is rejected, with its line; a daemon never runs on half of an admin's file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use forebay_error::{Doing, Error, ErrorKind, Result, shown};
use forebay_source::Rules;
use forebay_store::{Cache, Class, Dataset as Rule, Evict, KeepFree, Tenant as Limits, Watermarks};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};

use crate::http::{Tls, TlsFiles, Token};
use crate::settings::HttpConfig;
use crate::settings::LogFormat;
use crate::settings::Opens;
use crate::settings::{NodeTenant, NodeTier};

mod access;
mod accounts;
mod check;
mod checkpoint;
mod cluster;
pub mod control_groups;
mod diff;
pub mod embedded;
mod encryption;
pub mod http;
mod mistake;
mod pem;
mod prices;
mod rate;
mod read;
mod schema;
pub mod settings;
mod show;
mod source;
mod suggest;
mod tree;
mod values;

pub use access::{Allow, Audit, Listen};
pub use accounts::Group;
pub use checkpoint::{Checkpoint, Keep};
pub use cluster::{Cluster, Members, Weight};
pub use diff::{Change, diff};
pub use encryption::Encryption;
pub use mistake::{Mistake, Told};
pub use pem::read_peer_tls;
pub use prices::Prices;
pub use rate::Rate;
use read::Language;
pub use read::Places;
pub use schema::schema;
pub use show::{document, policy, text};
pub use source::Source;

/// Configuration of a node daemon: `/etc/forebay/forebay.toml`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["tier"]))]
pub struct Config {
    /// The process.
    #[serde(default)]
    pub daemon: Daemon,
    /// Tiers that hold shards: at least one.
    #[serde(default)]
    pub tier: Vec<Tier>,
    /// Stores that may be read, and their options; the first whose pattern matches a shard's URL
    /// applies. Without any, jobs may read every store.
    #[serde(default)]
    pub source: Vec<Source>,
    /// Rules for data sets; the first whose pattern matches a shard's URL applies.
    #[serde(default)]
    pub dataset: Vec<Dataset>,
    /// Rules for checkpoints; the first whose pattern matches a checkpoint's URL applies. Without
    /// any, no job may write.
    #[serde(default)]
    pub checkpoint: Vec<Checkpoint>,
    /// Tenants of the node; a job belongs to the first that has one of its groups.
    #[serde(default)]
    pub tenant: Vec<Tenant>,
    /// Sockets beside the daemon's own: for pods, whose users mean nothing here.
    #[serde(default)]
    pub listen: Vec<Listen>,
    /// Jobs that lease their shards.
    #[serde(default)]
    pub leases: Leases,
    /// The other nodes with which the node shares its cache; none: it shares it with no other.
    pub cluster: Option<Cluster>,
    /// The log of who was refused what, and who changed what.
    pub audit: Option<Audit>,
    /// Prices of the node's resources, for reports.
    #[serde(default)]
    pub prices: Prices,
}

/// `[leases]`: where the queues are kept from which jobs lease shards.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Leases {
    /// The server that keeps their queues, for jobs on several nodes; none: this daemon does.
    pub redis: Option<String>,
}

impl Leases {
    /// Rejects an address that names no server.
    fn check(&self) -> Result<()> {
        self.redis.as_deref().map_or(Ok(()), |address| check_redis("redis", address))
    }
}

/// Rejects an address that names no Redis server; `key` is its key in the file.
fn check_redis(key: &'static str, address: &str) -> Result<()> {
    let names_a_server = url::Url::parse(address).is_ok_and(|address| match address.scheme() {
        "redis" | "rediss" => address.host_str().is_some_and(|host| !host.is_empty()),
        "unix" | "redis+unix" => address.path().len() > 1,
        _ => false,
    });
    if names_a_server {
        return Ok(());
    }
    let what = format!("`{key}` is not the address of a server");
    Err(Error::new(ErrorKind::Invalid, what)
        .at(key, shown(address))
        .advise("give it as redis://[user:password@]host:port[/database], or rediss:// with TLS"))
}

/// `[daemon]`: where the daemon listens, what memory it takes, whom it serves.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// Socket for trainers.
    pub socket: Option<PathBuf>,
    /// Directory for what the daemon remembers outside of its tiers.
    pub state: Option<PathBuf>,
    /// Frames and slabs together, at most.
    #[schemars(with = "Option<schema::Size>")]
    pub memory: Option<ByteSize>,
    /// Format of the daemon's own log: `text`, or `json`, one object a line.
    #[serde(default)]
    #[schemars(with = "schema::Word<LogFormat>")]
    pub log: LogFormat,
    /// Groups whose members' jobs are served, too, on files that they can open. Whom no group and
    /// no data set's `allow` names is not.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// The group whose members administer, beside root and the daemon's own user.
    pub admin_group: Option<Group>,
    /// Connections at once, of trainers and tools together.
    #[schemars(range(min = 128, max = 65536))]
    pub max_connections: Option<u32>,
    /// Jobs at once of one user without a tenant; a tenant has `sessions`.
    #[schemars(range(min = 1))]
    pub max_sessions_per_user: Option<u32>,
    /// TCP address of the admin API, like `127.0.0.1:9480`.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Host names of this machine in requests to that address, beside its addresses and
    /// `localhost`.
    #[serde(default)]
    pub http_names: Vec<String>,
    /// The file of the token that admins show there; none: nobody is an admin by one.
    pub token_file: Option<PathBuf>,
    /// TLS for that address; without it the API speaks plain HTTP.
    pub http_tls: Option<HttpTls>,
}

/// `http_tls = { cert, key, client_ca }`: PEM files, read when the daemon starts.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpTls {
    /// The daemon's certificate, and those that lead from it to an authority.
    pub cert: PathBuf,
    /// Private key: owned by the daemon's user and readable by it only.
    pub key: PathBuf,
    /// The authorities whose certificates make admins; none: no certificate does.
    pub client_ca: Option<PathBuf>,
}

impl HttpTls {
    /// The files by their paths.
    #[must_use]
    pub fn files(&self) -> TlsFiles {
        let Self { cert, key, client_ca } = self.clone();
        TlsFiles { cert, key, client_ca }
    }
}

impl Daemon {
    /// Refuses what contradicts itself.
    fn check(&self) -> Result<()> {
        if let Some(socket) = &self.socket {
            access::check_socket(socket, "socket")?;
        }
        self.user_limits()?;
        let refuse = |what: &str| Err(Error::new(ErrorKind::Invalid, what.to_owned()));
        if self.http.is_none() && self.token_file.is_some() {
            return refuse("token_file needs `http`, the TCP address of the API");
        }
        if self.http.is_none() && !self.http_names.is_empty() {
            return refuse("http_names need `http`, the TCP address of the API");
        }
        if self.http.is_none() && self.http_tls.is_some() {
            return refuse("http_tls needs `http`, the TCP address of the API");
        }
        if self.token_file.as_ref().is_some_and(|path| !path.is_absolute()) {
            return refuse("token_file must be an absolute path");
        }
        if let Some(HttpTls { cert, key, client_ca }) = &self.http_tls {
            let mut files = [cert, key].into_iter().chain(client_ca);
            if files.any(|path| !path.is_absolute()) {
                return refuse("http_tls must name absolute paths");
            }
        }
        let is_name = |name: &String| {
            let may_be = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !name.is_empty() && name.bytes().all(may_be)
        };
        match self.http_names.iter().find(|name| !is_name(name)) {
            Some(name) => Err(Error::new(ErrorKind::Invalid, "invalid host name in `http_names`")
                .at("name", name)
                .advise("write it without scheme and port, like `node7.example.org`")),
            None => Ok(()),
        }
    }
}

/// `[[tier]]`: a drive, or memory, on which shards rest.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Name, for admins.
    pub name: String,
    /// Kind of storage.
    #[serde(default = "nvme")]
    #[schemars(with = "schema::Word<Class>")]
    pub class: Class,
    /// The cache directory; none for memory.
    pub path: Option<PathBuf>,
    /// Capacity.
    #[schemars(with = "schema::Size")]
    pub capacity: ByteSize,
    /// Space of its disk that is left to others.
    #[serde(default, deserialize_with = "keep_free")]
    #[schemars(with = "schema::KeepFree")]
    pub keep_free: Option<KeepFree>,
    /// If given, shards are evicted ahead of need.
    #[schemars(with = "Option<schema::Watermarks>")]
    pub watermarks: Option<Watermarks>,
    /// Bytes a day that may be written at full speed.
    #[schemars(with = "Option<schema::Size>")]
    pub writes_per_day: Option<ByteSize>,
    /// True if `path` must not lie on the root's file system: without its disk the tier is down.
    #[serde(default)]
    pub require_mount: bool,
    /// Encryption of its files; none: they lie there as they are.
    pub encryption: Option<Encryption>,
}

fn nvme() -> Class {
    Class::Nvme
}

/// A size, or a share of the disk.
fn keep_free<'de, D: Deserializer<'de>>(from: D) -> Result<Option<KeepFree>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let share = text.trim().strip_suffix('%').map(|percent| percent.trim().parse::<f64>());
    let wrong =
        || de::Error::custom(format!("`{text}` is neither a percentage like \"5%\" nor a size"));
    match share {
        Some(Ok(percent)) if (0.0..100.0).contains(&percent) => {
            Ok(Some(KeepFree::Share(percent / 100.0)))
        }
        Some(_) => Err(wrong()),
        None => {
            let bytes: ByteSize = text.parse().map_err(|_| wrong())?;
            Ok(Some(KeepFree::Bytes(bytes.as_u64())))
        }
    }
}

impl Tier {
    /// The tier as a node opens it.
    fn node(&self) -> Result<NodeTier> {
        let refuse = |what: &str| {
            Err(Error::new(ErrorKind::Invalid, what.to_owned()).at("tier", &self.name))
        };
        match (&self.path, self.class) {
            (None, Class::Memory) => {}
            (None, _) => return refuse("the tier needs a path"),
            (Some(_), Class::Memory) => {
                return refuse("a tier of class memory takes no path");
            }
            (Some(path), _) if !path.is_absolute() => {
                return refuse("the tier's path must be absolute");
            }
            (Some(_), _) => {}
        }
        if self.path.is_none() && self.require_mount {
            return refuse("require_mount applies to disks only");
        }
        if self.path.is_none() && (self.keep_free.is_some() || self.writes_per_day.is_some()) {
            return refuse("keep_free and writes_per_day apply to disks only");
        }
        if let Some(encryption) = &self.encryption {
            encryption.check(&self.name, self.path.as_deref())?;
        }
        Ok(NodeTier {
            name: self.name.clone(),
            class: self.class,
            path: self.path.clone(),
            capacity: self.capacity.as_u64(),
            keep_free: self.keep_free.unwrap_or(KeepFree::Bytes(0)),
            watermarks: self.watermarks,
            writes_per_day: self.writes_per_day.map(|bytes| bytes.as_u64()),
            require_mount: self.require_mount,
            encryption: self.encryption.as_ref().map(|encryption| encryption.0.clone()),
        })
    }
}

/// `[[dataset]]`: how the shards that match are kept, and what they may take.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// Name, for admins.
    pub name: String,
    /// URLs that belong to it; `*` stays within a folder, `**` crosses them.
    pub r#match: String,
    /// Cache mode of its shards.
    #[serde(default)]
    #[schemars(with = "schema::Word<Cache>")]
    pub cache: Cache,
    /// Eviction order of its shards.
    #[serde(default)]
    #[schemars(with = "schema::Word<Evict>")]
    pub evict: Evict,
    /// Never evicted.
    #[serde(default)]
    pub pin: bool,
    /// Copies are dropped this long after they were fetched.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "schema::Time")]
    pub ttl: Option<Duration>,
    /// Copies are not evicted before.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "schema::Time")]
    pub dont_evict_time: Option<Duration>,
    /// Bytes it is left with, and may hold.
    #[serde(default)]
    pub quota: Quota,
    /// Lower ones give up their shards first.
    #[serde(default)]
    pub priority: i32,
    /// True if data read once bypasses the cache; only data used again stays.
    #[serde(default)]
    pub scan_bypass: bool,
    /// The tiers it may lie on; none named: any.
    #[serde(default)]
    pub tiers: Vec<String>,
    /// Bytes a second that its fills take from their origins, at most.
    pub bandwidth: Option<Rate>,
    /// True if its shards are shared with the other nodes of the cluster.
    #[serde(default = "shared")]
    pub peers: bool,
    /// Number of nodes of the cluster that keep each of its shards.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 2))]
    pub copies: u8,
    /// Users and groups that may read it; none: admins only, except for files that a job opens
    /// itself.
    pub allow: Option<Allow>,
}

fn shared() -> bool {
    true
}

fn one() -> u8 {
    1
}

/// `quota = { min, max }`: bytes of all tiers together.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Others do not push it below this.
    #[serde(default)]
    #[schemars(with = "schema::Size")]
    pub min: ByteSize,
    /// It holds this much at most.
    #[schemars(with = "Option<schema::Size>")]
    pub max: Option<ByteSize>,
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    humantime::parse_duration(&text).map(Some).map_err(|error| {
        de::Error::custom(format!("`{text}` is not a duration like \"30d\": {error}"))
    })
}

impl Dataset {
    /// The rule as the store applies it.
    fn rule(&self) -> Result<Rule> {
        let rule = Rule {
            cache: self.cache,
            pin: self.pin,
            ttl: self.ttl,
            dont_evict_time: self.dont_evict_time,
            min_bytes: self.quota.min.as_u64(),
            max_bytes: self.quota.max.map(|max| max.as_u64()),
            priority: self.priority,
            scan_bypass: self.scan_bypass,
            tiers: self.tiers.clone(),
            bandwidth: self.bandwidth.map(Rate::bytes),
            peers: self.peers,
            copies: self.copies,
            ..Rule::new(&self.name, &self.r#match, self.evict)?
        };
        rule.check()?;
        Ok(rule)
    }
}

/// `[[tenant]]`: some who share the node, and what they may hold of it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Name, for admins.
    pub name: String,
    /// Groups whose members' jobs belong to the tenant.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// Bytes it is left with, and may hold.
    #[serde(default)]
    pub quota: Quota,
    /// Jobs it may have at once.
    pub sessions: Option<u32>,
    /// Rate at which its jobs may be opened; a burst may be as large as the limit of concurrent
    /// jobs.
    #[serde(default, deserialize_with = "access::opens")]
    #[schemars(with = "schema::Opens")]
    pub opens: Option<Opens>,
}

impl Tenant {
    /// The tenant as a node knows it.
    fn node(&self, has_socket: bool) -> Result<NodeTenant> {
        let at = |error: Error| error.at("tenant", &self.name);
        if self.groups.is_empty() && !has_socket {
            let what = "a tenant without groups and without a socket can have no jobs";
            let error = Error::new(ErrorKind::Invalid, what);
            return Err(at(error).advise(
                "name the groups whose members' jobs are its jobs, or give it a [[listen]]",
            ));
        }
        let rule = Limits {
            name: self.name.clone(),
            min_bytes: self.quota.min.as_u64(),
            max_bytes: self.quota.max.map(|max| max.as_u64()),
        };
        rule.check()?;
        let groups = self.groups.iter().map(Group::gid).collect::<Result<_>>().map_err(at)?;
        Ok(NodeTenant { rule, groups, limits: self.limits()? })
    }
}

impl Config {
    /// The tenants, in order, their groups as the node's user database has them now.
    ///
    /// # Errors
    /// `Invalid` naming the tenant whose limits contradict each other, whose group there is none
    /// of, or which can have no jobs.
    pub fn tenants(&self) -> Result<Vec<NodeTenant>> {
        let mut tenants = Vec::with_capacity(self.tenant.len());
        for tenant in &self.tenant {
            let has_socket = self.has_socket(&tenant.name);
            let tenant = tenant.node(has_socket)?;
            check::tenant_after(&tenants, &tenant, has_socket)?;
            tenants.push(tenant);
        }
        Ok(tenants)
    }

    /// Returns the TCP settings of the admin API, if any; reads the token and the certificates.
    pub fn http(&self) -> Result<Option<HttpConfig>> {
        let daemon = &self.daemon;
        daemon.check()?;
        let Some(address) = daemon.http else { return Ok(None) };
        let token = daemon.token_file.as_deref().map(Token::read).transpose()?;
        let tls = daemon.http_tls.as_ref().map(|tls| Tls::read(&tls.files())).transpose()?;
        Ok(Some(HttpConfig { address, names: daemon.http_names.clone(), token, tls }))
    }

    /// The tiers as a node opens them.
    ///
    /// # Errors
    /// `Invalid` naming the tier whose keys contradict each other.
    pub fn tiers(&self) -> Result<Vec<NodeTier>> {
        self.tier.iter().map(Tier::node).collect()
    }

    /// The sources' rules, in order.
    ///
    /// # Errors
    /// `Invalid` naming the source whose rule contradicts itself, or can never match.
    pub fn sources(&self) -> Result<Rules> {
        Rules::new(self.source.iter().map(Source::rule).collect::<Result<_>>()?)
    }

    /// The data sets' rules, in order.
    ///
    /// # Errors
    /// `Invalid` naming the data set whose rule contradicts itself, or can never match.
    pub fn datasets(&self) -> Result<Vec<Rule>> {
        let mut rules = Vec::with_capacity(self.dataset.len());
        for dataset in &self.dataset {
            let rule = dataset.rule()?;
            check::dataset_after(&rules, &rule)?;
            rules.push(rule);
        }
        Ok(rules)
    }

    /// Reads a file; its name says in which language it is.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Invalid` with line and column for anything not understood.
    pub fn read(path: &Path) -> Result<Self> {
        Self::inspect(path)?.map_err(|mistakes| mistake::first(&mistakes, Some(path)))
    }

    /// The configuration that a file says, or everything that is wrong with it.
    ///
    /// # Errors
    /// As the file cannot be read at all.
    pub fn inspect(path: &Path) -> Result<Result<Self, Vec<Mistake>>> {
        let at = |error: Error| error.at("config", path.display());
        let bytes = std::fs::read(path).doing("read the configuration").map_err(at)?;
        Ok(Self::judge(path, bytes))
    }

    /// The configuration that a file of this name says by these bytes, or everything that is wrong
    /// with it.
    pub fn judge(name: &Path, bytes: Vec<u8>) -> Result<Self, Vec<Mistake>> {
        let text = read::text(bytes).map_err(|mistake| vec![mistake])?;
        let config = Self::understand(&text, Language::of(name))?;
        let promises = config.check_promises();
        promises.map_err(|error| vec![Mistake { place: None, error }])?;
        Ok(config)
    }

    /// Refuses promises to data sets, tenants and checkpoints that its tiers cannot all keep.
    fn check_promises(&self) -> Result<()> {
        let tenants: Vec<_> = self.tenants()?.into_iter().map(|tenant| tenant.rule).collect();
        let tiers = self.tier.iter().map(|tier| (tier.name.as_str(), tier.capacity.as_u64()));
        let (datasets, checkpoints) = (self.datasets()?, self.checkpoints()?);
        let tiers: Vec<_> = tiers.collect();
        forebay_store::check_promises(&datasets, &tenants, &checkpoints, &tiers)
    }

    /// Parses a file's text, in TOML.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str) -> Result<Self> {
        Self::understand(text, Language::Toml).map_err(|mistakes| mistake::first(&mistakes, None))
    }

    fn understand(text: &str, language: Language) -> Result<Self, Vec<Mistake>> {
        check::check(&language.tree(text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_and_tier_sections_are_read() {
        let config = Config::parse(
            "[daemon]\nsocket = '/run/f.sock'\nmemory = '16GiB'\n\
             [[tier]]\nname = 'nvme'\npath = '/mnt/nvme0'\ncapacity = '3TiB'\n",
        )
        .unwrap();
        assert_eq!(config.tier[0].capacity.as_u64(), 3 << 40);
        assert_eq!(config.daemon.memory.unwrap().as_u64(), 16 << 30);
    }

    #[test]
    fn tiers_of_every_class_are_read() {
        let config = Config::parse(
            "[[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '8GiB'\n\
             [[tier]]\nname = 'nvme'\npath = '/mnt/nvme0'\ncapacity = '3TiB'\nkeep_free = '5%'\n\
             watermarks = { low = 0.9, high = 0.95 }\nwrites_per_day = '10TB'\n\
             [[tier]]\nname = 'hdd'\nclass = 'hdd'\npath = '/mnt/hdd'\ncapacity = '9TiB'\n\
             keep_free = '100GiB'\n[[dataset]]\nname = 'all'\nmatch = '**'\n\
             tiers = ['nvme', 'hdd']\nscan_bypass = true\n",
        )
        .unwrap();
        let tiers = config.tiers().unwrap();
        let class: Vec<_> = tiers.iter().map(|tier| tier.class).collect();
        assert_eq!(class, [Class::Memory, Class::Nvme, Class::Hdd]);
        assert_eq!(tiers[1].keep_free, KeepFree::Share(0.05));
        assert_eq!(tiers[2].keep_free, KeepFree::Bytes(100 << 30));
        assert_eq!(tiers[1].watermarks, Some(Watermarks { low: 0.9, high: 0.95 }));
        assert_eq!(tiers[1].writes_per_day, Some(10_000_000_000_000));
        let rules = config.datasets().unwrap();
        assert!(rules[0].scan_bypass && rules[0].tiers == ["nvme", "hdd"]);
    }

    #[test]
    fn data_sets_become_rules_in_order() {
        let tier = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";
        let config = Config::parse(&format!(
            "{tier}[[dataset]]\nname = 'imagenet'\nmatch = 's3://ml/imagenet/**'\nevict = 's3fifo'\n\
             ttl = '30d'\ndont_evict_time = '2h'\nquota = {{ min = '1MiB', max = '2MiB' }}\n\
             priority = 10\npeers = false\n\
             [[dataset]]\nname = 'all'\nmatch = '**'\npin = true\ncopies = 2\n"
        ))
        .unwrap();
        let rules = config.datasets().unwrap();
        assert!(rules[0].has("s3://ml/imagenet/a/0.tar") && !rules[0].has("s3://ml/x/0.tar"));
        let rule = &rules[0];
        assert_eq!((rule.evict, rule.priority, rule.pin), (Evict::S3fifo, 10, false));
        assert_eq!((rule.min_bytes, rule.max_bytes), (1 << 20, Some(2 << 20)));
        assert_eq!(
            ((rule.peers, rule.copies), (rules[1].peers, rules[1].copies)),
            ((false, 1), (true, 2))
        );
        let hours = |hours: u64| Some(Duration::from_secs(3600 * hours));
        assert_eq!((rule.ttl, rule.dont_evict_time), (hours(720), hours(2)));
        assert!(rules[1].pin && rules[1].has("file:///x") && rules[1].evict == Evict::Clairvoyant);
    }

    #[test]
    fn invalid_data_set_rules_are_rejected() {
        let tier = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";
        let a = "[[dataset]]\nname = 'a'\nmatch = 's3://a/**'\n";
        let b = "[[dataset]]\nname = 'b'\nmatch = 's3://a/**'\n";
        let all = "[[dataset]]\nname = 'all'\nmatch = '**'\n";
        for (text, words) in [
            (format!("{a}evict = 'lifo'\n"), ["line=8", "s3fifo"]),
            (format!("{a}ttl = 'soon'\n"), ["line=8", "not a duration"]),
            (format!("{a}colour = 'red'\n"), ["line=8", "unknown key `colour`"]),
            (
                format!("{a}quota = {{ min = '2GiB', max = '1GiB' }}\n"),
                ["below quota.min", "dataset=a"],
            ),
            (format!("{a}pin = true\nttl = '1d'\n"), ["exclude each other", "dataset=a"]),
            (format!("{a}cache = 'never'\n"), ["must be a path", "dataset=a"]),
            (format!("{a}copies = 0\n"), ["line=8", "copies"]),
            (format!("{a}copies = 3\n"), ["line=8", "copies"]),
            (format!("{a}copies = 2\npeers = false\n"), ["line=8", "copies"]),
            (format!("{a}peers = 'no'\n"), ["line=8", "peers"]),
            (format!("{a}cache = 'never'\ncopies = 2\n"), ["takes no options", "dataset=a"]),
            (format!("{a}cache = 'never'\npin = true\n"), ["takes no options", "dataset=a"]),
            (format!("{a}cache = 'sometimes'\n"), ["line=8", "always"]),
            (format!("{a}ttl = '1h'\ndont_evict_time = '1d'\n"), ["dont_evict_time", "dataset=a"]),
            (a.replace("s3://a/**", "s3://[a"), ["not a valid pattern", "dataset=a"]),
            (format!("{a}{b}"), ["never match", "shadowed_by=a"]),
            (format!("{all}{a}"), ["never match", "shadowed_by=all"]),
            (
                format!("{a}{}", b.replace("'b'", "'a'").replace("s3://a", "s3://b")),
                ["same name", "a"],
            ),
        ] {
            let error = Config::parse(&format!("{tier}{text}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        }
    }

    #[test]
    fn sources_are_read_in_order() {
        let tier = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";
        let config = Config::parse(&format!(
            "{tier}[[source]]\nmatch = 's3://ml/'\nendpoint = 'https://store.example'\n\
             region = 'eu-west-1'\nprofile = 'ml'\nbandwidth = '10Gbit/s'\nconnections = 64\n\
             path_style = true\nrequest_payer = true\nproxy = 'http://proxy.example:3128'\n\
             [[source]]\nmatch = 'https://*.example/**'\nanonymous = true\n\
             [[dataset]]\nname = 'all'\nmatch = '**'\nbandwidth = '4Gbit/s'\n"
        ))
        .unwrap();
        let rule = config.source[0].rule().unwrap();
        assert_eq!(rule.endpoint.as_deref(), Some("https://store.example"));
        assert_eq!(
            (rule.region.as_deref(), rule.profile.as_deref()),
            (Some("eu-west-1"), Some("ml"))
        );
        let limits = (rule.limits.bandwidth, rule.limits.connections);
        assert_eq!(limits, (Some(1_250_000_000), Some(64)));
        assert_eq!((rule.virtual_host, rule.request_payer), (Some(false), Some(true)));
        assert_eq!(rule.proxy.as_deref(), Some("http://proxy.example:3128"));
        assert_eq!(config.source[1].rule().unwrap().anonymous, Some(true));
        assert_eq!(config.datasets().unwrap()[0].bandwidth, Some(500_000_000));
    }

    #[test]
    fn invalid_sources_are_rejected() {
        let tier = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";
        let a = "[[source]]\nmatch = 's3://a/'\n";
        for (text, words) in [
            (format!("{a}bandwith = '1GB/s'\n"), ["line=7", "`bandwidth`"]),
            (format!("{a}bandwidth = '10Gb/s'\n"), ["line=7", "10Gbit/s"]),
            (format!("{a}bandwidth = 10\n"), ["line=7", "bandwidth"]),
            (format!("{a}connections = -1\n"), ["line=7", "connections"]),
            (format!("{a}connections = 0\n"), ["at least 1", "match=s3://a/"]),
            (format!("{a}path_style = true\nvirtual_host = true\n"), ["path_style", "s3://a/"]),
            (format!("{a}endpoint = 'store'\n"), ["http://", "match=s3://a/"]),
            (format!("{a}ca_bundle = '/nowhere'\n"), ["ca_bundle=/nowhere", "match=s3://a/"]),
            (format!("{a}proxy = 'socks'\n"), ["proxy", "match=s3://a/"]),
            (format!("{a}{a}"), ["never match", "shadowed_by=s3://a/"]),
            (a.replace("s3://a/", "a/"), ["names no source", "match=a/"]),
            ("[[source]]\nregion = 'r'\n".to_owned(), ["line=5", "missing key `match`"]),
        ] {
            let error = Config::parse(&format!("{tier}{text}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        }
    }

    #[test]
    fn tenants_are_read_and_their_groups_resolved() {
        let tier = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";
        let config = Config::parse(&format!(
            "{tier}[[tenant]]\nname = 'vision'\ngroups = ['root', 4242, '4243']\n\
             quota = {{ min = '1MiB', max = '2MiB' }}\n\
             sessions = 7\nopens = '600/min'\n\
             [[tenant]]\nname = 'speech'\ngroups = [4242, 4244]\n"
        ))
        .unwrap();
        let tenants = config.tenants().unwrap();
        assert_eq!(tenants[0].groups, [0, 4242, 4243]);
        let limits = |at: usize| (tenants[at].rule.min_bytes, tenants[at].rule.max_bytes);
        assert_eq!((limits(0), limits(1)), ((1 << 20, Some(2 << 20)), (0, None)));
        let (sessions, opens) = (tenants[0].limits.sessions, tenants[0].limits.opens.to_string());
        assert_eq!((sessions, opens.as_str()), (7, "600/min"));
    }

    #[test]
    fn invalid_tenants_are_rejected() {
        let tier = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";
        let a = "[[tenant]]\nname = 'a'\ngroups = [1]\n";
        let quota = |of: &str| format!("{a}quota = {{ {of} }}\n");
        for (text, words) in [
            (quota("min = '2GiB', max = '1GiB'"), ["below quota.min", "tenant=a"]),
            (quota("least = '2GiB'"), ["line=8", "unknown key `least`"]),
            (quota("max = '2 parsecs'"), ["line=8", "parsecs"]),
            (format!("{a}sessions = 0\n"), ["at least 1", "tenant=a"]),
            (format!("{a}opens = '10'\n"), ["line=8", "\"32/s\""]),
            (format!("{a}opens = '0/s'\n"), ["line=8", "not a rate"]),
            (format!("{a}opens = '10/parsec'\n"), ["line=8", "not a rate"]),
            (format!("{a}colour = 'red'\n"), ["line=8", "unknown key `colour`"]),
            (a.replace("groups = [1]\n", ""), ["without groups", "tenant=a"]),
            (a.replace("[1]", "[]"), ["without groups", "tenant=a"]),
            (a.replace("[1]", "[-1]"), ["line=7", "a group's name or its gid"]),
            (a.replace("[1]", "[true]"), ["line=7", "a group's name or its gid"]),
            (a.replace("[1]", "['no-such-group']"), ["no group with this name", "tenant=a"]),
            (a.replace("[1]", "['no-such-group']"), ["group=no-such-group", "getent group"]),
            (a.replace("'a'", "''"), ["name has 1 to", "tenant="]),
            (format!("{a}{}", a.replace("[1]", "[2]")), ["same name", "tenant=a"]),
            (format!("{a}{}", a.replace("'a'", "'b'")), ["can have no jobs", "tenant=b"]),
        ] {
            let error = Config::parse(&format!("{tier}{text}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let tier = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";
        for (text, words) in [
            (format!("{tier}colour = 'red'\n"), ["line=5", "unknown key `colour`"]),
            (tier.replace("1GiB", "1 parsec"), ["line=4", "capacity"]),
            (tier.replace("path = '/m'\n", ""), ["needs a path", "tier=nvme"]),
            (tier.replace("/m", "m"), ["absolute", "tier=nvme"]),
            (format!("{tier}class = 'memory'\n"), ["takes no path", "tier=nvme"]),
            (format!("{tier}class = 'tape'\n"), ["line=5", "tape"]),
            (format!("{tier}keep_free = '110%'\n"), ["line=5", "5%"]),
            (format!("{tier}keep_free = 'some'\n"), ["line=5", "nor a size"]),
            (tier.replace("1GiB", "-1GiB"), ["line=4", "capacity"]),
            ("tier = []".to_owned(), ["at least one", "[[tier]]"]),
        ] {
            let error = Config::parse(&text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        }
    }
}
