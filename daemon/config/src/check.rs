//! Everything that is wrong with a configuration, at once.
//!
//! An unreadable part is not checked further, so that no mistake is reported that another one
//! causes.

mod access;
mod checkpoints;

use std::collections::HashSet;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Rules;
use forebay_store::Dataset as Rule;
use serde::Deserialize;

use super::mistake::Mistake;
use super::suggest;
use super::tree::{Key, Node};
use super::values::{Fault, Reader, Skipped, Step, What};
use super::{Config, Group};
use crate::settings::NodeTenant;
pub(super) use checkpoints::checkpoint_after;

/// More than anybody mends in one go.
const MAX_MISTAKES: usize = 100;

/// The configuration that a tree says, or what is wrong with it, in the order of the file.
pub(super) fn check(root: &Node) -> Result<Config, Vec<Mistake>> {
    let mut check =
        Check { root, mistakes: Vec::new(), skipped: Skipped::new(), dirty: Skipped::new() };
    let config = check.types();
    if let Some(config) = &config {
        check.tiers(config);
        check.sources(config);
        check.datasets(config);
        check.checkpoints(config);
        check.tenants(config);
        check.access(config);
        check.table("daemon", || config.daemon.check());
        check.table("leases", || config.leases.check());
        check.table("cluster", || config.cluster().map(drop));
        check.table("prices", || config.prices.check());
    }
    let mut mistakes = check.mistakes;
    mistakes.sort_by_key(|mistake| mistake.place);
    match config {
        Some(config) if mistakes.is_empty() => Ok(config),
        _ => Err(mistakes),
    }
}

/// Refuses a data set that cannot come after others.
pub(super) fn dataset_after(before: &[Rule], rule: &Rule) -> Result<()> {
    if let Some(before) = before.iter().find(|before| before.covers(rule)) {
        return Err(Error::new(ErrorKind::Invalid, "this rule can never match")
            .at("dataset", &rule.name)
            .at("shadowed_by", &before.name)
            .advise("put the narrower pattern first: the first that matches counts"));
    }
    match before.iter().any(|before| before.name == rule.name) {
        true => {
            let error = Error::new(ErrorKind::Invalid, "two data sets have the same name");
            Err(error.at("dataset", &rule.name).advise("give each a name of its own"))
        }
        false => Ok(()),
    }
}

/// Refuses a tenant that cannot come after others.
pub(super) fn tenant_after(
    before: &[NodeTenant],
    tenant: &NodeTenant,
    has_socket: bool,
) -> Result<()> {
    let name = tenant.rule.name.as_str();
    if before.iter().any(|before| before.rule.name == name) {
        let error = Error::new(ErrorKind::Invalid, "two tenants have the same name");
        return Err(error.at("tenant", name).advise("list all groups in one tenant"));
    }
    let taken: HashSet<_> = before.iter().flat_map(|before| &before.groups).collect();
    if !has_socket && tenant.groups.iter().all(|gid| taken.contains(gid)) {
        let what = "earlier tenants have all its groups: it can have no jobs";
        return Err(Error::new(ErrorKind::Invalid, what)
            .at("tenant", name)
            .advise("put it first, or give it a group of its own: the first match counts"));
    }
    Ok(())
}

struct Check<'t> {
    root: &'t Node,
    mistakes: Vec<Mistake>,
    /// Parts that cannot be read.
    skipped: Skipped,
    /// Those parts, and the parts that contain them.
    dirty: Skipped,
}

impl<'t> Check<'t> {
    /// The configuration without what cannot be read of it, if there is anything.
    fn types(&mut self) -> Option<Config> {
        while self.mistakes.len() < MAX_MISTAKES {
            let reader = Reader { node: self.root, skipped: &self.skipped };
            let fault = match Config::deserialize(reader) {
                Ok(config) => return Some(config),
                Err(fault) => fault,
            };
            self.dirty.extend(fault.trail.iter().map(|step| std::ptr::from_ref(step.node)));
            if !self.follows(&fault) {
                self.mistakes.push(mistake(self.root, &fault));
            }
            self.skipped.insert(std::ptr::from_ref(fault.trail.first()?.node));
        }
        None
    }

    /// Returns true if a key is missing only because an unreadable part was left out.
    fn follows(&self, fault: &Fault<'_>) -> bool {
        let (What::Missing(key), Some(step)) = (&fault.what, fault.trail.first()) else {
            return false;
        };
        step.node.get(key).is_some()
    }

    /// Returns each table of a list that was read, complete or not.
    fn read<T>(&self, section: &str, read: &'t [T]) -> Vec<(&'t Node, &'t T)> {
        let nodes = self.root.get(section).map_or(&[][..], Node::elements);
        let counts = |node: &&Node| !self.skipped.contains(&std::ptr::from_ref(*node));
        nodes.iter().filter(counts).zip(read).collect()
    }

    /// The same for those that have no mistake in them.
    fn clean<T>(&self, section: &str, read: &'t [T]) -> Vec<(&'t Node, &'t T)> {
        let all = self.read(section, read).into_iter();
        all.filter(|(node, _)| !self.is_dirty(node)).collect()
    }

    /// Tells of the first key of a table that the message names; of the table where it names none.
    fn tell(&mut self, table: &Node, error: Error) {
        let words = error.message().split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let place = words.filter_map(|word| table.get(word)).next().unwrap_or(table).place;
        self.mistakes.push(Mistake::at(place, error));
    }
}

/// A fault with the table it is in.
fn mistake(root: &Node, fault: &Fault<'_>) -> Mistake {
    let error = fault.error();
    let error = match &fault.trail[..] {
        // An entry of the root, an element of it, and what lies in that.
        [.., table, Step { key: Some(section), .. }] if table.key.is_none() => {
            let named = ["name", "match"].iter().find_map(|key| table.node.get(key)?.text());
            match (named, section.text.as_str()) {
                (Some(name), "source" | "checkpoint") => {
                    error.at("match", forebay_error::shown(name))
                }
                (Some(name), section) => error.at(section, name),
                (None, _) => error,
            }
        }
        _ => error,
    };
    let place = match (fault.trail.first(), &fault.what) {
        (Some(Step { key: Some(Key { place, .. }), .. }), What::UnknownKey(..)) => *place,
        (Some(step), _) => step.node.place,
        (None, _) => root.place,
    };
    Mistake::at(place, error)
}

impl Check<'_> {
    fn tiers(&mut self, config: &Config) {
        let mut names = HashSet::new();
        for (table, tier) in self.clean("tier", &config.tier) {
            if let Err(error) = tier.node() {
                self.tell(table, error);
            }
            if !names.insert(&tier.name) {
                let error = Error::new(ErrorKind::Invalid, "two tiers have the same name");
                let error = error.at("tier", &tier.name).advise("give each a name of its own");
                self.tell(table, error);
            }
        }
        if self
            .root
            .get("tier")
            .is_none_or(|list| list.elements().is_empty() && !self.is_dirty(list))
        {
            let error = Error::new(ErrorKind::Invalid, "at least one [[tier]] is needed")
                .advise("add a [[tier]] with name, path and capacity");
            self.mistakes.push(Mistake { place: None, error });
        }
    }

    /// Checks a table that is there at most once, unless a key of it is wrong already.
    fn table(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        let Some(table) = self.root.get(name).filter(|table| !self.is_dirty(table)) else {
            return;
        };
        if let Err(error) = check() {
            self.tell(table, error);
        }
    }

    fn is_dirty(&self, node: &Node) -> bool {
        self.dirty.contains(&std::ptr::from_ref(node))
    }

    fn sources(&mut self, config: &Config) {
        let mut rules = Rules::none();
        for (table, source) in self.clean("source", &config.source) {
            if let Err(error) = source.rule().and_then(|rule| rules.add(rule)) {
                self.tell(table, error);
            }
        }
    }

    fn datasets(&mut self, config: &Config) {
        let mut rules = Vec::new();
        for (table, dataset) in self.read("dataset", &config.dataset) {
            // Name and pattern were read of each; whatever else is wrong with it, they are
            // compared.
            let rule = if self.is_dirty(table) {
                Rule::new(&dataset.name, &dataset.r#match, dataset.evict)
            } else {
                self.tiers_of(config, table, ("dataset", &dataset.name), &dataset.tiers);
                dataset.rule()
            };
            let rule = match rule {
                Ok(rule) => rule,
                Err(error) => {
                    self.tell(table, error);
                    continue;
                }
            };
            if let Err(error) = dataset_after(&rules, &rule) {
                self.tell(table, error);
            }
            rules.push(rule);
        }
    }

    /// A rule may name tiers that there are.
    fn tiers_of(&mut self, config: &Config, table: &Node, of: (&str, &str), tiers: &[String]) {
        // One whose name cannot be read may be the one that is meant.
        if !self.has_all("tier", &config.tier) {
            return;
        }
        let known: Vec<_> = config.tier.iter().map(|tier| tier.name.as_str()).collect();
        let places = table.get("tiers").map_or(&[][..], Node::elements);
        for (node, tier) in places.iter().zip(tiers) {
            self.is_one_of(node, ("tier", tier), &known, of);
        }
    }

    /// Returns true if every table of a list was read.
    fn has_all<T>(&self, section: &str, read: &[T]) -> bool {
        self.root.get(section).map_or(&[][..], Node::elements).len() == read.len()
    }

    /// Tells of a name that nothing has.
    fn is_one_of(
        &mut self,
        node: &Node,
        (noun, name): (&str, &str),
        known: &[&str],
        (whose, of): (&str, &str),
    ) {
        if known.contains(&name) {
            return;
        }
        let error = Error::new(ErrorKind::Invalid, format!("there is no {noun} with this name"))
            .at(whose, of)
            .at(noun, name);
        let error = match suggest::advice(name, known) {
            Some(advice) => error.advise(advice),
            None => error,
        };
        self.mistakes.push(Mistake::at(node.place, error));
    }

    fn tenants(&mut self, config: &Config) {
        let mut tenants = Vec::new();
        for (table, tenant) in self.clean("tenant", &config.tenant) {
            if !self.are_known(
                table.get("groups"),
                &tenant.groups,
                Some(("tenant", &tenant.name)),
                Group::gid,
            ) {
                continue;
            }
            // A socket that cannot be read may be its.
            let has_socket =
                config.has_socket(&tenant.name) || !self.has_all("listen", &config.listen);
            match tenant.node(has_socket) {
                Ok(node) => {
                    if let Err(error) = tenant_after(&tenants, &node, has_socket) {
                        self.tell(table, error);
                    }
                    tenants.push(node);
                }
                Err(error) => self.tell(table, error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::read::Language;

    const TIER: &str = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";

    /// Each mistake as a linter writes it, with the file's name left out.
    fn told(text: &str, language: Language) -> Vec<String> {
        let mistakes = Config::understand(text, language).unwrap_err();
        let line = |mistake: &Mistake| mistake.line(Path::new("F")).to_string();
        mistakes.iter().map(|mistake| line(mistake)[2..].to_owned()).collect()
    }

    fn assert_told(told: &[String], wanted: &[(&str, &str)]) {
        let is = |(told, (place, words)): (&String, &(&str, &str))| {
            told.starts_with(&format!("{place}: ")) && told.contains(words)
        };
        let all = told.len() == wanted.len() && told.iter().zip(wanted).all(is);
        assert!(all, "{told:#?} is not {wanted:#?}");
    }

    #[test]
    fn all_mistakes_are_reported_at_once_with_their_place() {
        let text = format!(
            "[deamon]\n{TIER}clas = 'nvme'\n\
             [[tier]]\nname = 'hdd'\nclass = 'hd'\npath = '/h'\ncapacity = '1TiB'\n\
             [[source]]\nmatch = 's3://a/'\nbandwith = '1GB/s'\nconnections = -1\n\
             [[dataset]]\nname = 'a'\nmatch = 's3://a/**'\nevict = 'lruu'\nquota = {{ mx = 1, min = 'x' }}\n\
             [[dataset]]\nname = 'b'\nmatch = 's3://b/**'\ntiers = ['nvm', 'hdd']\n\
             [[dataset]]\nname = 'c'\nmatch = 's3://b/c/*.tar'\n\
             [[dataset]]\nmatch = 's3://d/**'\n\
             [[dataset]]\nname = 'e'\nmatch = 's3://e/**'\npin = true\nttl = '1d'\n\
             [[tenant]]\nname = 'v'\ngroups = [1, true, 'no-such-group']\n\
             [[tenant]]\nname = 'w'\ngroups = [1]\n[[tenant]]\nname = 'x'\ngroups = [1]\n"
        );
        assert_told(
            &told(&text, Language::Toml),
            &[
                ("1:2", "unknown key `deamon`; did you mean `daemon`?"),
                ("6:1", "unknown key `clas` (tier=nvme); did you mean `class`?"),
                ("9:9", "`class` cannot be `hd` (tier=hdd); did you mean `hdd`?"),
                ("14:1", "unknown key `bandwith` (match=s3://a/); did you mean `bandwidth`?"),
                (
                    "15:15",
                    "`connections`: expected a whole number of 0 or more, found integer `-1`",
                ),
                ("19:9", "`evict` cannot be `lruu` (dataset=a); did you mean `lru`?"),
                ("20:11", "unknown key `mx` (dataset=a); did you mean"),
                ("20:25", "`min`: "),
                ("24:10", "no tier with this name (dataset=b, tier=nvm); did you mean `nvme`?"),
                ("27:9", "can never match (dataset=c, shadowed_by=b)"),
                ("28:1", "missing key `name` (dataset=s3://d/**)"),
                ("34:7", "exclude each other"),
                ("37:14", "a group's name or its gid"),
                ("43:10", "all its groups"),
            ],
        );
    }

    #[test]
    fn syntax_errors_are_reported_together_one_per_line() {
        let text = format!("{TIER}class = nvme\n[[dataset]]\nname = 'a\nmatch = 's3://a/**'\n");
        let both = told(&text, Language::Toml);
        assert_eq!(both.len(), 2, "{both:#?}");
        assert!(both[0].starts_with("5:9: ") && both[1].starts_with("7:"), "{both:#?}");
        let twice = told(&format!("{TIER}name = 'x'\n"), Language::Toml);
        assert!(twice[0].starts_with("5:1: ") && twice[0].contains("duplicate"), "{twice:?}");
    }

    #[test]
    fn consequences_of_a_mistake_are_not_reported() {
        for (text, wanted) in [
            // Without its class the tier would need a path.
            ("[[tier]]\nname = 'a'\nclass = 'mem'\ncapacity = '1GiB'\n", ("3:9", "`class`")),
            // A name that cannot be read is not one that is missing.
            ("[[tier]]\nname = 1\npath = '/m'\ncapacity = '1GiB'\n", ("2:8", "`name`")),
            (
                "[[tier]]\nname = 'a'\npath = '/m'\ncapacity = '1GiB'\nwatermarks = { low = 'x', high = 1.0 }\n",
                ("5:22", "`low`"),
            ),
            // The tiers of the data set may be the one that cannot be read.
            (
                "[[tier]]\nname = 1\npath = '/m'\ncapacity = '1GiB'\n\
                 [[dataset]]\nname = 'a'\nmatch = '**'\ntiers = ['b']\n",
                ("2:8", "`name`"),
            ),
            ("tier = 5\n", ("1:8", "`tier`")),
            ("[tier]\nname = 'a'\n", ("1:1", "`[[name]]`")),
        ] {
            assert_told(&told(text, Language::Toml), &[wanted]);
        }
    }

    #[test]
    fn unreachable_rules_are_reported_at_their_patterns() {
        let text = format!(
            "{TIER}[[source]]\nmatch = 's3://a/'\n[[source]]\nmatch = 's3://a/b/'\n\
             [[dataset]]\nname = 'a'\nmatch = 's3://*/**'\n\
             [[dataset]]\nname = 'b'\nmatch = 's3://b/**'\n\
             [[dataset]]\nname = 'a'\nmatch = '/d/**'\n"
        );
        assert_told(
            &told(&text, Language::Toml),
            &[
                ("8:9", "this source can never match (match=s3://a/b/, shadowed_by=s3://a/)"),
                ("14:9", "this rule can never match (dataset=b, shadowed_by=a)"),
                ("16:8", "two data sets have the same name (dataset=a)"),
            ],
        );
    }

    #[test]
    fn access_mistakes_are_reported() {
        let text = format!(
            "[daemon]\nsocket = '/run/f.sock'\nadmin_group = 'no-such-group'\ngroups = [65534, 1]\n{TIER}\
             [[dataset]]\nname = 'a'\nmatch = 's3://a/**'\nallow = {{ groups = ['nope'], users = [1, 'nobody-at-all'], tenants = ['visoin'] }}\n\
             [[dataset]]\nname = 'b'\nmatch = 'gcs://b/**'\nallow = {{}}\n\
             [[dataset]]\nname = 'c'\nmatch = 'https://Host/d/**'\nallow = {{ groups = [1], group = 2 }}\n\
             [[tenant]]\nname = 'vision'\n[[tenant]]\nname = 'alone'\n\
             [[listen]]\npath = '/run/v.sock'\ntenant = 'vision'\n\
             [[listen]]\npath = '/run/f.sock'\n[[listen]]\npath = '/run/v.sock'\ngroup = 'nope'\n\
             [[listen]]\npath = 'x.sock'\n[[listen]]\npath = '/run/w.sock'\ntenant = 'speech'\nmode = '999'\n\
             [[listen]]\npath = '/run/y.sock'\ntenant = 'vison'\n\
             [[listen]]\npath = '/run/z.sock'\ntenant = 'vision'\nadmin = true\n\
             [[listen]]\npath = '/run/{}'\n[audit]\npath = 'a.jsonl'\n",
            "x".repeat(103)
        );
        assert_told(
            &told(&text, Language::Toml),
            &[
                (
                    "3:15",
                    "there is no group with this name (group=no-such-group); see `getent group`",
                ),
                ("4:11", "stand-in for unknown ones (group=65534)"),
                ("12:21", "there is no group with this name (group=nope, dataset=a)"),
                (
                    "12:42",
                    "there is no user with this name (user=nobody-at-all, dataset=a); see `getent passwd`",
                ),
                (
                    "12:71",
                    "there is no tenant with this name (dataset=a, tenant=visoin); did you mean `vision`?",
                ),
                ("15:9", "normalized form"),
                ("16:9", "`allow` is empty (dataset=b)"),
                ("20:25", "unknown key `group`"),
                ("23:1", "without a socket"),
                (
                    "29:8",
                    "another socket has this `path` already (listen=/run/f.sock, other=[daemon])",
                ),
                ("32:9", "there is no group with this name (group=nope, listen=/run/v.sock)"),
                ("34:8", "must be absolute"),
                ("38:8", "not a mode like"),
                ("41:10", "did you mean `vision`?"),
                ("45:9", "`admin` does not apply"),
                ("47:8", "too long"),
                ("49:8", "must be absolute"),
            ],
        );
        let right = format!(
            "{TIER}[[dataset]]\nname = 'a'\nmatch = 's3://*/**'\nallow = {{ tenants = ['v'] }}\n\
             [[tenant]]\nname = 'v'\n[[listen]]\npath = '/run/v.sock'\ntenant = 'v'\n"
        );
        let config = Config::parse(&right).unwrap();
        assert_eq!(config.listens().unwrap()[0].mode, 0o660);
        assert_eq!(config.access().unwrap().allow["a"].tenants, ["v"]);
        assert!(config.tenants().unwrap()[0].groups.is_empty());
    }

    #[test]
    fn mistakes_of_the_tcp_api_are_reported() {
        const TLS: &str = "http_tls = { cert = '/c.pem', key = '/k.pem' }";
        for (daemon, wanted) in [
            (TLS.to_owned(), ("2:12", "http_tls needs `http`")),
            ("token_file = '/t'".to_owned(), ("2:14", "token_file needs `http`")),
            ("http_names = ['a']".to_owned(), ("2:14", "http_names need `http`")),
            (
                "http = '[::1]:1'\ntoken_file = 't'".to_owned(),
                ("3:14", "token_file must be an absolute path"),
            ),
            (
                "http = '[::1]:1'\nhttp_names = ['http://a']".to_owned(),
                ("3:14", "invalid host name"),
            ),
            (format!("http = '[::1]:1'\n{}", TLS.replace("'/c", "'c")), ("3:12", "absolute paths")),
            (format!("http = '[::1]:1'\n{}", TLS.replace("'/k", "'k")), ("3:12", "absolute paths")),
            (
                format!("http = '[::1]:1'\n{}", TLS.replace(" }", ", client_ca = 'a' }")),
                ("3:12", "absolute paths"),
            ),
            (
                format!("http = '[::1]:1'\n{}", TLS.replace("key", "kee")),
                ("3:12", "missing key `key`"),
            ),
        ] {
            let text = format!("[daemon]\n{daemon}\n{TIER}");
            let told = told(&text, Language::Toml);
            assert_told(&told[..1], &[wanted]);
        }
        let right = format!("[daemon]\nhttp = '[::1]:1'\n{TLS}\n{TIER}");
        let tls = Config::parse(&right).unwrap().daemon.http_tls.unwrap();
        assert_eq!(tls.files().client_ca, None);
    }

    #[test]
    fn yaml_json_and_toml_parse_alike() {
        let toml = format!(
            "{TIER}watermarks = {{ low = 0.5, high = 0.9 }}\n\
            [[dataset]]\nname = 'a'\nmatch = '**'\nevict = 'none'\npriority = -3\npin = false\n\
            [[tenant]]\nname = 'no'\ngroups = [16, '17']\n"
        );
        let yaml = "tier:\n- name: nvme\n  path: /m\n  capacity: 1GiB\n  watermarks: {low: 0.5, high: 9e-1}\n\
            dataset:\n  # A comment: with a colon.\n  - name: \"a\"\n    match: '**'\n    evict: none\n    priority: -3\n    pin: False\n    ttl: ~\n\
            tenant:\n- name: no\n  groups: [0x10, \"17\"]\n";
        let json = "{\n\t\"tier\": [{\"name\":\"nvme\", \"path\": \"\\/m\",\n\t\t\"capacity\":\"1GiB\",\n\
            \t\t\"watermarks\": {\"low\": 5e-1, \"high\": 0.9}\n\t}],\n\t\"dataset\": [\n\t{\"name\": \"a\", \"match\": \"**\", \"evict\": \"none\",\n\
            \"priority\": -3, \"pin\": false}], \"tenant\": [{\"name\": \"no\", \"groups\": [16, \"17\"]}]\n}\n";
        let shown = |text: &str, language| {
            let config = Config::understand(text, language)
                .unwrap_or_else(|mistakes| panic!("{language:?}: {mistakes:?}"));
            crate::document(&config, "/run/f.sock", 1)
        };
        let wanted = shown(&toml, Language::Toml);
        assert_eq!(wanted["tenant"][0]["name"], "no");
        assert_eq!(shown(yaml, Language::Yaml), wanted.clone());
        assert_eq!(shown(json, Language::Json), wanted);
        let wrong = |text: &str| text.replacen("evict", "evct", 1);
        let suggestion = "unknown key `evct` (dataset=a); did you mean `evict`?";
        for (language, text, place) in [
            (Language::Toml, wrong(&toml), "9:1"),
            (Language::Yaml, wrong(yaml), "10:5"),
            (Language::Json, wrong(json), "7:31"),
        ] {
            assert_told(&told(&text, language), &[(place, suggestion)]);
        }
    }

    #[test]
    fn file_extension_determines_the_language() {
        for (name, language) in [
            ("forebay.toml", Language::Toml),
            ("forebay.yaml", Language::Yaml),
            ("forebay.YML", Language::Yaml),
            ("/etc/forebay.d/a.json", Language::Json),
            ("forebay.conf", Language::Toml),
            ("forebay", Language::Toml),
        ] {
            assert_eq!(Language::of(Path::new(name)), language, "{name}");
        }
    }

    #[test]
    fn ambiguous_yaml_and_json_are_rejected() {
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\ntier: [*b, *b]\n";
        let deep = |open: &str, close: &str| {
            format!("{{\"tier\": {}{}}}", open.repeat(100), close.repeat(100))
        };
        let mut others = Vec::new();
        for (language, text, wanted) in [
            (Language::Yaml, bomb.to_owned(), ("1:4", "anchors")),
            (Language::Yaml, "tier: !!seq []\n".to_owned(), ("1:7", "tags")),
            (Language::Yaml, "tier: []\n---\ntier: []\n".to_owned(), ("2:1", "second document")),
            (Language::Yaml, deep("[", "]"), ("1:41", "nested too deeply")),
            (Language::Yaml, "tier: [\n".to_owned(), ("2:1", "invalid YAML")),
            (Language::Yaml, "? [a]\n: b\n".to_owned(), ("1:3", "a key must be a plain word")),
            (
                Language::Json,
                "{\"tier\": [],}".to_owned(),
                ("1:13", "invalid JSON: trailing comma"),
            ),
            (Language::Json, "tier: []".to_owned(), ("1:2", "invalid JSON")),
            (Language::Json, deep("[", "]"), ("1:41", "nested too deeply")),
            (Language::Json, String::new(), ("1:1", "invalid JSON: EOF")),
            (Language::Json, "[]".to_owned(), ("1:1", "expected a table, found a list")),
        ] {
            let told = told(&text, language);
            let is = told.len() == 1
                && told[0].starts_with(&format!("{}: ", wanted.0))
                && told[0].contains(wanted.1);
            if !is {
                others.push((told, wanted));
            }
        }
        assert!(others.is_empty(), "{others:#?}");
        let twice = "tier:\n- name: a\n  name: b\n  path: /m\n  capacity: 1GiB\n";
        assert_told(&told(twice, Language::Yaml), &[("3:3", "duplicate key `name`")]);
        let twice = "{\"tier\": [{\"name\": \"a\", \"name\": \"b\"}]}";
        assert_told(&told(twice, Language::Json), &[("1:25", "duplicate key `name`")]);
        for language in [Language::Yaml, Language::Toml] {
            let told = told("", language);
            assert!(told[0].contains("at least one [[tier]]"), "{told:?}");
        }
        let date = told("tier = 1979-05-27\n", Language::Toml);
        assert_told(&date, &[("1:8", "a date is not allowed here")]);
    }

    /// Truncated files and files with a changed character parse or give mistakes.
    #[test]
    fn damaged_files_are_parsed_without_panic() {
        let toml =
            format!("{TIER}[[dataset]]\nname = 'é'\nmatch = '**'\nquota = {{ max = '1GiB' }}\n");
        let yaml =
            "tier:\n- {name: é, path: /m, capacity: 1GiB}\ndataset:\n- name: a\n  match: '**'\n";
        let json =
            "{\"tier\": [{\"name\": \"\\u00e9\", \"path\": \"/m\", \"capacity\": \"1GiB\"}]}";
        for (language, text) in
            [(Language::Toml, toml.as_str()), (Language::Yaml, yaml), (Language::Json, json)]
        {
            for (at, _) in text.char_indices() {
                let _ = Config::understand(&text[..at], language);
                let rest: String = text[at..].chars().skip(1).collect();
                for other in
                    ["", "\"", "'", "[", "}", "\n", "\0", "\t", "&", "*", "9", "\u{85}", "\r"]
                {
                    let text = format!("{}{other}{rest}", &text[..at]);
                    if let Err(mistakes) = Config::understand(&text, language) {
                        assert!(!mistakes.is_empty(), "{text}");
                    }
                }
            }
        }
    }

    /// Deep nesting is rejected; a thousand data sets are accepted.
    #[test]
    fn deep_nesting_and_long_lists_are_checked_cheaply() {
        for open in ["[", "{a: ", "- ", "a = [", "a = {b = ", "{\"a\":", "a.", "[[", "? ", "a:\n "]
        {
            let text = open.repeat(20_000);
            for language in [Language::Toml, Language::Yaml, Language::Json] {
                assert!(Config::understand(&text, language).is_err(), "{open} {language:?}");
            }
        }
        let sets: String = (0..1000)
            .map(|n| format!("[[dataset]]\nname = 'n{n}'\nmatch = 's3://bucket/{n:04}/**/*.tar'\n"))
            .collect();
        let config = Config::parse(&format!("{TIER}{sets}")).unwrap();
        assert_eq!(config.datasets().unwrap().len(), 1000);
    }

    #[test]
    fn invalid_utf8_is_reported_with_line_and_column() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"[[tier]]\nname = 'n\xff'\n").unwrap();
        let error = Config::read(file.path()).unwrap_err();
        assert_eq!((error.kind(), error.place("line")), (ErrorKind::Invalid, Some("2")));
        assert_eq!(error.place("column"), Some("10"), "{error}");
    }

    #[test]
    fn error_shows_the_first_mistake_and_counts_the_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{TIER}evct = 1\ncolour = 1\n")).unwrap();
        let error = Config::read(file.path()).unwrap_err().to_string();
        for word in ["unknown key `evct`", "tier=nvme", "line=5", "config check", "lists 1 more"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        let many =
            format!("{TIER}{}", (0..10_000).map(|n| format!("k{n} = 1\n")).collect::<String>());
        assert_eq!(told(&many, Language::Toml).len(), MAX_MISTAKES);
    }

    /// Every example of the documents is valid, except for group names of the reader's machine.
    #[test]
    fn documented_examples_are_valid() {
        let document = include_str!("../../../docs/CONFIGURATION.md");
        let mut read = 0;
        for (word, language) in
            [("toml", Language::Toml), ("yaml", Language::Yaml), ("json", Language::Json)]
        {
            for block in document.split(&format!("\n```{word}\n")).skip(1) {
                let text = block.split("\n```").next().unwrap();
                let mistakes = Config::understand(text, language).err().unwrap_or_default();
                let other = mistakes.iter().find(|mistake| mistake.error.place("group").is_none());
                assert!(other.is_none(), "{other:?} in {text}");
                read += 1;
            }
        }
        assert!(read >= 2, "{read} examples");
    }

    #[test]
    fn mistakes_in_daemon_limits_and_leases_are_reported() {
        let long = "x".repeat(108);
        for (line, section) in [
            (format!("socket = '/{long}'"), "daemon"),
            ("socket = 'x.sock'".to_owned(), "daemon"),
            ("max_connections = 127".to_owned(), "daemon"),
            ("max_connections = 65537".to_owned(), "daemon"),
            ("max_sessions_per_user = 0".to_owned(), "daemon"),
            ("redis = 'nonsense'".to_owned(), "leases"),
            ("redis = 'http://h:6379'".to_owned(), "leases"),
            ("redis = 'redis://'".to_owned(), "leases"),
            ("redis = ''".to_owned(), "leases"),
        ] {
            let text = format!("{TIER}[{section}]\n{line}\n");
            let mistakes = Config::understand(&text, Language::Toml).unwrap_err();
            let lines: Vec<_> = mistakes.iter().map(|one| one.place.map(|at| at.line)).collect();
            assert_eq!(lines, [Some(6)], "{line}");
        }
        for line in ["redis://h", "rediss://user:secret@[::1]:6379/2", "unix:///run/redis.sock"] {
            let text = format!("{TIER}[leases]\nredis = '{line}'\n");
            assert!(Config::understand(&text, Language::Toml).is_ok(), "{line}");
        }
    }
}
