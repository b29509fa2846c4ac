//! Rule of a checkpoint's URL, and the clients that may write there.
//!
//! The first rule that matches decides. Without a match nobody writes; without `allow` admins do.
//! The daemon writes paths with its own rights, so those are for admins alone.

use forebay_config::settings::{Allow, Who, Writers};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::settled;

/// Message for a URL without a rule.
const NO_RULE: &str = "this daemon writes no checkpoints to this URL";

/// Every rule, in order.
#[derive(Debug)]
pub(super) struct Checkpoints(Vec<Writers>);

impl Checkpoints {
    pub(super) fn new(writers: Vec<Writers>) -> Self {
        Self(writers)
    }

    /// Each list of those who may write something.
    pub(super) fn allows(&self) -> impl Iterator<Item = &Allow> {
        self.0.iter().filter_map(|writers| writers.allow.as_ref())
    }

    /// Rejects a URL that no rule matches.
    pub(super) fn may_keep(&self, url: &str) -> Result<()> {
        match self.rule(&settled(url)?) {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::PermissionDenied, NO_RULE)
                .at("url", url)
                .advise("give all nodes of a cluster the same [[checkpoint]] rules")),
        }
    }

    fn rule(&self, plain: &str) -> Option<&Writers> {
        self.0.iter().find(|one| one.rule.has(plain))
    }

    pub(super) fn may_write(&self, who: &Who, is_admin: bool, url: &str) -> Result<()> {
        let denied = |what: &str, advice: &str| {
            let error = Error::new(ErrorKind::PermissionDenied, what.to_owned()).at("url", url);
            let error = match &who.tenant {
                Some(tenant) => error.at("tenant", tenant),
                None => error,
            };
            Err(error.advise(advice.to_owned()))
        };
        let plain = settled(url)?;
        let Some(Writers { allow, .. }) = self.rule(&plain) else {
            return denied(NO_RULE, "ask an admin for a [[checkpoint]] that matches it");
        };
        if is_admin {
            return Ok(());
        }
        if plain.starts_with('/') {
            return denied(
                "checkpoints at paths are limited to this daemon's admins",
                "save to an object store",
            );
        }
        match allow {
            Some(allow) if allow.names(who) => Ok(()),
            Some(_) => denied(
                "this job may not write checkpoints to this URL",
                "ask an admin to add one of its groups, or its tenant, to `allow`",
            ),
            None => denied(
                "checkpoints without `allow` are limited to this daemon's admins",
                "ask an admin to add `allow` to the [[checkpoint]] that matches it",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::CheckpointRule;

    use super::*;

    fn rules(rules: &[(&str, Option<u32>)]) -> Checkpoints {
        let writers = |(matches, gid): &(&str, Option<u32>)| Writers {
            rule: CheckpointRule::new(matches).unwrap(),
            allow: gid.map(|gid| Allow { groups: vec![gid], ..Allow::default() }),
        };
        Checkpoints::new(rules.iter().map(writers).collect())
    }

    fn member(gid: u32) -> Who {
        Who { uid: Some(1000), groups: vec![gid], tenant: None }
    }

    #[test]
    fn first_matching_checkpoint_rule_decides() {
        let rules = rules(&[
            ("s3://runs/held/**", None),
            ("s3://runs/*/two/**", Some(2)),
            ("s3://runs/**", Some(1)),
            ("/lustre/runs/**", Some(1)),
        ]);
        for (url, one, two, admin) in [
            ("s3://runs/a/step-1", true, false, true),
            ("s3://runs/a/two/step-1", false, true, true),
            ("s3://runs/held/step-1", false, false, true),
            // Folders of files of their own.
            ("s3://runs", true, false, true),
            ("s3://runs/held", false, false, true),
            ("s3://other/a", false, false, false),
            ("s3://runs/x/../held/step-1", false, false, false),
            ("s3://runs//held/step-1", false, false, false),
            ("S3://runs/a/step-1", false, false, false),
            ("/lustre/runs/a", false, false, true),
            ("file:///lustre/runs/a", false, false, true),
            ("/lustre/other", false, false, false),
            ("", false, false, false),
        ] {
            let may = |gid, is_admin| rules.may_write(&member(gid), is_admin, url);
            let found = (may(1, false).is_ok(), may(2, false).is_ok(), may(3, true).is_ok());
            assert_eq!(found, (one, two, admin), "{url}");
            let error = may(3, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{url}");
            assert_eq!(error.place("url"), Some(url));
        }
    }

    #[test]
    fn allow_admits_tenants_to_write() {
        let allow = Allow { tenants: vec!["vision".to_owned()], ..Allow::default() };
        let rule = CheckpointRule::new("s3://runs/**").unwrap();
        let rules = Checkpoints::new(vec![Writers { rule, allow: Some(allow) }]);
        let of = |tenant: &str| Who { tenant: Some(tenant.to_owned()), ..member(1) };
        assert!(rules.may_write(&of("vision"), false, "s3://runs/a").is_ok());
        let error = rules.may_write(&of("speech"), false, "s3://runs/a").unwrap_err();
        assert_eq!(error.place("tenant"), Some("speech"));
        assert_eq!(rules.allows().count(), 1);
    }
}
