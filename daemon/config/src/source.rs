//! `[[source]]`: which stores may be read, and by which way.

use std::fmt;
use std::path::PathBuf;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{RateLimits, Rule};
use schemars::JsonSchema;
use serde::Deserialize;

use super::rate::Rate;

/// `[[source]]`: a store that may be read, by which way and as whom.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// URLs that belong to it: what they start with, or a pattern (`*` stays within a folder, `**`
    /// crosses them).
    pub r#match: String,
    /// Endpoint requests go to instead.
    pub endpoint: Option<String>,
    /// The region to sign for.
    pub region: Option<String>,
    /// Credentials by this profile of the daemon's own AWS configuration, for every job.
    pub profile: Option<String>,
    /// Bytes a second, at most.
    pub bandwidth: Option<Rate>,
    /// Requests in flight at once, at most.
    pub connections: Option<usize>,
    /// Certificates to trust beside the system's, in PEM.
    pub ca_bundle: Option<PathBuf>,
    /// The proxy that requests go by.
    pub proxy: Option<String>,
    /// The bucket is the first part of the path.
    pub path_style: Option<bool>,
    /// The bucket is the first part of the host.
    pub virtual_host: Option<bool>,
    /// Requests and traffic are on the requester's bill.
    pub request_payer: Option<bool>,
    /// Requests are not signed, whatever credentials a job has.
    pub anonymous: Option<bool>,
    /// Web addresses that it may redirect to, beside what a `[[source]]` matches.
    #[serde(default)]
    pub redirects: Vec<String>,
}

/// URLs may hold secrets.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("match", &self.r#match).finish_non_exhaustive()
    }
}

impl Source {
    /// The rule as sources apply it.
    pub(super) fn rule(&self) -> Result<Rule> {
        let mut rule = Rule::new(&self.r#match)?;
        rule.virtual_host = match (self.virtual_host, self.path_style) {
            (Some(_), Some(_)) => {
                let what = "`path_style` and `virtual_host` are the same setting: give one";
                return Err(Error::new(ErrorKind::Invalid, what).at("match", &self.r#match));
            }
            (virtual_host, path_style) => virtual_host.or(path_style.map(|path| !path)),
        };
        rule.endpoint.clone_from(&self.endpoint);
        rule.region.clone_from(&self.region);
        rule.profile.clone_from(&self.profile);
        rule.limits = RateLimits {
            bandwidth: self.bandwidth.map(Rate::bytes),
            connections: self.connections,
        };
        rule.ca_bundle.clone_from(&self.ca_bundle);
        rule.proxy.clone_from(&self.proxy);
        rule.request_payer = self.request_payer;
        rule.anonymous = self.anonymous;
        rule.redirects.clone_from(&self.redirects);
        Ok(rule)
    }
}
