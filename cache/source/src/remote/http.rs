//! Shards on a web server.
//!
//! Its rule: the URL is used as it was given, with its escapes and its query: signed links work.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;
use object_store::client::{HttpClient, HttpService};
use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path;
use url::Url;

use super::refusal::Refusals;
use super::wire::Shared;
use super::{Object, Reach, Wire};
use crate::rules::RateLimits;
use crate::{Source, Stat};

/// One web server.
pub(crate) struct Http {
    /// Scheme, host and port that its URLs have.
    origin: String,
    wire: Arc<Wire>,
    connector: Shared,
    refusals: Refusals,
    limits: RateLimits,
}

impl Http {
    /// The server that `url` lies on; asked is `instead`, where that is given.
    pub(crate) fn new(url: &str, instead: Option<&str>, reach: &Reach<'_>) -> Result<Self> {
        let origin = endpoint(url)?;
        let endpoint = instead.map_or_else(|| origin.clone(), |to| to.trim_end_matches('/').into());
        let access_advice = "check the link's signature and date, or the server's access rules";
        let access_advice = access_advice.to_owned();
        let refusals = Refusals { endpoint, access_advice, identity: None };
        let (wire, connector) = (Arc::clone(reach.wire), reach.connector()?);
        Ok(Self { origin, wire, connector, refusals, limits: reach.limits })
    }

    /// The same, with other advice where access is denied.
    pub(super) fn advising(mut self, advice: &str) -> Self {
        advice.clone_into(&mut self.refusals.access_advice);
        self
    }

    /// The same, with requests that go through what `wrap` makes of the client.
    pub(super) fn by<S: HttpService + 'static>(
        mut self,
        wrap: impl FnOnce(HttpClient) -> S,
    ) -> Self {
        self.connector = self.connector.wrapped(wrap);
        self
    }

    /// A store that holds the one object behind `url`; it shares the wire's connections.
    fn store(&self, url: &str) -> Result<HttpStore> {
        if endpoint(url)? != self.origin {
            let error = Error::new(ErrorKind::Invalid, "the shard lies on another server");
            return Err(error.at("url", url).at("endpoint", &self.origin));
        }
        let asked = match self.origin == self.refusals.endpoint {
            true => Cow::Borrowed(url),
            false => Cow::Owned(self.redirected(url)?),
        };
        HttpBuilder::new()
            .with_url(asked)
            .with_http_connector(self.connector.clone())
            .with_retry(self.wire.retry())
            .build()
            .map_err(|_| invalid("a URL cannot be used").at("url", url))
    }

    /// The same path and query, below the endpoint.
    fn redirected(&self, url: &str) -> Result<String> {
        let parsed = Url::parse(url).map_err(|_| invalid("a URL cannot be used").at("url", url))?;
        let query = parsed.query().map(|query| format!("?{query}")).unwrap_or_default();
        Ok(format!("{}{}{query}", self.refusals.endpoint, parsed.path()))
    }

    fn object<'a>(&'a self, url: &'a str, store: &'a HttpStore, location: &'a Path) -> Object<'a> {
        Object { url, store, location, wire: &self.wire, refusals: &self.refusals }
    }
}

#[async_trait]
impl Source for Http {
    async fn stat(&self, url: &str) -> Result<Stat> {
        let (store, location) = (self.store(url)?, Path::default());
        self.object(url, &store, &location).stat().await
    }

    async fn read_part(&self, url: &str, stat: &Stat, offset: u64, into: Span) -> Result<Span> {
        let (store, location) = (self.store(url)?, Path::default());
        self.object(url, &store, &location).read_part(stat, offset, into).await
    }

    fn endpoint(&self) -> &str {
        &self.refusals.endpoint
    }

    fn rate_limits(&self) -> RateLimits {
        self.limits
    }
}

/// Scheme, host and port of a URL.
pub(crate) fn endpoint(url: &str) -> Result<String> {
    let parsed = Url::parse(url)
        .map_err(|error| invalid(&format!("a URL cannot be understood: {error}")).at("url", url))?;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(invalid("a URL may not hold a user name or password").at("url", url));
    }
    match parsed.scheme() {
        "http" | "https" if parsed.has_host() => Ok(parsed.origin().ascii_serialization()),
        _ => Err(invalid("a URL must start with http:// or https://").at("url", url)),
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
