//! Data set of a URL, and the clients that may read it.
//!
//! The first data set that matches decides, as for placement. A URL without a data set, or in one
//! without `allow`, is for admins. Files and commands that a job's own process opens or runs are
//! subject to its own rights; `allow` can only narrow them.

use std::collections::BTreeMap;

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_source::settled;
use forebay_store::Dataset;

use super::{Allow, Who};

/// The characters of patterns.
const GLOB: [char; 3] = ['*', '?', '['];

/// A data set, and who may read it.
#[derive(Debug)]
struct Guarded {
    rule: Dataset,
    /// Literal prefix of all its URLs.
    literal: String,
    /// True if every URL with that prefix matches.
    is_prefix: bool,
    allow: Option<Allow>,
}

/// Every data set, in order.
#[derive(Debug)]
pub(super) struct Datasets(Vec<Guarded>);

impl Guarded {
    fn has(&self, url: &str) -> bool {
        // A job names a million URLs, most of which begin otherwise, or with all that counts.
        let Some(rest) = url.strip_prefix(&self.literal) else { return false };
        (self.is_prefix && !rest.is_empty()) || self.rule.has(url)
    }
}

impl Datasets {
    pub(super) fn new(rules: &[Dataset], mut allow: BTreeMap<String, Allow>) -> Self {
        let guarded = |rule: &Dataset| {
            let pattern = rule.matches.as_str();
            let (literal, rest) = pattern.split_at(pattern.find(GLOB).unwrap_or(pattern.len()));
            let is_prefix = rest == "**";
            let (literal, allow) = (literal.to_owned(), allow.remove(&rule.name));
            Guarded { rule: rule.clone(), literal, is_prefix, allow }
        };
        Self(rules.iter().map(guarded).collect())
    }

    /// Each list of those who may read something.
    pub(super) fn allows(&self) -> impl Iterator<Item = &Allow> {
        self.0.iter().filter_map(|guarded| guarded.allow.as_ref())
    }

    pub(super) fn may_read(&self, who: &Who, url: &str) -> Result<()> {
        let plain = settled(url)?;
        let found = self.0.iter().find(|guarded| guarded.has(&plain));
        let named = found.map(|guarded| (guarded, guarded.allow.as_ref()));
        match named {
            Some((_, Some(allow))) if allow.names(who) => Ok(()),
            None | Some((_, None)) if is_the_jobs_own(url) => Ok(()),
            Some((guarded, allow)) => Err(denied(&guarded.rule.name, allow, who).at("url", url)),
            None => {
                let what = "URLs outside of all data sets are limited to this daemon's admins";
                Err(Error::new(ErrorKind::PermissionDenied, what)
                    .at("url", url)
                    .advise("ask an admin for a [[dataset]] that matches it, with `allow`"))
            }
        }
    }

    pub(super) fn may_list(&self, who: &Who, pattern: &str) -> Result<()> {
        let prefix = pattern.split(GLOB).next().unwrap_or_default();
        let may_hold = |guarded: &&Guarded| {
            prefix.starts_with(&guarded.literal) || guarded.literal.starts_with(prefix)
        };
        let is_named =
            |guarded: &Guarded| guarded.allow.as_ref().is_some_and(|allow| allow.names(who));
        if self.0.iter().filter(may_hold).any(is_named) {
            return Ok(());
        }
        let what = "no data set this job may read matches this pattern";
        Err(Error::new(ErrorKind::PermissionDenied, what)
            .at("urls", shown(pattern))
            .advise("name shards of a data set it may read, or ask an admin to extend `allow`"))
    }
}

/// Returns true if the job's own process reads the URL with its own rights.
fn is_the_jobs_own(url: &str) -> bool {
    let is_file = || url.starts_with('/') || url.starts_with("file:");
    is_file() || forebay_error::command(url).is_some()
}

/// Returns the error for a client that may not read the data set.
fn denied(dataset: &str, allow: Option<&Allow>, who: &Who) -> Error {
    let (what, advice) = match allow {
        None => (
            "data sets without `allow` are limited to this daemon's admins",
            "ask an admin to add `allow` to it",
        ),
        Some(_) => (
            "this job may not read this data set",
            "ask an admin to add one of its groups, or its tenant, to `allow`",
        ),
    };
    let error = Error::new(ErrorKind::PermissionDenied, what).at("dataset", dataset);
    let error = match &who.tenant {
        Some(tenant) => error.at("tenant", tenant),
        None => error,
    };
    error.advise(advice)
}

#[cfg(test)]
mod tests {
    use forebay_store::Evict;

    use super::*;

    fn datasets(rules: &[(&str, &str, Option<u32>)]) -> Datasets {
        let built =
            |(name, matches, _): &(&str, &str, _)| Dataset::new(name, matches, Evict::Lru).unwrap();
        let sets: Vec<_> = rules.iter().map(built).collect();
        let named = |(name, _, gid): &(&str, &str, Option<u32>)| {
            let allow = Allow { groups: vec![(*gid)?], ..Allow::default() };
            Some(((*name).to_owned(), allow))
        };
        Datasets::new(&sets, rules.iter().filter_map(named).collect())
    }

    fn member(gid: u32) -> Who {
        Who { uid: Some(1000), groups: vec![gid], tenant: None }
    }

    #[test]
    fn first_matching_data_set_decides() {
        let sets = datasets(&[
            ("secret", "s3://b/secret/**", None),
            ("val", "s3://b/*/val-*.tar", Some(2)),
            ("all", "s3://b/**", Some(1)),
            ("web", "https://host/d/**", Some(1)),
        ]);
        for (url, one, two) in [
            ("s3://b/a/0.tar", true, false),
            ("s3://b/0.tar", true, false),
            ("s3://b/a/val-0.tar", false, true),
            ("s3://b/secret/0.tar", false, false),
            ("s3://b/secret/val-0.tar", false, false),
            ("s3://b/secretary/0.tar", true, false),
            ("s3://bb/0.tar", false, false),
            ("s3://b//secret/0.tar", false, false),
            ("s3://b/x/../secret/0.tar", false, false),
            ("s3://B/secret/0.tar", false, false),
            ("s3://b/%73ecret/0.tar", true, false),
            ("https://host/d/0.tar?signature=s", true, false),
            ("https://host/d/../secret", false, false),
            ("https://host/other/0.tar", false, false),
            ("ftp://host/0.tar", false, false),
            ("", false, false),
        ] {
            assert_eq!(sets.may_read(&member(1), url).is_ok(), one, "{url}");
            assert_eq!(sets.may_read(&member(2), url).is_ok(), two, "{url}");
            assert!(sets.may_read(&member(3), url).is_err(), "{url}");
        }
        let error = sets.may_read(&member(1), "s3://b/secret/0.tar").unwrap_err();
        assert_eq!(
            (error.kind(), error.place("dataset")),
            (ErrorKind::PermissionDenied, Some("secret"))
        );
        let error = sets.may_read(&member(1), "s3://c/0.tar").unwrap_err().to_string();
        assert!(error.contains("outside of all data sets") && error.contains("`allow`"), "{error}");
    }

    /// A match by prefix alone agrees with the pattern.
    #[test]
    fn prefix_match_agrees_with_the_full_pattern() {
        for pattern in
            ["**", "s3://b/**", "s3://b/x/**", "s3://*/x/**", "s3://b/*.tar", "s3://b/x", "/d/**"]
        {
            let sets = datasets(&[("one", pattern, None)]);
            for url in [
                "s3://b/0.tar",
                "s3://b/x",
                "s3://b/x/",
                "s3://b/x/0.tar",
                "s3://b/x/y/.z/0.tar",
                "s3://b/",
                "s3://b",
                "s3://bb/x/0.tar",
                "/d/0.tar",
                "/d/",
                "/d",
                "",
            ] {
                assert_eq!(sets.0[0].has(url), sets.0[0].rule.has(url), "{pattern} {url}");
            }
        }
    }

    #[test]
    fn allow_admits_users_groups_and_tenants() {
        let set = Dataset::new("all", "s3://b/**", Evict::Lru).unwrap();
        let allow = Allow { users: vec![7], groups: vec![8], tenants: vec!["vision".to_owned()] };
        let sets = Datasets::new(&[set], [("all".to_owned(), allow)].into());
        let who = |uid, gid, tenant: Option<&str>| Who {
            uid,
            groups: vec![gid],
            tenant: tenant.map(str::to_owned),
        };
        for (who, may) in [
            (who(Some(7), 1, None), true),
            (who(Some(1), 8, None), true),
            (who(Some(1), 1, Some("vision")), true),
            (who(None, 1, Some("vision")), true),
            (who(Some(8), 7, Some("speech")), false),
            (who(None, 7, None), false),
        ] {
            assert_eq!(sets.may_read(&who, "s3://b/0.tar").is_ok(), may, "{who:?}");
        }
    }

    /// `allow` narrows a file's own rights and never widens them.
    #[test]
    fn files_are_readable_unless_an_allow_narrows_them() {
        let sets = datasets(&[("kept", "/data/kept/**", Some(1)), ("none", "/data/none/**", None)]);
        for (url, one, two) in [
            ("/home/0.tar", true, true),
            ("/data/none/0.tar", true, true),
            ("/data/kept/0.tar", true, false),
            ("file:///data/kept/0.tar", true, false),
            ("//data/./x/../kept/0.tar", true, false),
            ("pipe:cat /data/kept/0.tar", true, true),
        ] {
            assert_eq!(sets.may_read(&member(1), url).is_ok(), one, "{url}");
            assert_eq!(sets.may_read(&member(2), url).is_ok(), two, "{url}");
        }
    }

    #[test]
    fn pattern_is_listed_only_if_it_may_match_allowed_data() {
        let sets = datasets(&[("secret", "s3://b/secret/**", None), ("a", "s3://b/a/**", Some(1))]);
        for (pattern, may) in [
            ("s3://b/a/*.tar", true),
            ("s3://b/**/*.tar", true),
            ("s3://b/", true),
            ("s3://b/a/x/", true),
            ("s3://b/secret/*.tar", false),
            ("s3://bb/*.tar", false),
        ] {
            assert_eq!(sets.may_list(&member(1), pattern).is_ok(), may, "{pattern}");
            assert!(sets.may_list(&member(2), pattern).is_err(), "{pattern}");
        }
    }
}
