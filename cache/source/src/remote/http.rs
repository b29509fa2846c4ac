//! Shards on a web server.
//!
//! Its rule: the URL is used as it was given, with its escapes and its query: signed links work.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use object_store::ObjectStore;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use url::Url;

use super::refusal::Refusals;
use super::{Reach, Store, Wire};

/// One web server.
pub(crate) struct Http {
    reach: Arc<Reach>,
}

impl Http {
    /// The server that `url` lies on.
    pub(crate) fn new(url: &str, wire: &Arc<Wire>) -> Result<Self> {
        let endpoint = endpoint(url)?;
        let access_advice = "check the link's signature and date, or the server's access rules";
        let access_advice = access_advice.to_owned();
        Ok(Self { reach: Reach::new(wire, Refusals { endpoint, access_advice }) })
    }
}

impl Store for Http {
    /// A store that holds the one object behind `url`; it shares the wire's connections.
    fn locate(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path)> {
        let Reach { wire, refusals, .. } = &*self.reach;
        if endpoint(url)? != refusals.endpoint {
            let error = Error::new(ErrorKind::Invalid, "the shard lies on another server");
            return Err(error.at("url", url).at("endpoint", &refusals.endpoint));
        }
        let store = HttpBuilder::new()
            .with_url(url)
            .with_http_connector(wire.connector())
            .with_retry(wire.retry())
            .build()
            .map_err(|_| invalid("a URL cannot be used").at("url", url))?;
        Ok((Arc::new(store), Path::default()))
    }

    fn reach(&self) -> &Arc<Reach> {
        &self.reach
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
