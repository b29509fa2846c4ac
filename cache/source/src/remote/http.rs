//! Shards on a web server.
//!
//! The URL is used as it was given, with its escapes and its query: signed links work.

use std::borrow::Cow;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use object_store::ObjectStore;
use object_store::client::{HttpClient, HttpService};
use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path;
use url::Url;

use super::refusal::Refusals;
use super::wire::Shared;
use super::{Route, Store, StoreClient};
use crate::network::endpoint;

/// One web server.
pub(crate) struct Http {
    /// Scheme, host and port that its URLs have.
    origin: String,
    connector: Shared,
    route: Route,
}

impl Http {
    /// The server that `url` lies on; asked is `instead`, where that is given.
    pub(crate) fn new(
        url: &str,
        instead: Option<&str>,
        store_client: &StoreClient<'_>,
    ) -> Result<Self> {
        let origin = endpoint(url)?;
        let endpoint = instead.map_or_else(|| origin.clone(), |to| to.trim_end_matches('/').into());
        let access_advice = "check the link's signature and date, or the server's access rules";
        let access_advice = access_advice.to_owned();
        let refusals = Refusals { endpoint, access_advice, ..Refusals::default() };
        let (connector, route) = (store_client.connector()?, Route::new(store_client, refusals));
        Ok(Self { origin, connector, route })
    }

    /// The same, with other advice where access is denied.
    pub(super) fn advising(mut self, advice: &str) -> Self {
        advice.clone_into(&mut self.route.refusals.access_advice);
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

    /// Returns the client for its requests.
    pub(super) fn client(&self) -> &HttpClient {
        self.connector.client()
    }

    /// A store that holds the one object behind `url`; it shares the wire's connections.
    fn store(&self, url: &str) -> Result<HttpStore> {
        if endpoint(url)? != self.origin {
            let error = Error::new(ErrorKind::Invalid, "the shard lies on another server");
            return Err(error.at("url", url).at("endpoint", &self.origin));
        }
        let asked = match self.origin == self.route.refusals.endpoint {
            true => Cow::Borrowed(url),
            false => Cow::Owned(self.redirected(url)?),
        };
        HttpBuilder::new()
            .with_url(asked)
            .with_http_connector(self.connector.clone())
            .with_retry(self.route.wire.without_retries())
            .build()
            .map_err(|_| invalid("unsupported URL").at("url", url))
    }

    /// The same path and query, below the endpoint.
    fn redirected(&self, url: &str) -> Result<String> {
        let parsed = Url::parse(url).map_err(|_| invalid("unsupported URL").at("url", url))?;
        let query = parsed.query().map(|query| format!("?{query}")).unwrap_or_default();
        Ok(format!("{}{}{query}", self.route.refusals.endpoint, parsed.path()))
    }
}

impl Store for Http {
    fn locate(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path)> {
        Ok((Arc::new(self.store(url)?), Path::default()))
    }

    fn route(&self) -> &Route {
        &self.route
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
