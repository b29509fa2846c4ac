//! Rules for checkpoints: admins' limits for what jobs write, selected by the checkpoint's URL.
//!
//! The first rule whose pattern matches decides, as for data sets.

use forebay_checkpoint::Keep;
use forebay_error::{Error, ErrorKind, Result, shown};
use glob::Pattern;

use crate::dataset::{MATCHING, covers};

/// Schemes of origins that checkpoints are written to, with their other spellings.
const WRITABLE: [&str; 9] = ["s3", "gs", "gcs", "az", "azure", "abfs", "abfss", "wasb", "wasbs"];

/// The characters of patterns.
const GLOB: [char; 3] = ['*', '?', '['];

/// Rule for the checkpoints whose URLs match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointRule {
    /// URLs of its checkpoints.
    pub matches: Pattern,
    /// Bytes of the tiers that belong to its checkpoints: shards give way to them.
    pub reserve_bytes: u64,
    /// Bytes that its checkpoints hold on the tiers, at most; none: the tiers' capacity.
    pub max_bytes: Option<u64>,
    /// Names of the tiers it may use, all of them disks.
    pub tiers: Vec<String>,
    /// Bytes per second that its uploads send, at most.
    pub upload_bandwidth: Option<u64>,
    /// Published checkpoints that stay at the origin; none: all.
    pub keep: Option<Keep>,
}

impl CheckpointRule {
    /// A rule without limits, for checkpoints on no tier yet.
    ///
    /// # Errors
    /// `Invalid` for a pattern that is none, or that no checkpoint's URL can match.
    pub fn new(matches: &str) -> Result<Self> {
        let refuse = |what: String, advice: &str| {
            let error = Error::new(ErrorKind::Invalid, what).at("match", shown(matches));
            Err(error.advise(advice.to_owned()))
        };
        let pattern = match Pattern::new(matches) {
            Ok(pattern) => pattern,
            Err(error) => {
                let what = format!("`match` is not a valid pattern: {error}");
                return refuse(what, "write it like \"s3://runs/**\"");
            }
        };
        let literal = matches.split(GLOB).next().unwrap_or_default();
        let named = match literal.split_once("://") {
            Some((scheme, _)) => WRITABLE.contains(&scheme),
            None => literal.starts_with('/') || (literal.is_empty() && !matches.is_empty()),
        };
        if !named {
            return refuse(
                "`match` names no origin to which checkpoints can be written".to_owned(),
                "name an object store (s3://, gs://, az://, abfss://), or a path from `/` on",
            );
        }
        if matches.ends_with('/') {
            return refuse(
                "`match` ends with a slash, as no checkpoint's URL does".to_owned(),
                "end it with `**`",
            );
        }
        Ok(Self {
            matches: pattern,
            reserve_bytes: 0,
            max_bytes: None,
            tiers: Vec::new(),
            upload_bandwidth: None,
            keep: None,
        })
    }

    /// Returns true if the checkpoint at `url` matches, or what lies directly in it: a file of its
    /// own is known by its folder, which is no checkpoint itself.
    #[must_use]
    pub fn has(&self, url: &str) -> bool {
        let matches = |url: &str| self.matches.matches_with(url, MATCHING);
        matches(url) || matches(&format!("{url}/"))
    }

    /// Returns true if its checkpoints may use this tier.
    #[must_use]
    pub fn allows(&self, tier: &str) -> bool {
        self.tiers.iter().any(|name| name == tier)
    }

    /// Returns true if every URL that `other` matches is certain to match this rule.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        covers(self.matches.as_str(), other.matches.as_str())
    }

    /// Returns true if it is about paths of file systems.
    #[must_use]
    pub fn is_of_paths(&self) -> bool {
        self.matches.as_str().starts_with('/')
    }

    /// Rejects limits that contradict each other.
    ///
    /// # Errors
    /// `Invalid` naming the rule and its keys.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, advice: &str| {
            Err(self.locate(Error::new(ErrorKind::Invalid, what.to_owned())).advise(advice))
        };
        if self.max_bytes.is_some_and(|max| max < self.reserve_bytes) {
            return refuse("`reserve` of a checkpoint rule is above its `max`", "raise `max`");
        }
        if self.tiers.is_empty() {
            return refuse(
                "checkpoints need a tier on a disk: memory does not survive a power cut",
                "add a [[tier]] with a path",
            );
        }
        Ok(())
    }

    /// Names the rule in an error.
    pub(crate) fn locate(&self, error: Error) -> Error {
        error.at("match", shown(self.matches.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(matches: &str) -> CheckpointRule {
        CheckpointRule { tiers: vec!["nvme".to_owned()], ..CheckpointRule::new(matches).unwrap() }
    }

    #[test]
    fn patterns_match_urls_of_checkpoints() {
        for (matches, url, has) in [
            ("s3://runs/**", "s3://runs/a/step-7", true),
            ("s3://runs/*", "s3://runs/a/step-7", false),
            ("s3://runs/*/step-*", "s3://runs/a/step-7", true),
            ("s3://runs/best", "s3://runs/best", true),
            ("s3://runs/**", "s3://runs-2/a", false),
            ("s3://runs/**", "s3://runs", true),
            ("s3://runs/*", "s3://runs", true),
            ("s3://runs/a/**", "s3://runs", false),
            ("s3://runs/best", "s3://runs", false),
            ("/d/runs/**", "/d/runs/a", true),
            ("**", "gs://b/a", true),
            ("*://runs/**", "az://runs/a", true),
        ] {
            assert_eq!(rule(matches).has(url), has, "{matches} {url}");
        }
        assert!(rule("s3://runs/**").covers(&rule("s3://runs/a/*")));
        assert!(!rule("s3://runs/a/*").covers(&rule("s3://runs/**")));
        assert!(rule("/d/**").is_of_paths() && !rule("**").is_of_paths());
    }

    #[test]
    fn patterns_of_what_cannot_be_written_are_rejected() {
        for matches in [
            "http://host/**",
            "https://host/runs/**",
            "hf://datasets/a/b/**",
            "pipe:cat",
            "pipe://x/**",
            "file:///d/**",
            "runs/**",
            "",
            "s3://runs/",
            "s3://[runs",
        ] {
            let error = CheckpointRule::new(matches).unwrap_err();
            assert_eq!((error.kind(), error.place("match")), (ErrorKind::Invalid, Some(matches)));
        }
    }

    #[test]
    fn contradicting_limits_are_rejected() {
        let most = |reserve_bytes, max_bytes| CheckpointRule {
            reserve_bytes,
            max_bytes,
            ..rule("s3://runs/**")
        };
        assert!(most(5, None).check().is_ok() && most(5, Some(5)).check().is_ok());
        let nowhere = CheckpointRule { tiers: Vec::new(), ..most(0, None) };
        for rule in [most(5, Some(4)), nowhere] {
            let error = rule.check().unwrap_err();
            let place = error.place("match");
            assert_eq!((error.kind(), place), (ErrorKind::Invalid, Some("s3://runs/**")));
        }
    }
}
