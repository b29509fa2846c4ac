//! The effective configuration, fit to show to any user.
//!
//! Parts of a URL that may be secret (user names, passwords, queries) are left out; every default
//! is included.

use std::fmt::Write as _;

use bytesize::ByteSize;
use forebay_error::shown;
use forebay_store::KeepFree;
use serde_json::{Map, Value, json};

use super::access::{AUDIT_KEEP, AUDIT_SIZE};
use super::accounts::User;
use super::{
    Allow, Audit, Checkpoint, Cluster, Config, Dataset, Encryption, Group, HttpTls, Keep, Listen,
    Quota, Rate, Source, Tenant, Tier,
};
use crate::settings::{TenantLimits, UserLimits};

/// Units of sizes, the largest first.
const UNITS: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// The sections of a policy.
const POLICY: [&str; 6] = ["tier", "source", "dataset", "checkpoint", "tenant", "listen"];

/// The document, by section; `socket` and `memory` are what holds where the file says nothing.
pub fn document(config: &Config, socket: &str, memory: u64) -> Value {
    written(config, socket, memory, shown)
}

/// Returns the parts of a document that decide placement, access and retention.
pub fn policy(document: &Value) -> Value {
    let has = |(name, _): &(&String, &Value)| POLICY.contains(&name.as_str());
    let sections = document.as_object().into_iter().flatten().filter(has);
    sections.map(|(name, section)| (name.clone(), section.clone())).collect::<Map<_, _>>().into()
}

/// The document, with URLs as `url` writes them.
pub(super) fn written(
    config: &Config,
    socket: &str,
    memory: u64,
    url: fn(&str) -> String,
) -> Value {
    let named = config.daemon.socket.as_ref().map(|path| path.display().to_string());
    let memory = config.daemon.memory.map_or(memory, |size| size.as_u64());
    let limits = UserLimits::default();
    json!({
        "daemon": said(json!({
            "socket": named.unwrap_or_else(|| socket.to_owned()),
            "state": config.daemon.state,
            "memory": size(memory),
            "log": config.daemon.log,
            "groups": groups(&config.daemon.groups),
            "admin_group": config.daemon.admin_group.as_ref().map(Group::shown),
            "max_connections": config.daemon.max_connections.unwrap_or(limits.connections as u32),
            "max_sessions_per_user": config.daemon.max_sessions_per_user.unwrap_or(limits.sessions),
            "http": config.daemon.http,
            "http_names": Some(&config.daemon.http_names).filter(|names| !names.is_empty()),
            "token_file": config.daemon.token_file,
            "http_tls": config.daemon.http_tls.as_ref().map(tls),
        })),
        "tier": config.tier.iter().map(tier).collect::<Vec<_>>(),
        "source": config.source.iter().map(|one| source(one, url)).collect::<Vec<_>>(),
        "dataset": config.dataset.iter().map(|one| dataset(one, url)).collect::<Vec<_>>(),
        "checkpoint": config.checkpoint.iter().map(|one| checkpoint(one, url)).collect::<Vec<_>>(),
        "tenant": config.tenant.iter().map(tenant).collect::<Vec<_>>(),
        "listen": config.listen.iter().map(listen).collect::<Vec<_>>(),
        "leases": said(json!({ "redis": config.leases.redis.as_deref().map(url) })),
        "cluster": config.cluster.as_ref().map(|one| cluster(one, url)),
        "audit": config.audit.as_ref().map(audit),
        "prices": said(json!(config.prices)),
    })
}

/// The same as a configuration file.
pub fn text(document: &Value) -> String {
    let mut text = String::new();
    for (name, section) in document.as_object().into_iter().flatten() {
        let (head, tables) = match section {
            Value::Null => continue,
            Value::Array(tables) => (format!("[[{name}]]"), tables.iter().collect()),
            table => (format!("[{name}]"), vec![table]),
        };
        for table in tables {
            let gap = if text.is_empty() { "" } else { "\n" };
            // A string takes everything.
            let _ = writeln!(text, "{gap}{head}");
            for (key, value) in table.as_object().into_iter().flatten() {
                let _ = writeln!(text, "{key} = {}", inline(value));
            }
        }
    }
    text
}

/// Strings, numbers and lists are written alike in JSON and TOML; tables are not.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(table) => {
            let pair = |(key, value): (&String, &Value)| format!("{key} = {}", inline(value));
            format!("{{ {} }}", table.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}

fn tier(tier: &Tier) -> Value {
    let keep_free = tier.keep_free.map(|keep| match keep {
        KeepFree::Bytes(bytes) => size(bytes),
        KeepFree::Share(share) => format!("{}%", share * 100.0),
    });
    said(json!({
        "name": tier.name,
        "class": tier.class,
        "path": tier.path,
        "capacity": size(tier.capacity.as_u64()),
        "keep_free": keep_free,
        "watermarks": tier.watermarks.map(|marks| json!({ "low": marks.low, "high": marks.high })),
        "writes_per_day": maybe_size(tier.writes_per_day),
        "require_mount": Some(tier.require_mount).filter(|required| *required),
        "encryption": tier.encryption.as_ref().map(Encryption::shown),
    }))
}

fn source(source: &Source, url: fn(&str) -> String) -> Value {
    said(json!({
        "match": url(&source.r#match),
        "endpoint": source.endpoint.as_deref().map(url),
        "region": source.region,
        "profile": source.profile,
        "bandwidth": source.bandwidth.map(rate),
        "connections": source.connections,
        "ca_bundle": source.ca_bundle,
        "proxy": source.proxy.as_deref().map(url),
        "path_style": source.path_style,
        "virtual_host": source.virtual_host,
        "request_payer": source.request_payer,
        "anonymous": source.anonymous,
        "redirects": (!source.redirects.is_empty())
            .then(|| source.redirects.iter().map(|to| url(to)).collect::<Vec<_>>()),
    }))
}

fn dataset(dataset: &Dataset, url: fn(&str) -> String) -> Value {
    let duration =
        |wanted: Option<_>| wanted.map(|time| humantime::format_duration(time).to_string());
    said(json!({
        "name": dataset.name,
        "match": url(&dataset.r#match),
        "cache": dataset.cache,
        "evict": dataset.evict,
        "pin": dataset.pin,
        "ttl": duration(dataset.ttl),
        "dont_evict_time": duration(dataset.dont_evict_time),
        "quota": quota(&dataset.quota),
        "priority": dataset.priority,
        "tiers": (!dataset.tiers.is_empty()).then_some(&dataset.tiers),
        "scan_bypass": dataset.scan_bypass,
        "bandwidth": dataset.bandwidth.map(rate),
        "peers": dataset.peers,
        "copies": dataset.copies,
        "allow": dataset.allow.as_ref().map(allow),
    }))
}

fn checkpoint(checkpoint: &Checkpoint, url: fn(&str) -> String) -> Value {
    let keep = |keep: Keep| said(json!({ "last": keep.last, "every": keep.every }));
    said(json!({
        "match": url(&checkpoint.r#match),
        "allow": checkpoint.allow.as_ref().map(allow),
        "reserve": size(checkpoint.reserve.as_u64()),
        "max": maybe_size(checkpoint.max),
        "tiers": (!checkpoint.tiers.is_empty()).then_some(&checkpoint.tiers),
        "upload_bandwidth": checkpoint.upload_bandwidth.map(rate),
        "keep": checkpoint.keep.map(keep),
    }))
}

fn groups(groups: &[Group]) -> Value {
    groups.iter().map(Group::shown).collect()
}

fn allow(allow: &Allow) -> Value {
    let users = allow.users.iter().map(User::shown).collect::<Vec<_>>();
    said(json!({
        "users": (!users.is_empty()).then_some(users),
        "groups": (!allow.groups.is_empty()).then(|| groups(&allow.groups)),
        "tenants": (!allow.tenants.is_empty()).then_some(&allow.tenants),
    }))
}

fn tenant(tenant: &Tenant) -> Value {
    let default = TenantLimits::default();
    json!({
        "name": tenant.name,
        "groups": groups(&tenant.groups),
        "quota": quota(&tenant.quota),
        "sessions": tenant.sessions.unwrap_or(default.sessions),
        "opens": tenant.opens.unwrap_or(default.opens).to_string(),
    })
}

fn listen(listen: &Listen) -> Value {
    said(json!({
        "path": listen.path,
        "tenant": listen.tenant,
        "admin": listen.admin,
        "group": listen.group.as_ref().map(Group::shown),
        "mode": format!("{:04o}", listen.mode()),
    }))
}

fn tls(tls: &HttpTls) -> Value {
    said(json!({ "cert": tls.cert, "key": tls.key, "client_ca": tls.client_ca }))
}

fn cluster(cluster: &Cluster, url: fn(&str) -> String) -> Value {
    said(json!({
        "name": cluster.name,
        "listen": cluster.listen,
        "address": cluster.address(),
        "cert": cluster.cert,
        "key": cluster.key,
        "ca": cluster.ca,
        "group": cluster.group(),
        "weight": cluster.weight.shown(),
        "serve": cluster.serve.map(rate),
        "members": said(json!({
            "file": cluster.members.file,
            "dns": cluster.members.dns,
            "port": cluster.port(),
            "redis": cluster.members.redis.as_deref().map(url),
        })),
    }))
}

fn audit(audit: &Audit) -> Value {
    json!({
        "path": audit.path,
        "max_size": size(audit.max_size.map_or(AUDIT_SIZE, |size| size.as_u64())),
        "keep": audit.keep.unwrap_or(AUDIT_KEEP),
    })
}

fn quota(quota: &Quota) -> Value {
    said(json!({ "min": size(quota.min.as_u64()), "max": maybe_size(quota.max) }))
}

/// Without the keys that nothing is said of and that have no default.
fn said(table: Value) -> Value {
    match table {
        Value::Object(table) => Value::Object(
            table.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>(),
        ),
        value => value,
    }
}

/// Exact, in the largest unit that is.
fn size(bytes: u64) -> String {
    let fits = |(_, unit): &&(&str, u64)| bytes != 0 && bytes.is_multiple_of(*unit);
    match UNITS.iter().find(fits) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

fn maybe_size(wanted: Option<ByteSize>) -> Option<String> {
    wanted.map(|wanted| size(wanted.as_u64()))
}

fn rate(rate: Rate) -> String {
    rate.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_configuration_parses_back_and_holds_no_secret() {
        let config = Config::parse(
            "[daemon]\nmemory = '16GiB'\nadmin_group = 'root'\nhttp = '[::1]:1'\n\
             http_tls = { cert = '/c.pem', key = '/k.pem', client_ca = '/a.pem' }\n\
             [[tier]]\nname = 'nvme'\npath = '/mnt/nvme0'\ncapacity = '3TB'\nkeep_free = '5%'\n\
             watermarks = { low = 0.9, high = 0.95 }\nwrites_per_day = '10TB'\n\
             encryption = { key_file = '/etc/forebay/nvme.key' }\n\
             [[tier]]\nname = 'hdd'\npath = '/h'\ncapacity = '1GiB'\nencryption = 'ephemeral'\n\
             [[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '1GiB'\n\
             [[source]]\nmatch = 's3://ml/'\nproxy = 'http://user:hunter2@proxy.example:3128'\n\
             bandwidth = '10Gbit/s'\nendpoint = 'https://store.example?token=hunter2'\n\
             [[dataset]]\nname = 'all'\nmatch = '**'\nttl = '30d'\nquota = { min = '1MiB' }\n\
             bandwidth = '4Gbit/s'\nallow = { users = ['root'], groups = [12], tenants = ['vision'] }\n\
             [[checkpoint]]\nmatch = 's3://runs/**'\nallow = { groups = [12] }\nmax = '1GiB'\n\
             upload_bandwidth = '5Gbit/s'\nkeep = { last = 5, every = 100 }\n\
             [[tenant]]\nname = 'vision'\ngroups = ['root', 4242]\nopens = '600/min'\n\
             [[listen]]\npath = '/run/v.sock'\ntenant = 'vision'\nmode = '666'\ngroup = 12\n\
             [audit]\npath = '/var/log/a.jsonl'\nmax_size = '1MiB'\n\
             [leases]\nredis = 'redis://user:hunter2@leases.example:6379'\n\
             [cluster]\nname = 'n'\nlisten = '[fd00::2]:1'\ncert = '/c'\nkey = '/k'\nca = '/a'\n\
             serve = '20Gbit/s'\nmembers = { redis = 'rediss://user:hunter2@members.example' }\n\
             [prices]\ncurrency = 'USD'\ngpu_hour = 2.5\n",
        )
        .unwrap();
        let document = document(&config, "/run/f.sock", 1);
        let text = text(&document);
        assert!(!text.contains("hunter2") && !text.contains("//user"), "{text}");
        assert!(text.contains("evict = \"clairvoyant\""), "defaults are shown: {text}");
        let again = Config::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(super::document(&again, "", 0), document);
        assert_eq!(document["daemon"]["socket"], "/run/f.sock");
        assert_eq!(document["daemon"]["memory"], "16GiB");
        assert_eq!(document["daemon"]["http_tls"]["client_ca"], "/a.pem");
        assert_eq!(document["dataset"][0]["allow"]["users"][0], "root");
        assert_eq!(document["dataset"][0]["copies"], 1);
        let checkpoint = &document["checkpoint"][0];
        assert_eq!(
            (&checkpoint["reserve"], &checkpoint["keep"]["last"]),
            (&"0B".into(), &5.into())
        );
        assert_eq!(policy(&document)["checkpoint"][0], *checkpoint);
        let cluster = &document["cluster"];
        assert_eq!(
            (&cluster["address"], &cluster["weight"]),
            (&"[fd00::2]:1".into(), &"auto".into())
        );
        assert_eq!(
            (&cluster["group"], &cluster["serve"]),
            (&"default".into(), &"2500000000B/s".into())
        );
        assert_eq!(
            (&document["tenant"][0]["opens"], &document["tenant"][0]["sessions"]),
            (&"600/min".into(), &128.into())
        );
        assert_eq!(
            (&document["listen"][0]["mode"], &document["audit"]["keep"]),
            (&"0666".into(), &7.into())
        );
    }
}
