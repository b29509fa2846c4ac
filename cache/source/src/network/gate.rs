//! Addresses that connections may reach.
//!
//! Each connection's actual address is checked: a changed name and a redirect pass no more easily
//! than a URL. A node's daemon reaches addresses of its own machine or link only where an
//! administrator named them.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_error::{Error, ErrorKind, Result};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::{Action, Attempt, Policy};
use url::Url;

use super::host::{is_private, is_private_address};

/// Redirects that are followed, as browsers do.
const REDIRECTS: usize = 10;

/// Permitted addresses among those that only this machine or its link has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Option<Arc<Named>>);

/// Addresses named by an administrator.
#[derive(Debug, Default)]
struct Named {
    /// Hosts as URLs have them, and ports.
    endpoints: HashSet<(String, u16)>,
    /// Proxies, whatever their ports.
    proxies: HashSet<String>,
}

impl Gate {
    /// One that lets these endpoints through, and no other such address.
    pub(crate) fn but<'a>(endpoints: impl IntoIterator<Item = &'a Url>) -> Self {
        let endpoint = |url: &Url| Some((url.host_str()?.to_owned(), url.port_or_known_default()?));
        let endpoints = endpoints.into_iter().filter_map(endpoint).collect();
        Self(Some(Arc::new(Named { endpoints, proxies: HashSet::new() })))
    }

    /// The same, for requests that go by these proxies.
    pub(crate) fn by(&self, proxies: impl IntoIterator<Item = String>) -> Self {
        Self(self.0.as_ref().map(|named| {
            let proxies = proxies.into_iter().collect();
            Arc::new(Named { endpoints: named.endpoints.clone(), proxies })
        }))
    }

    /// Refuses a URL that spells out such an address.
    pub(crate) fn check(&self, url: &Url) -> Result<()> {
        let Some(named) = &self.0 else { return Ok(()) };
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
        let is_named = || port.is_some_and(|port| named.endpoints.contains(&(host.into(), port)));
        if !is_private(url) || is_named() { Ok(()) } else { Err(refused(host)) }
    }

    /// Returns the permitted addresses of a name.
    fn sift(&self, host: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>> {
        let Some(named) = &self.0 else { return Ok(found) };
        // The URL check covers a name that means this machine by itself.
        let is_named = named.proxies.contains(host)
            || is_own_name(host) && named.endpoints.iter().any(|(name, _)| name == host);
        if is_named || found.is_empty() {
            return Ok(found);
        }
        let passed: Vec<_> =
            found.into_iter().filter(|address| !is_private_address(address.ip())).collect();
        if passed.is_empty() { Err(refused(host)) } else { Ok(passed) }
    }

    /// Returns the policy for redirects.
    pub(crate) fn redirects(&self) -> Policy {
        let gate = self.clone();
        Policy::custom(move |attempt| gate.redirect(attempt))
    }

    fn redirect(&self, attempt: Attempt<'_>) -> Action {
        if attempt.previous().len() > REDIRECTS {
            return attempt.error("too many redirects");
        }
        match self.check(attempt.url()) {
            Ok(()) => attempt.follow(),
            Err(error) => attempt.error(error),
        }
    }
}

/// Returns true if a name means this machine wherever it is resolved.
fn is_own_name(host: &str) -> bool {
    Url::parse(&format!("http://{host}/")).is_ok_and(|url| is_private(&url))
}

fn refused(host: &str) -> Error {
    let what =
        "a node's daemon connects to its own machine and link only where a [[source]] names it";
    Error::new(ErrorKind::PermissionDenied, what).at("host", host).advise(
        "ask an admin to add the address to the daemon's configuration, as `endpoint` or `match` of a [[source]]",
    )
}

/// Looks names up, and hands out what may be connected to.
pub(crate) struct Resolver {
    pub(crate) gate: Gate,
    /// Number of lookups: connections are spread over a name's addresses.
    pub(crate) turns: Arc<AtomicUsize>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (gate, turn) = (self.gate.clone(), self.turns.fetch_add(1, Ordering::Relaxed));
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let mut passed = gate.sift(name.as_str(), found)?;
            if !passed.is_empty() {
                let first = turn % passed.len();
                passed.rotate_left(first);
            }
            Ok(Box::new(passed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect()
    }

    #[test]
    fn local_addresses_pass_only_if_named_with_their_port() {
        let named =
            [url("http://127.0.0.1:9000/x"), url("https://[::1]/"), url("http://localhost:1")];
        let gate = Gate::but(&named);
        for passes in [
            "http://127.0.0.1:9000/latest",
            "https://[::1]:443/",
            "http://localhost:1/",
            "http://127.1:9000/",
            "https://example.org/",
            "http://10.0.0.1/",
            "http://192.168.1.1/",
        ] {
            gate.check(&url(passes)).unwrap();
        }
        for stays in [
            "http://127.0.0.1:9001/",
            "http://127.0.0.1/",
            "http://127.0.0.2:9000/",
            "http://[::1]/",
            "http://localhost/",
            "http://169.254.169.254/latest/meta-data",
            "http://[fe80::1]/",
            "http://[::ffff:127.0.0.1]:9000/",
            "http://[fd00:ec2::254]/",
            "http://0.0.0.0:9000/",
            "http://metadata.google.internal/",
        ] {
            let error = gate.check(&url(stays)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{stays}");
            Gate::default().check(&url(stays)).unwrap();
        }
    }

    #[test]
    fn foreign_names_may_not_resolve_to_local_addresses() {
        let named = [url("http://localhost:9000"), url("http://rebound.example:9000")];
        let gate = Gate::but(&named);
        let own = ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "::ffff:127.0.0.1", "0.0.0.0"];
        for address in own {
            // Naming a name says nothing of where it leads.
            let error = gate.sift("rebound.example", addresses(&[address])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{address}");
            let mixed = gate.sift("rebound.example", addresses(&[address, "10.1.2.3"])).unwrap();
            assert_eq!(mixed, addresses(&["10.1.2.3"]));
            let open = Gate::default().sift("rebound.example", addresses(&[address])).unwrap();
            assert_eq!(open, addresses(&[address]));
        }
        assert_eq!(gate.sift("localhost", addresses(&["127.0.0.1"])).unwrap().len(), 1);
        assert!(Gate::but([]).sift("localhost", addresses(&["127.0.0.1"])).is_err());
        let proxied = gate.by(["proxy.local".to_owned()]);
        assert_eq!(proxied.sift("proxy.local", addresses(&["127.0.0.1"])).unwrap().len(), 1);
        assert!(proxied.sift("rebound.example", addresses(&["127.0.0.1"])).is_err());
    }
}
