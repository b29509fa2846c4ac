//! Checks of rules for checkpoints.

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_store::CheckpointRule;

use super::Check;
use crate::Config;

/// Refuses a checkpoint rule that cannot come after others.
pub(crate) fn checkpoint_after(before: &[CheckpointRule], rule: &CheckpointRule) -> Result<()> {
    match before.iter().find(|before| before.covers(rule)) {
        None => Ok(()),
        Some(before) => Err(Error::new(ErrorKind::Invalid, "this rule can never match")
            .at("match", shown(rule.matches.as_str()))
            .at("shadowed_by", shown(before.matches.as_str()))
            .advise("put the narrower pattern first: the first that matches counts")),
    }
}

impl Check<'_> {
    pub(super) fn checkpoints(&mut self, config: &Config) {
        // Without all tiers nothing is said of those that a rule may use.
        let has_tiers = self.has_all("tier", &config.tier) && !config.tier.is_empty();
        let mut rules = Vec::new();
        for (table, checkpoint) in self.read("checkpoint", &config.checkpoint) {
            let name = shown(&checkpoint.r#match);
            let of = ("match", name.as_str());
            let node = table.get("allow").filter(|node| !self.is_dirty(node));
            if let (Some(node), Some(allow)) = (node, &checkpoint.allow) {
                self.allow(config, node, of, allow);
            }
            // The pattern was read of each; whatever else is wrong with it, they are compared.
            let rule = if self.is_dirty(table) || !has_tiers {
                CheckpointRule::new(&checkpoint.r#match)
            } else {
                self.tiers_of(config, table, of, &checkpoint.tiers);
                checkpoint.rule(&config.tier)
            };
            let rule = match rule {
                Ok(rule) => rule,
                Err(error) => {
                    self.tell(table, error);
                    continue;
                }
            };
            self.normalized(table, of);
            if let Err(error) = checkpoint_after(&rules, &rule) {
                self.tell(table, error);
            }
            rules.push(rule);
        }
    }
}
