//! Data sets: what an admin says of shards, by their URLs.
//!
//! One rule: a shard belongs to the first data set whose pattern its URL matches, and to the rest
//! of the tier if it matches none.

mod covers;

use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use glob::{MatchOptions, Pattern};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use forebay_policy::Evict;

/// `*` stays within one folder, `**` crosses them, as in every other tool.
pub(crate) const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// Whether copies of a data set's shards are kept at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// On the tiers that take them.
    #[default]
    Always,
    /// Nowhere: they are indexed once, and read where they are.
    Never,
}

/// How the shards of one data set are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// What admins call it.
    pub name: String,
    /// URLs that belong to it.
    pub matches: Pattern,
    /// Whether copies of it are kept.
    pub cache: Cache,
    /// The order in which its shards are given up.
    pub evict: Evict,
    /// Nothing of it is evicted. What does not fit then is refused.
    pub pin: bool,
    /// A copy is dropped, and fetched anew when it is asked for, this long after it was fetched.
    pub ttl: Option<Duration>,
    /// A copy is not evicted before this long after it was fetched.
    pub dont_evict_time: Option<Duration>,
    /// Other data sets do not push it below this many bytes.
    pub min_bytes: u64,
    /// It holds this many bytes at most.
    pub max_bytes: Option<u64>,
    /// Data sets of lower priority give up their shards first.
    pub priority: i32,
    /// What is read once passes through; only what is used again stays.
    pub scan_bypass: bool,
    /// The tiers it may lie on, by name; empty: any.
    pub tiers: Vec<String>,
    /// Bytes a second that its fills take from their origins, at most.
    pub bandwidth: Option<u64>,
}

impl Dataset {
    /// A data set kept by `evict` alone.
    ///
    /// # Errors
    /// `Invalid` for a pattern that is none.
    pub fn new(name: &str, matches: &str, evict: Evict) -> Result<Self> {
        let matches = Pattern::new(matches).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("`match` is no pattern: {error}"))
                .at("dataset", name)
                .at("match", matches)
        })?;
        Ok(Self {
            name: name.to_owned(),
            matches,
            cache: Cache::Always,
            evict,
            pin: false,
            ttl: None,
            dont_evict_time: None,
            min_bytes: 0,
            max_bytes: None,
            priority: 0,
            scan_bypass: false,
            tiers: Vec::new(),
            bandwidth: None,
        })
    }

    /// Whether it may lie on this tier.
    #[must_use]
    pub fn allows(&self, tier: &str) -> bool {
        self.tiers.is_empty() || self.tiers.iter().any(|name| name == tier)
    }

    /// Whether `url` matches.
    #[must_use]
    pub fn has(&self, url: &str) -> bool {
        self.matches.matches_with(url, MATCHING)
    }

    /// Whether it leaves `other` nothing to match, behind it; a yes is certain.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        covers::covers(self.matches.as_str(), other.matches.as_str())
    }

    /// Refuses rules that contradict themselves.
    ///
    /// # Errors
    /// `Invalid` naming the data set and the options.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str| {
            Err(Error::new(ErrorKind::Invalid, what.to_owned()).at("dataset", &self.name))
        };
        if self.max_bytes.is_some_and(|max| max < self.min_bytes) {
            return refuse("the quota's max is below its min");
        }
        if self.cache == Cache::Never {
            let says = [
                self.pin,
                self.ttl.is_some(),
                self.dont_evict_time.is_some(),
                self.min_bytes > 0,
                self.max_bytes.is_some(),
                self.scan_bypass,
                !self.tiers.is_empty(),
            ];
            if says.contains(&true) {
                return refuse("a data set that is never cached has nothing to say of copies");
            }
            if !["/", "file:"].iter().any(|start| self.matches.as_str().starts_with(start)) {
                return refuse("only files are read in place: `match` must be a path");
            }
        }
        if self.pin && self.ttl.is_some() {
            return refuse("a data set cannot be pinned and have a ttl");
        }
        if let (Some(ttl), Some(keep)) = (self.ttl, self.dont_evict_time)
            && ttl < keep
        {
            return refuse("the ttl ends before dont_evict_time");
        }
        Ok(())
    }
}
