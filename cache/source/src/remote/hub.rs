//! Data sets on the Hugging Face Hub: `hf://datasets/<org>/<name>[@revision]/path` over HTTPS.
//!
//! The token is for the Hub alone. What the Hub redirects to gets none.

mod tree;

use std::sync::Arc;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use object_store::client::{HttpClient, HttpError, HttpRequest, HttpResponse, HttpService};
use object_store::path::Path;
use object_store::{HeaderValue, ObjectStore};
use url::Url;

use super::{Http, Route, Store, StoreClient};
use crate::listing::Listing;

/// The Hub's own address.
const ENDPOINT: &str = "https://huggingface.co";

/// The revision where none is named.
const REVISION: &str = "main";

/// Prefix of data sets' URLs.
const ROOT: &str = "hf://datasets/";

/// The Hub as one client reaches it.
pub(crate) struct Hub {
    base: Url,
    http: Http,
}

impl Hub {
    /// The Hub that `reach` leads to.
    pub(crate) fn new(store_client: &StoreClient<'_>) -> Result<Self> {
        let endpoint = store_client.options.get("HF_ENDPOINT").unwrap_or(ENDPOINT);
        let http = Http::new(endpoint, None, store_client)?;
        let base = Url::parse(endpoint).map_err(|_| invalid("HF_ENDPOINT is invalid"))?;
        let http = match store_client.options.get("HF_TOKEN") {
            None => http.advising("set HF_TOKEN for a data set that is private or gated"),
            Some(token) => {
                let header = HeaderValue::try_from(format!("Bearer {token}"));
                let mut header = header.map_err(|_| invalid("HF_TOKEN is not a token"))?;
                header.set_sensitive(true);
                let advice = "HF_TOKEN is set: check that it may read the data set";
                http.advising(advice).by(|client| Bearer { client, to: base.clone(), header })
            }
        };
        Ok(Self { base, http })
    }

    /// Returns the Hub's address of the object that `url` names.
    fn resolved(&self, url: &str) -> Result<String> {
        let named = Named::of(url)?;
        if named.path.split('/').any(is_odd) {
            return Err(unclear(url));
        }
        let mut resolved = self.base.clone();
        resolved.path_segments_mut().map_err(|()| unclear(url))?.pop_if_empty().extend(
            ["datasets", named.org, named.name, "resolve", &named.revision()]
                .into_iter()
                .chain(named.path.split('/')),
        );
        Ok(resolved.into())
    }
}

/// Parts of a URL.
struct Named<'a> {
    org: &'a str,
    name: &'a str,
    revision: &'a str,
    path: &'a str,
}

impl<'a> Named<'a> {
    fn of(url: &'a str) -> Result<Self> {
        let mut parts = url.strip_prefix(ROOT).ok_or_else(|| unclear(url))?.splitn(3, '/');
        let (Some(org), Some(name), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(unclear(url));
        };
        let (name, revision) = name.split_once('@').unwrap_or((name, REVISION));
        let is_pattern = |name: &str| name.contains(['*', '?', '[']);
        if [org, name, revision].into_iter().any(|name| is_odd(name) || is_pattern(name)) {
            return Err(unclear(url));
        }
        Ok(Self { org, name, revision, path })
    }

    /// A revision with slashes is one name to the Hub, as in refs%2Fconvert%2Fparquet.
    fn revision(&self) -> String {
        self.revision.replace("%2F", "/")
    }
}

/// Returns true if a name would lead elsewhere, or nowhere.
fn is_odd(name: &str) -> bool {
    matches!(name, "" | "." | "..")
}

fn unclear(url: &str) -> Error {
    invalid("the URL names no file of a data set")
        .at("url", url)
        .advise("write hf://datasets/<org>/<name>/path, with @<revision> behind the name")
}

#[async_trait]
impl Store for Hub {
    fn locate(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path)> {
        self.http.locate(&self.resolved(url)?)
    }

    fn route(&self) -> &Route {
        self.http.route()
    }

    async fn list(&self, pattern: &str) -> Result<Listing> {
        self.matching(pattern).await
    }
}

/// Adds the token to requests to the Hub. The client beneath drops it where a redirect leads to
/// another host or port.
#[derive(Debug)]
struct Bearer {
    client: HttpClient,
    to: Url,
    header: HeaderValue,
}

#[async_trait]
impl HttpService for Bearer {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri();
        let same = uri.scheme_str() == Some(self.to.scheme())
            && uri.host() == self.to.host_str()
            && uri.port_u16() == self.to.port();
        if same {
            request.headers_mut().insert("authorization", self.header.clone());
        }
        self.client.execute(request).await
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
