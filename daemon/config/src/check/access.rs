//! Checks of access settings.

use std::collections::HashMap;
use std::path::PathBuf;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::settled;

use super::Check;
use crate::accounts::{Group, User};
use crate::mistake::Mistake;
use crate::tree::Node;
use crate::{Allow, Config};

/// The characters of patterns.
const GLOB: [char; 3] = ['*', '?', '['];

impl Check<'_> {
    pub(super) fn access(&mut self, config: &Config) {
        let daemon = self.root.get("daemon");
        let named = |key| daemon.and_then(|daemon| daemon.get(key));
        self.are_known(named("groups"), &config.daemon.groups, None, Group::gid);
        if let (Some(node), Some(group)) = (named("admin_group"), &config.daemon.admin_group) {
            self.is_known(node, group.gid(), None);
        }
        for (table, dataset) in self.read("dataset", &config.dataset) {
            let node = table.get("allow").filter(|node| !self.is_dirty(node));
            if let (Some(node), Some(allow)) = (node, &dataset.allow) {
                let of = ("dataset", dataset.name.as_str());
                self.allow(config, node, of, allow);
                self.normalized(table, of);
            }
        }
        self.listens(config);
        if let (Some(table), Some(audit)) = (self.root.get("audit"), &config.audit)
            && let (false, Err(error)) = (self.is_dirty(table), audit.node())
        {
            self.tell(table, error);
        }
    }

    /// Checks the `allow` of a rule, which is given by noun and name.
    pub(super) fn allow(
        &mut self,
        config: &Config,
        node: &Node,
        (noun, name): (&str, &str),
        allow: &Allow,
    ) {
        if allow.is_empty() {
            let error = Error::new(ErrorKind::Invalid, "`allow` is empty").at(noun, name);
            let advice = "name users, groups or tenants, or leave it out to admit admins only";
            self.mistakes.push(Mistake::at(node.place, error.advise(advice)));
        }
        let of = Some((noun, name));
        self.are_known(node.get("users"), &allow.users, of, User::uid);
        self.are_known(node.get("groups"), &allow.groups, of, Group::gid);
        if self.has_all("tenant", &config.tenant) {
            let known: Vec<_> = config.tenant.iter().map(|tenant| tenant.name.as_str()).collect();
            let places = node.get("tenants").map_or(&[][..], Node::elements);
            for (node, tenant) in places.iter().zip(&allow.tenants) {
                self.is_one_of(node, ("tenant", tenant), &known, (noun, name));
            }
        }
    }

    /// Checks that normalized URLs can match a rule.
    pub(super) fn normalized(&mut self, table: &Node, (noun, name): (&str, &str)) {
        if let Some(matches) = table.get("match")
            && let Err(error) = is_plain(matches.text().unwrap_or_default())
        {
            self.mistakes.push(Mistake::at(matches.place, error.at(noun, name)));
        }
    }

    fn listens(&mut self, config: &Config) {
        let mut taken: HashMap<PathBuf, &str> = [(config.socket(), "[daemon]")].into();
        let known: Vec<_> = config.tenant.iter().map(|tenant| tenant.name.as_str()).collect();
        let knows_all = self.has_all("tenant", &config.tenant);
        for (table, listen) in self.clean("listen", &config.listen) {
            let path = listen.path.display().to_string();
            if let (Some(node), Some(group)) = (table.get("group"), &listen.group)
                && let Err(error) = group.gid()
            {
                self.mistakes.push(Mistake::at(node.place, error.at("listen", path)));
                continue;
            }
            if let Err(error) = listen.node() {
                self.tell(table, error);
                continue;
            }
            if let Some(other) = taken.insert(listen.path.clone(), "[[listen]]") {
                let error =
                    Error::new(ErrorKind::Invalid, "another socket has this `path` already");
                let error = error.at("listen", &path).at("other", other);
                self.tell(table, error.advise("give each socket a path of its own"));
            }
            if let (true, Some(node), Some(tenant)) =
                (knows_all, table.get("tenant"), &listen.tenant)
            {
                self.is_one_of(node, ("tenant", tenant), &known, ("listen", &path));
            }
        }
    }

    /// Checks that each account of a list exists.
    pub(super) fn are_known<T>(
        &mut self,
        list: Option<&Node>,
        read: &[T],
        of: Option<(&str, &str)>,
        number: fn(&T) -> Result<u32>,
    ) -> bool {
        if list.is_some_and(|list| self.is_dirty(list)) {
            return false;
        }
        let nodes = list.map_or(&[][..], Node::elements).iter().zip(read);
        // Every one of them is told of.
        nodes.fold(true, |all, (node, account)| self.is_known(node, number(account), of) && all)
    }

    fn is_known(&mut self, node: &Node, number: Result<u32>, of: Option<(&str, &str)>) -> bool {
        let Err(error) = number else { return true };
        let error = of.into_iter().fold(error, |error, (noun, name)| error.at(noun, name));
        self.mistakes.push(Mistake::at(node.place, error));
        false
    }
}

/// Refuses a pattern that no URL matches by which others are served: those are written in one way.
fn is_plain(matches: &str) -> Result<()> {
    let literal = matches.split(GLOB).next().unwrap_or_default();
    let Some((scheme, rest)) = literal.split_once("://").filter(|(scheme, _)| *scheme != "file")
    else {
        return Ok(());
    };
    // The part after the last `/` may continue.
    let Some((folder, _)) = rest.rsplit_once('/') else { return Ok(()) };
    settled(&format!("{scheme}://{folder}/x")).map(drop).map_err(|_| {
        let what = "`match` is not in normalized form";
        Error::new(ErrorKind::Invalid, what).at("match", forebay_error::shown(matches)).advise(
            "write scheme and host in lower case, without a usual port; gs://, az:// and \
             abfss://CONTAINER@ACCOUNT.dfs.core.windows.net; and no names that are empty, `.` or `..`",
        )
    })
}
