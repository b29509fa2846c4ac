//! The network between this process and an origin: certificates, proxies, permitted addresses.
//!
//! Nothing here knows a store or a rule; both use it.

mod authorities;
pub(crate) mod gate;
pub(crate) mod host;

use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use reqwest::{Certificate, ClientBuilder, Proxy};
use url::Url;

pub use authorities::system_authorities;
pub(crate) use gate::{Gate, Leads};

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
    /// Addresses that redirects may lead to, beside those that a rule matches.
    pub(crate) redirects: Vec<String>,
}

impl Network {
    /// As this process's environment says.
    pub(crate) fn of_process() -> Self {
        let bundle = std::env::var_os(CA_BUNDLE).filter(|path| !path.is_empty());
        Self { ca_bundle: bundle.map(PathBuf::from), ..Self::default() }
    }

    /// Refuses what no client can be made of.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(proxy) = &self.proxy {
            let parsed = Url::parse(proxy).ok();
            let fits = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
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
    pub(crate) fn over(&self, mut client: ClientBuilder) -> Result<ClientBuilder> {
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

    /// The proxy that requests to `endpoint` go by, as it may be shown, and the setting that names
    /// it.
    pub(crate) fn proxy_of(&self, endpoint: &str) -> Option<(String, String)> {
        let host = |proxy: &str| {
            let url = if proxy.contains("://") { proxy } else { &format!("http://{proxy}") };
            Some(Url::parse(url).ok()?.origin().ascii_serialization())
        };
        if let Some(proxy) = &self.proxy {
            return Some((host(proxy)?, "proxy".to_owned()));
        }
        let matcher = hyper_util::client::proxy::matcher::Matcher::from_env();
        let by = host(&matcher.intercept(&endpoint.parse().ok()?)?.uri().to_string())?;
        let is_it = |name: &&&str| {
            let value = std::env::var(name).ok();
            value.and_then(|value| host(&value)).is_some_and(|named| named == by)
        };
        // The more specific ones stand first among those that apply to the scheme.
        let scheme = endpoint.split_once("://").map_or("", |(scheme, _)| scheme);
        let applies = |name: &&&str| {
            let name = name.to_ascii_lowercase();
            name == format!("{scheme}_proxy") || name == "all_proxy"
        };
        let variable = PROXIES.iter().filter(applies).find(is_it);
        Some((by, variable.map_or_else(String::new, |name| (*name).to_owned())))
    }

    /// The hosts of the proxies that requests may go by.
    pub(crate) fn proxies(&self) -> impl Iterator<Item = String> {
        let variables = match self.proxy {
            Some(_) => &[][..],
            None => &PROXIES[..],
        };
        let set = variables.iter().filter_map(|name| std::env::var(name).ok());
        let host = |text: String| {
            let url = if text.contains("://") { text } else { format!("http://{text}") };
            Url::parse(&url).ok()?.host_str().map(str::to_owned)
        };
        set.chain(self.proxy.clone()).filter_map(host)
    }
}

/// Returns scheme, host and port of a web URL; rejects any other, and one with credentials.
pub(crate) fn endpoint(url: &str) -> Result<String> {
    let parsed = Url::parse(url)
        .map_err(|error| invalid(&format!("invalid URL: {error}")).at("url", url))?;
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
