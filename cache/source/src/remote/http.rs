//! Shards on a web server.
//!
//! Its rule: the URL is used as it was given, with its escapes and its query: signed links work.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;
use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path;
use url::Url;

use super::refusal::Refusals;
use super::{Object, Wire};
use crate::{Source, Stat};

/// One web server.
pub(crate) struct Http {
    wire: Arc<Wire>,
    refusals: Refusals,
}

impl Http {
    /// The server that `url` lies on.
    pub(crate) fn new(url: &str, wire: &Arc<Wire>) -> Result<Self> {
        let endpoint = endpoint(url)?;
        let access_advice = "check the link's signature and date, or the server's access rules";
        let refusals = Refusals { endpoint, access_advice: access_advice.to_owned() };
        Ok(Self { wire: Arc::clone(wire), refusals })
    }

    /// A store that holds the one object behind `url`; it shares the wire's connections.
    fn store(&self, url: &str) -> Result<HttpStore> {
        if endpoint(url)? != self.refusals.endpoint {
            let error = Error::new(ErrorKind::Invalid, "the shard lies on another server");
            return Err(error.at("url", url).at("endpoint", &self.refusals.endpoint));
        }
        HttpBuilder::new()
            .with_url(url)
            .with_http_connector(self.wire.connector())
            .with_retry(self.wire.retry())
            .build()
            .map_err(|_| invalid("a URL cannot be used").at("url", url))
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
}

/// Scheme, host and port of a URL.
pub(super) fn endpoint(url: &str) -> Result<String> {
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
