//! Everything that is wrong with a configuration, at once.
//!
//! One rule: a table with a mistake in it is not compared with others, so that no mistake is told of which
//! another is the cause.

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
use crate::compose::NodeTenant;

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
        check.tenants(config);
        check.groups("daemon", root.get("daemon"), &config.daemon.groups);
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
    let covers = |before: &&Rule| before.matches == rule.matches || before.matches.as_str() == "**";
    if let Some(before) = before.iter().find(covers) {
        return Err(Error::new(ErrorKind::Invalid, "this rule can never match")
            .at("dataset", &rule.name)
            .at("shadowed_by", &before.name)
            .advise("put the narrower pattern first: the first that matches counts"));
    }
    match before.iter().any(|before| before.name == rule.name) {
        true => {
            let error = Error::new(ErrorKind::Invalid, "two data sets have one name");
            Err(error.at("dataset", &rule.name).advise("give each a name of its own"))
        }
        false => Ok(()),
    }
}

/// Refuses a tenant that cannot come after others.
pub(super) fn tenant_after(before: &[NodeTenant], tenant: &NodeTenant) -> Result<()> {
    let name = tenant.rule.name.as_str();
    if before.iter().any(|before| before.rule.name == name) {
        let error = Error::new(ErrorKind::Invalid, "two tenants have one name");
        return Err(error.at("tenant", name).advise("name all groups of a tenant in one"));
    }
    let taken: HashSet<_> = before.iter().flat_map(|before| &before.groups).collect();
    if tenant.groups.iter().all(|gid| taken.contains(gid)) {
        let what = "tenants before this one have all its groups: it can have no jobs";
        return Err(Error::new(ErrorKind::Invalid, what)
            .at("tenant", name)
            .advise("put it first, or give it a group of its own: the first counts"));
    }
    Ok(())
}

struct Check<'t> {
    root: &'t Node,
    mistakes: Vec<Mistake>,
    /// What cannot be read.
    skipped: Skipped,
    /// That, and what it lies in.
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

    /// Whether a key is missing only because what it says was left out.
    fn follows(&self, fault: &Fault<'_>) -> bool {
        let (What::Missing(key), Some(step)) = (&fault.what, fault.trail.first()) else {
            return false;
        };
        step.node.get(key).is_some()
    }

    /// What goes for each table of a list that has no mistake in it.
    fn clean<T>(&self, section: &str, read: &'t [T]) -> Vec<(&'t Node, &'t T)> {
        let nodes = self.root.get(section).map_or(&[][..], Node::elements);
        let counts = |node: &&Node| !self.skipped.contains(&std::ptr::from_ref(*node));
        let pairs = nodes.iter().filter(counts).zip(read);
        pairs.filter(|(node, _)| !self.dirty.contains(&std::ptr::from_ref(*node))).collect()
    }

    /// Tells of a key of a table; of the table itself where it has no such key.
    fn tell(&mut self, table: &Node, key: &str, error: Error) {
        let place = table.get(key).map_or(table.place, |node| node.place);
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
                (Some(name), "source") => error.at("match", forebay_error::shown(name)),
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
                self.tell(table, "", error);
            }
            if !names.insert(&tier.name) {
                let error = Error::new(ErrorKind::Invalid, "two tiers have one name");
                let error = error.at("tier", &tier.name).advise("give each a name of its own");
                self.tell(table, "name", error);
            }
        }
        if self
            .root
            .get("tier")
            .is_none_or(|list| list.elements().is_empty() && !self.is_dirty(list))
        {
            let error = Error::new(ErrorKind::Invalid, "at least one [[tier]] is needed")
                .advise("say where shards rest: its name, path and capacity");
            self.mistakes.push(Mistake { place: None, error });
        }
    }

    fn is_dirty(&self, node: &Node) -> bool {
        self.dirty.contains(&std::ptr::from_ref(node))
    }

    fn sources(&mut self, config: &Config) {
        let mut rules = Rules::none();
        for (table, source) in self.clean("source", &config.source) {
            if let Err(error) = source.rule().and_then(|rule| rules.add(rule)) {
                let key = if error.place("shadowed_by").is_some() { "match" } else { "" };
                self.tell(table, key, error);
            }
        }
    }

    fn datasets(&mut self, config: &Config) {
        let mut rules = Vec::new();
        for (table, dataset) in self.clean("dataset", &config.dataset) {
            self.tiers_of(config, table, &dataset.name, &dataset.tiers);
            let rule = match dataset.rule() {
                Ok(rule) => rule,
                Err(error) => {
                    self.tell(table, "", error);
                    continue;
                }
            };
            if let Err(error) = dataset_after(&rules, &rule) {
                let key = if error.place("shadowed_by").is_some() { "match" } else { "name" };
                self.tell(table, key, error);
            }
            rules.push(rule);
        }
    }

    /// A data set may lie on tiers that there are.
    fn tiers_of(&mut self, config: &Config, table: &Node, name: &str, tiers: &[String]) {
        // One whose name cannot be read may be the one that is meant.
        let nodes = self.root.get("tier").map_or(&[][..], Node::elements);
        if nodes.len() != config.tier.len() {
            return;
        }
        let known: Vec<_> = config.tier.iter().map(|tier| tier.name.as_str()).collect();
        let places = table.get("tiers").map_or(&[][..], Node::elements);
        for (node, tier) in places.iter().zip(tiers) {
            if known.contains(&tier.as_str()) {
                continue;
            }
            let error = Error::new(ErrorKind::Invalid, "there is no tier of this name")
                .at("dataset", name)
                .at("tier", tier);
            let error = match suggest::advice(tier, &known) {
                Some(advice) => error.advise(advice),
                None => error,
            };
            self.mistakes.push(Mistake::at(node.place, error));
        }
    }

    fn tenants(&mut self, config: &Config) {
        let mut tenants = Vec::new();
        for (table, tenant) in self.clean("tenant", &config.tenant) {
            if !self.groups(&tenant.name, Some(table), &tenant.groups) {
                continue;
            }
            match tenant.node() {
                Ok(node) => {
                    if let Err(error) = tenant_after(&tenants, &node) {
                        let same = tenants
                            .iter()
                            .any(|before: &NodeTenant| before.rule.name == node.rule.name);
                        self.tell(table, if same { "name" } else { "groups" }, error);
                    }
                    tenants.push(node);
                }
                Err(error) => self.tell(table, "", error),
            }
        }
    }

    /// Whether there is each of the groups that a table names.
    fn groups(&mut self, tenant: &str, table: Option<&Node>, groups: &[Group]) -> bool {
        let list = table.and_then(|table| table.get("groups"));
        if list.is_some_and(|list| self.is_dirty(list)) {
            return false;
        }
        let mut all = true;
        for (node, group) in list.map_or(&[][..], Node::elements).iter().zip(groups) {
            if let Err(error) = group.gid() {
                let is_tenant = table.is_some_and(|table| table.get("name").is_some());
                let error = if is_tenant { error.at("tenant", tenant) } else { error };
                self.mistakes.push(Mistake::at(node.place, error));
                all = false;
            }
        }
        all
    }
}
