//! The way to a store: whose options, which network, which limits.
//!
//! Connections are shared by all who go the same way, and how many ways are remembered is
//! bounded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_error::{Doing, Error, ErrorKind, Result};
use reqwest::{Certificate, ClientBuilder, Proxy};

use super::Wire;
use super::wire::Shared;
use crate::Options;
use crate::credentials::Lending;
use crate::rules::RateLimits;

/// The variable that names certificates for every connection, as Amazon's tools read it.
const CA_BUNDLE: &str = "AWS_CA_BUNDLE";

/// The variables that name proxies.
const PROXIES: [&str; 6] =
    ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Network path to a store. Default: the system's certificates, and the proxies of this process's
/// environment.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Network {
    /// Requests go by it.
    pub(crate) proxy: Option<String>,
    /// Certificates to trust beside the system's.
    pub(crate) ca_bundle: Option<PathBuf>,
}

impl Network {
    /// As this process's environment says.
    pub(super) fn of_process() -> Self {
        let bundle = std::env::var_os(CA_BUNDLE).filter(|path| !path.is_empty());
        Self { proxy: None, ca_bundle: bundle.map(PathBuf::from) }
    }

    /// Refuses what no client can be made of.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(proxy) = &self.proxy {
            let parsed = url::Url::parse(proxy).ok();
            let fits = |url: &url::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
            if !parsed.as_ref().is_some_and(fits) {
                let error = Error::new(ErrorKind::Invalid, "`proxy` is not a proxy's URL");
                return Err(error.advise("write it like \"http://proxy.example:3128\""));
            }
        }
        // A missing file is a configuration error, too.
        let wrong = |error: Error| {
            let path = self.ca_bundle.as_deref().unwrap_or(Path::new(""));
            Error::new(ErrorKind::Invalid, error.message()).at("ca_bundle", path.display())
        };
        self.over(ClientBuilder::new()).map(drop).map_err(wrong)
    }

    /// A client that goes this way.
    pub(super) fn over(&self, mut client: ClientBuilder) -> Result<ClientBuilder> {
        let mut certificates = Vec::new();
        if let Some(path) = &self.ca_bundle {
            let at = |error: Error| error.at("ca_bundle", path.display());
            let pem = std::fs::read(path).doing("read the certificates").map_err(at)?;
            certificates = Certificate::from_pem_bundle(&pem).unwrap_or_default();
            if certificates.is_empty() {
                let error = Error::new(ErrorKind::Invalid, "the file holds no certificates in PEM");
                return Err(at(error));
            }
        }
        client = client.tls_certs_merge(certificates);
        let Some(proxy) = &self.proxy else { return Ok(client) };
        let proxy = Proxy::all(proxy);
        // The URL may contain a password.
        let proxy = proxy.map_err(|_| Error::new(ErrorKind::Invalid, "`proxy` is invalid"))?;
        Ok(client.proxy(proxy))
    }

    /// The hosts of the proxies that requests may go by.
    pub(super) fn proxies(&self) -> impl Iterator<Item = String> {
        let variables = match self.proxy {
            Some(_) => &[][..],
            None => &PROXIES[..],
        };
        let set = variables.iter().filter_map(|name| std::env::var(name).ok());
        let host = |text: String| {
            let url = if text.contains("://") { text } else { format!("http://{text}") };
            url::Url::parse(&url).ok()?.host_str().map(str::to_owned)
        };
        set.chain(self.proxy.clone()).filter_map(host)
    }
}

/// Arguments to open a store.
pub(crate) struct StoreClient<'a> {
    /// Prefix of its URLs, such as `s3://bucket`.
    pub(crate) root: &'a str,
    /// Options of the client, with the rule's on top.
    pub(crate) options: &'a Options,
    /// The profile whose credentials it is to be, by the rule.
    pub(crate) profile: Option<&'a str>,
    /// Lender of credentials.
    pub(crate) lending: &'a Lending,
    pub(crate) wire: &'a Arc<Wire>,
    pub(crate) network: &'a Network,
    pub(crate) limits: RateLimits,
}

impl StoreClient<'_> {
    /// The HTTP client for this way.
    pub(super) fn connector(&self) -> Result<Shared> {
        self.wire.connector_by(self.network)
    }
}
