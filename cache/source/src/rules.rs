//! An administrator's rules for sources: which may be used, by which way, with which credentials.
//!
//! With any rule present, a URL belongs to the first that matches it, and a URL that none matches
//! is rejected. A client then chooses neither the endpoint nor the files that are opened for it.

mod pattern;
mod spelling;

use std::path::PathBuf;

use forebay_error::{Error, ErrorKind, Result};

use crate::Options;
use crate::limits::RateLimits;
use crate::network::{self, Gate, Leads, Network, host};
use crate::options::Family;
use crate::scheme::Scheme;
use pattern::Matches;
pub use spelling::settled;
use url::Url;

/// One `[[source]]`.
#[derive(Clone)]
pub struct Rule {
    matches: Matches,
    /// Endpoint instead of the URL's or the client's.
    pub endpoint: Option<String>,
    /// The region to sign for.
    pub region: Option<String>,
    /// Credentials by this profile of the daemon's own configuration, whatever the client has.
    pub profile: Option<String>,
    /// Limits of the source.
    pub limits: RateLimits,
    /// Certificates to trust beside the system's, in PEM.
    pub ca_bundle: Option<PathBuf>,
    /// The proxy that requests go by.
    pub proxy: Option<String>,
    /// True if the bucket is the first part of the host.
    pub virtual_host: Option<bool>,
    /// True if the requester pays.
    pub request_payer: Option<bool>,
    /// True if requests are not signed.
    pub anonymous: Option<bool>,
    /// Web addresses that its stores may redirect to, beside what a rule matches.
    pub redirects: Vec<String>,
}

/// Hosts from which the Hub serves files, as its documentation names them.
const HUB_HOSTS: [&str; 3] =
    ["https://huggingface.co/", "https://*.huggingface.co/**", "https://*.hf.co/**"];

/// The variables by which a client says where requests go.
const ENDPOINTS: [&str; 7] = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_USE_EMULATOR",
    "GOOGLE_BASE_URL",
    "HF_ENDPOINT",
    "AWS_ALLOW_HTTP",
];

/// The variables by which a client says whom to ask for credentials: the daemon asks its own
/// machine.
const LENDERS: [&str; 7] = [
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL_STS",
    "AZURE_AUTHORITY_HOST",
    "AWS_EC2_METADATA_DISABLED",
];

/// The variables that name files.
const FILES: [&str; 8] = [
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
];

/// The variables that are credentials.
const CREDENTIALS: [&str; 12] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "HF_TOKEN",
];

/// Returns true if a job brings credentials of its own, or names a file of them.
pub(crate) fn has_credentials(options: &Options) -> bool {
    CREDENTIALS.iter().chain(&FILES).any(|name| options.get(name).is_some())
}

impl Rule {
    /// A rule that lets URLs be used that start with `matches`, or match it as a pattern, and says
    /// nothing else of them.
    ///
    /// # Errors
    /// `Invalid` for a pattern that is none, or matches nothing.
    pub fn new(matches: &str) -> Result<Self> {
        Ok(Self {
            matches: Matches::new(matches)?,
            endpoint: None,
            region: None,
            profile: None,
            limits: RateLimits::default(),
            ca_bundle: None,
            proxy: None,
            virtual_host: None,
            request_payer: None,
            anonymous: None,
            redirects: Vec::new(),
        })
    }

    /// Refuses what contradicts itself.
    fn check(&self) -> Result<()> {
        if let Some(endpoint) = &self.endpoint {
            network::endpoint(endpoint).map_err(|error| {
                invalid(&format!("`endpoint` is invalid: {}", error.message()))
                    .advise("write it like \"http://store.example:9000\"")
            })?;
        }
        if self.profile.is_some() && self.anonymous == Some(true) {
            return Err(invalid("`profile` and `anonymous` exclude each other"));
        }
        for text in &self.redirects {
            let lead = Matches::new(text).map_err(|error| {
                invalid(&format!("`redirects` is invalid: {}", error.message()))
            })?;
            if !matches!(lead.scheme(), Some("http" | "https")) {
                return Err(invalid("`redirects` names what is no web address")
                    .at("redirect", text)
                    .advise("write it like \"https://cdn.example/\""));
            }
        }
        if self.limits.connections == Some(0) {
            return Err(invalid("`connections` must be at least 1"));
        }
        let scheme = self.matches.scheme();
        let speaks_s3 = scheme.is_none_or(|scheme| scheme == "s3");
        let aws_only = [
            ("region", self.region.is_some()),
            ("profile", self.profile.is_some()),
            ("virtual_host", self.virtual_host.is_some()),
            ("request_payer", self.request_payer.is_some()),
        ];
        if let Some((key, _)) = aws_only.iter().find(|(_, said)| *said && !speaks_s3) {
            return Err(invalid(&format!("`{key}` applies to s3:// only")));
        }
        let remote = self.endpoint.is_some() || self.proxy.is_some() || self.ca_bundle.is_some();
        if remote && scheme == Some("file") {
            return Err(invalid("`endpoint`, `proxy` and `ca_bundle` do not apply to paths"));
        }
        self.network().check()
    }

    pub(crate) fn network(&self) -> Network {
        let mut redirects = self.redirects.clone();
        if self.matches.scheme() == Some("hf") && self.endpoint.is_none() {
            redirects.extend(HUB_HOSTS.map(str::to_owned));
        }
        Network { proxy: self.proxy.clone(), ca_bundle: self.ca_bundle.clone(), redirects }
    }

    /// Returns true if the rule says whose credentials count, and a job's do not.
    pub(crate) fn takes_no_credentials(&self) -> bool {
        self.profile.is_some() || self.anonymous == Some(true)
    }

    /// A client's options with what the rule says on top, and without what a client may not choose.
    pub(crate) fn over(&self, options: &Options, scheme: Scheme) -> Result<Options> {
        let Some(family) = scheme.family() else { return Ok(Options::default()) };
        let mut options = options.of(family);
        let chosen = ENDPOINTS[..6].iter().find(|name| options.get(name).is_some());
        if let (Some(name), None) = (chosen, &self.endpoint) {
            let what = "a job may not set this daemon's endpoint";
            return Err(Error::new(ErrorKind::PermissionDenied, what)
                .at("variable", name)
                .at("match", self.matches.text())
                .advise("unset the variable, or have `endpoint` added to the [[source]]"));
        }
        let takes = self.takes_no_credentials();
        let given =
            CREDENTIALS.iter().any(|name| options.get(name).is_some() && !name.contains("ROLE"));
        let file = FILES.iter().find(|name| options.get(name).is_some());
        if let (false, false, Some(name)) = (takes, given, file) {
            let what = "this daemon does not open credentials files named by jobs";
            return Err(Error::new(ErrorKind::PermissionDenied, what)
                .at("variable", name)
                .at("match", self.matches.text())
                .advise("ask an admin to add `profile` to the [[source]], or export the keys"));
        }
        for name in ENDPOINTS.iter().chain(&LENDERS).chain(&FILES) {
            options = options.without(name);
        }
        if takes {
            options = CREDENTIALS.iter().fold(options, |options, name| options.without(name));
        }
        Ok(self
            .said(family)
            .into_iter()
            .fold(options, |options, (name, value)| options.without(name).with(name, value)))
    }

    /// The options without what could still mean another store: a data set that others may read is
    /// that of one store, which this rule has to name.
    pub(crate) fn pinned(&self, options: Options, scheme: Scheme, host: &str) -> Result<Options> {
        let key = match scheme {
            _ if self.endpoint.is_some() => None,
            Scheme::S3 => self.region.is_none().then_some("region"),
            Scheme::Azure => (!host.contains('@')).then_some("endpoint"),
            Scheme::Google | Scheme::Hub | Scheme::Http => None,
        };
        if let Some(key) = key {
            let what = "the [[source]] does not name the store, and another user may not choose it";
            return Err(Error::new(ErrorKind::PermissionDenied, what)
                .at("match", self.matches.text())
                .at("key", key)
                .advise(format!("ask an admin to add `{key}` to it")));
        }
        match self.virtual_host {
            // Requests go to a host of another name.
            None => Ok(options.without("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")),
            Some(_) => Ok(options),
        }
    }

    /// Returns the rule's settings as variables.
    fn said(&self, family: Family) -> Vec<(&'static str, &str)> {
        let word = |on: bool| if on { "true" } else { "" };
        let (endpoint, anonymous) = match family {
            Family::Aws => ("AWS_ENDPOINT_URL", "AWS_SKIP_SIGNATURE"),
            Family::Google => ("GOOGLE_BASE_URL", "GOOGLE_SKIP_SIGNATURE"),
            Family::Azure => ("AZURE_STORAGE_ENDPOINT", "AZURE_SKIP_SIGNATURE"),
            // Without its token it is anonymous.
            Family::HuggingFace => ("HF_ENDPOINT", ""),
        };
        let mut said = Vec::new();
        said.extend(self.endpoint.as_deref().map(|url| (endpoint, url)));
        let signs = family != Family::HuggingFace;
        said.extend(self.anonymous.filter(|_| signs).map(|on| (anonymous, word(on))));
        if family == Family::Aws {
            said.extend(self.region.as_deref().map(|region| ("AWS_REGION", region)));
            let virtual_host = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST";
            said.extend(self.virtual_host.map(|on| (virtual_host, word(on))));
            let payer = if self.request_payer == Some(true) { "requester" } else { "" };
            said.extend(self.request_payer.map(|_| ("AWS_REQUEST_PAYER", payer)));
        }
        said
    }
}

/// Every rule, in order. None at all: everything may be used, as whoever asks says; but what only
/// this machine reaches, a node that has an administrator reaches by a rule alone.
#[derive(Clone, Default)]
pub struct Rules {
    list: Vec<Rule>,
    /// True if there is an administrator, with many rules or none.
    guarded: bool,
}

impl Rules {
    /// An administrator's rules, in order.
    ///
    /// # Errors
    /// `Invalid` naming the rule that contradicts itself, or can never match.
    pub fn new(rules: Vec<Rule>) -> Result<Self> {
        let mut list = Self::none();
        for rule in rules {
            list.add(rule)?;
        }
        Ok(list)
    }

    /// An administrator's rules before the first of them.
    #[must_use]
    pub fn none() -> Self {
        Self { list: Vec::new(), guarded: true }
    }

    /// Returns pattern and endpoint of each rule, in order: where shards come from, and by whose
    /// name nodes know them.
    pub fn places(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.list.iter().map(|rule| (rule.matches.text(), rule.endpoint.as_deref()))
    }

    /// Adds the rule that comes next.
    ///
    /// # Errors
    /// As [`Rules::new`]; the rules are then what they were.
    pub fn add(&mut self, rule: Rule) -> Result<()> {
        let named = |error: Error| error.at("match", rule.matches.text());
        rule.check().map_err(named)?;
        if let Some(before) = self.list.iter().find(|before| before.matches.covers(&rule.matches)) {
            return Err(named(invalid("this source can never match"))
                .at("shadowed_by", before.matches.text())
                .advise("put the narrower one first: the first match counts"));
        }
        self.list.push(rule);
        Ok(())
    }

    /// Limits that are others by `new`: those of sources that have the same `match`, where no other
    /// source keeps them.
    pub(crate) fn relimited(&self, new: &Self) -> Vec<(RateLimits, RateLimits)> {
        let changed = self.list.iter().filter_map(|rule| {
            let text = rule.matches.text();
            let after = new.list.iter().find(|after| after.matches.text() == text)?;
            let kept = new.list.iter().any(|other| other.limits == rule.limits);
            (!kept).then_some((rule.limits, after.limits))
        });
        changed.collect()
    }

    /// Returns the gate for connections.
    pub(crate) fn gate(&self) -> Gate {
        if !self.guarded {
            return Gate::default();
        }
        let endpoint = |rule: &Rule| rule.endpoint.as_deref().and_then(|url| Url::parse(url).ok());
        let server = |text: &String| Matches::new(text).ok()?.server();
        let named = self.list.iter().flat_map(|rule| {
            let redirects = rule.redirects.iter().filter_map(server);
            endpoint(rule).into_iter().chain(rule.matches.server()).chain(redirects)
        });
        let gate = Gate::but(&named.collect::<Vec<_>>());
        if self.list.is_empty() {
            return gate;
        }
        let is_web =
            |rule: &&Rule| rule.matches.scheme().is_none_or(|scheme| scheme.starts_with("http"));
        let leads = self.list.iter().filter(is_web).map(|rule| rule.matches.clone()).collect();
        let stores: Vec<_> = self.list.iter().filter_map(endpoint).collect();
        gate.led(those(leads), stores.iter())
    }

    /// The rule for `url` and its number; none where there are no rules at all.
    pub(crate) fn of(&self, url: &str) -> Result<Option<(usize, &Rule)>> {
        if self.list.is_empty() {
            return Ok(None);
        }
        let plain = pattern::plain(url)?;
        let is_private = Url::parse(&plain).is_ok_and(|url| host::is_private(&url));
        let mut held_back = false;
        for (number, rule) in
            self.list.iter().enumerate().filter(|(_, rule)| rule.matches.has(&plain))
        {
            // Redirected, its own host is not asked.
            if !is_private || rule.endpoint.is_some() || rule.matches.names_host_of(&plain) {
                return Ok(Some((number, rule)));
            }
            held_back = true;
        }
        let what = match held_back {
            true => "this daemon reads from its own machine only through a [[source]]",
            false => "no [[source]] of this daemon's configuration permits this read",
        };
        let advice =
            format!("ask an admin to add: [[source]] match = \"{}\"", pattern::root(&plain));
        Err(Error::new(ErrorKind::PermissionDenied, what).at("url", url).advise(advice))
    }

    /// The same for a URL that may be a folder's: a rule of all that lies below it is its rule.
    pub(crate) fn of_folder(&self, url: &str) -> Result<Option<(usize, &Rule)>> {
        let below = format!("{}/", url.strip_suffix('/').unwrap_or(url));
        self.of(&below).or_else(|_| self.of(url))
    }
}

/// Returns the targets of redirects that these texts of rules name; they were checked before.
pub(crate) fn leads(texts: &[String]) -> Leads {
    those(texts.iter().filter_map(|text| Matches::new(text).ok()).collect())
}

/// Targets of redirects that one of these matches.
fn those(matches: Vec<Matches>) -> Leads {
    Leads::new(move |url| {
        let plain = pattern::plain(url.as_str());
        plain.is_ok_and(|plain| matches.iter().any(|matches| matches.has(&plain)))
    })
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(patterns: &[&str]) -> Result<Rules> {
        Rules::new(patterns.iter().map(|text| Rule::new(text)).collect::<Result<_>>()?)
    }

    fn which(rules: &Rules, url: &str) -> Option<usize> {
        rules.of(url).ok().map(|found| found.unwrap().0)
    }

    #[test]
    fn first_matching_rule_applies_and_no_match_is_denied() {
        let rules = rules(&["s3://a/x/", "s3://a", "https://h/**/*.tar", "/data/"]).unwrap();
        for (url, rule) in [
            ("s3://a/x/0.tar", Some(0)),
            ("s3://a/y/0.tar", Some(1)),
            ("s3://a-private/0.tar", None),
            ("https://h/d/e/0.tar?sig=s", Some(2)),
            ("https://h/d/e/0.zip", None),
            ("https://H:443/d/e/0.tar", Some(2)),
            ("https://h@evil.org/d/0.tar", None),
            ("https://h.evil.org/d/0.tar", None),
            ("/data/0.tar", Some(3)),
            ("file:///data/0.tar", Some(3)),
            ("/data/../etc/passwd", None),
            ("/database/0.tar", None),
        ] {
            assert_eq!(which(&rules, url), rule, "{url}");
        }
        let error = rules.of("s3://b/k.tar").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("[[source]] match = \"s3://b/\""), "{error}");
        assert!(Rules::default().of("s3://b/k.tar").unwrap().is_none());
    }

    #[test]
    fn path_traversal_matches_no_rule() {
        let rules = rules(&["http://h/open/"]).unwrap();
        for url in
            ["http://h/open/../secret", "http://h/open/%2e%2e/secret", "http://h\\open\\..\\x"]
        {
            assert_eq!(which(&rules, url), None, "{url}");
        }
    }

    #[test]
    fn local_addresses_need_an_explicit_rule() {
        let wide = rules(&["http://**"]).unwrap();
        for host in [
            "127.0.0.1",
            "127.1",
            "0x7f000001",
            "2130706433",
            "[::1]",
            "localhost",
            "a.localhost",
            "169.254.169.254",
            "[fe80::1]",
            "[::ffff:169.254.169.254]",
            "[fd00:ec2::254]",
            "0.0.0.0",
            "metadata.google.internal",
            "LOCALHOST.",
            "[::]",
        ] {
            let url = format!("http://{host}/latest/meta-data");
            let error = wide.of(&url).err().unwrap_or_else(|| panic!("{host} may be asked"));
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        }
        assert_eq!(which(&wide, "http://example.org/x"), Some(0));
        let named = rules(&["http://127.0.0.1:9000/**", "http://localhost/"]).unwrap();
        assert_eq!(which(&named, "http://127.0.0.1:9000/b/k"), Some(0));
        assert_eq!(which(&named, "http://127.0.0.1:9001/b/k"), None);
        assert_eq!(which(&named, "http://localhost/b/k"), Some(1));
    }

    #[test]
    fn gate_opens_only_for_addresses_spelt_out_in_rules() {
        let mut store = Rule::new("s3://a/").unwrap();
        store.endpoint = Some("http://127.0.0.1:9000".into());
        let texts = ["http://127.0.0.1:80*/**", "http://localhost:8000/x/*.tar", "http://**"];
        let others = texts.map(|text| Rule::new(text).unwrap());
        let rules = Rules::new(std::iter::once(store).chain(others).collect()).unwrap();
        let passes =
            |rules: &Rules, url: &str| rules.gate().check(&Url::parse(url).unwrap()).is_ok();
        assert!(passes(&rules, "http://127.0.0.1:9000/a/k"));
        assert!(passes(&rules, "http://localhost:8000/y"));
        for other in ["http://127.0.0.1:80/", "http://127.0.0.1:8000/", "http://169.254.169.254/"] {
            assert!(!passes(&rules, other), "{other}");
            assert!(!passes(&Rules::new(Vec::new()).unwrap(), other), "{other}");
            assert!(passes(&Rules::default(), other), "{other}");
        }
    }

    #[test]
    fn invalid_rules_are_rejected() {
        for (patterns, word) in [
            (&["s3://a/", "s3://a/x/"][..], "never match"),
            (&["s3://a", "s3://a/x/*.tar"], "never match"),
            (&["s3://a/**", "s3://a/x/"], "never match"),
            (&["**", "s3://a/"], "never match"),
            (&["s3://a/*.tar", "s3://a/*.tar"], "never match"),
            (&["s3://[a"], "not a pattern"),
            (&[""], "empty"),
            (&["bucket/"], "names no source"),
        ] {
            let error = rules(patterns).err().unwrap_or_else(|| panic!("{patterns:?}"));
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(rules(&["s3://a/x/", "s3://a-b/", "s3://a/"]).is_ok());
        let with = |pattern: &str, change: fn(&mut Rule)| {
            let mut rule = Rule::new(pattern).unwrap();
            change(&mut rule);
            Rules::new(vec![rule]).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let endpoint = |rule: &mut Rule| rule.endpoint = Some("ftp://x".into());
        assert!(with("s3://a/", endpoint).contains("http"));
        assert!(with("gs://a/", |rule| rule.profile = Some("p".into())).contains("s3://"));
        assert!(with("/data/", |rule| rule.proxy = Some("http://p".into())).contains("paths"));
        assert!(with("s3://a/", |rule| rule.limits.connections = Some(0)).contains("at least 1"));
        let both =
            |rule: &mut Rule| (rule.profile, rule.anonymous) = (Some("p".into()), Some(true));
        assert!(with("s3://a/", both).contains("exclude"));
        let missing = |rule: &mut Rule| rule.ca_bundle = Some("/nowhere.pem".into());
        assert!(with("s3://a/", missing).contains("ca_bundle"));
    }

    #[test]
    fn rule_overrides_client_options() {
        let mut rule = Rule::new("s3://a/").unwrap();
        (rule.endpoint, rule.region) = (Some("http://store:9000".into()), Some("r".into()));
        rule.virtual_host = Some(false);
        let client = Options::default()
            .with("AWS_ENDPOINT_URL", "http://169.254.169.254")
            .with("AWS_ENDPOINT_URL_S3", "http://169.254.169.254")
            .with("AWS_ENDPOINT_URL_STS", "http://169.254.169.254")
            .with("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.169.254")
            .with("AWS_PROFILE", "admin")
            .with("AWS_REGION", "elsewhere")
            .with("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
            .with("AWS_ACCESS_KEY_ID", "AK")
            .with("AWS_SECRET_ACCESS_KEY", "SK");
        let ruled = rule.over(&client, Scheme::S3).unwrap();
        let map = ruled.clone().into_map();
        assert!(
            map.values().all(|value| !value.contains("169.254") && value != "admin"),
            "{map:?}"
        );
        assert_eq!(ruled.get("AWS_ENDPOINT_URL"), Some("http://store:9000"));
        assert_eq!(ruled.get("AWS_REGION"), Some("r"));
        assert_eq!(ruled.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"), None);
        assert_eq!(ruled.get("AWS_ACCESS_KEY_ID"), Some("AK"));
        rule.profile = Some("p".into());
        assert_eq!(rule.over(&client, Scheme::S3).unwrap().get("AWS_ACCESS_KEY_ID"), None);
    }

    #[test]
    fn shared_data_set_needs_a_rule_naming_its_store() {
        let rule = |text: &str, change: fn(&mut Rule)| {
            let mut rule = Rule::new(text).unwrap();
            change(&mut rule);
            rule
        };
        let client = || Options::default().with("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true");
        let is_pinned = |rule: &Rule, scheme, host| {
            let pinned = rule.pinned(client(), scheme, host);
            if let Ok(options) = &pinned {
                let chosen = options.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST");
                assert_eq!(chosen.is_some(), rule.virtual_host.is_some());
            }
            pinned.is_ok()
        };
        let endpoint = |rule: &mut Rule| rule.endpoint = Some("http://store:9000".into());
        let region = |rule: &mut Rule| rule.region = Some("eu-west-1".into());
        let named =
            |rule: &mut Rule| (rule.region, rule.virtual_host) = (Some("r".into()), Some(true));
        for (rule, scheme, host, pinned) in [
            (rule("s3://a/", |_| ()), Scheme::S3, "a", false),
            (rule("s3://a/", region), Scheme::S3, "a", true),
            (rule("s3://a/", named), Scheme::S3, "a", true),
            (rule("s3://a/", endpoint), Scheme::S3, "a", true),
            (rule("az://a/", |_| ()), Scheme::Azure, "a", false),
            (rule("az://a/", endpoint), Scheme::Azure, "a", true),
            (rule("**", |_| ()), Scheme::Azure, "a@b.dfs.core.windows.net", true),
            (rule("gs://a/", |_| ()), Scheme::Google, "a", true),
            (rule("https://h/", |_| ()), Scheme::Http, "h", true),
        ] {
            assert_eq!(is_pinned(&rule, scheme, host), pinned, "{}", rule.matches.text());
        }
    }

    #[test]
    fn client_may_choose_neither_endpoints_nor_files() {
        let rule = Rule::new("**").unwrap();
        for (scheme, name) in [
            (Scheme::S3, "AWS_ENDPOINT_URL"),
            (Scheme::S3, "AWS_ENDPOINT_URL_S3"),
            (Scheme::S3, "AWS_WEB_IDENTITY_TOKEN_FILE"),
            (Scheme::S3, "AWS_PROFILE"),
            (Scheme::Google, "STORAGE_EMULATOR_HOST"),
            (Scheme::Google, "GOOGLE_APPLICATION_CREDENTIALS"),
            (Scheme::Azure, "AZURE_STORAGE_ENDPOINT"),
            (Scheme::Azure, "AZURE_STORAGE_USE_EMULATOR"),
            (Scheme::Azure, "AZURE_FEDERATED_TOKEN_FILE"),
            (Scheme::Hub, "HF_ENDPOINT"),
        ] {
            let error = rule.over(&Options::default().with(name, "x"), scheme).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}");
        }
    }
}
