//! Addresses that connections may reach.
//!
//! Each connection's actual address is checked: a changed name and a redirect pass no more easily
//! than a URL. A node's daemon reaches addresses of its own machine or link only where an
//! administrator named them.

use std::collections::HashSet;
use std::fmt;
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

/// Permitted targets of redirects.
#[derive(Clone)]
pub(crate) struct Leads(Arc<dyn Fn(&Url) -> bool + Send + Sync>);

impl Leads {
    pub(crate) fn new(may: impl Fn(&Url) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may))
    }

    fn may(&self, url: &Url) -> bool {
        (self.0)(url)
    }
}

impl fmt::Debug for Leads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leads").finish_non_exhaustive()
    }
}

/// Permitted addresses among those that only this machine or its link has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Option<Arc<Named>>);

/// Addresses named by an administrator.
#[derive(Debug, Clone, Default)]
struct Named {
    /// Hosts as URLs have them, and ports.
    endpoints: HashSet<(String, u16)>,
    /// Proxies, whatever their ports.
    proxies: HashSet<String>,
    /// Targets of redirects; `None` permits any.
    leads: Option<Leads>,
    /// Stores that lead on within themselves.
    stores: HashSet<(String, u16)>,
}

impl Gate {
    /// One that lets these endpoints through, and no other such address.
    pub(crate) fn but<'a>(endpoints: impl IntoIterator<Item = &'a Url>) -> Self {
        let endpoints = endpoints.into_iter().filter_map(address).collect();
        Self(Some(Arc::new(Named { endpoints, ..Named::default() })))
    }

    /// The same, which follows only redirects that `leads` permits, and those of `stores` within
    /// themselves.
    pub(crate) fn led<'a>(&self, leads: Leads, stores: impl Iterator<Item = &'a Url>) -> Self {
        let stores: HashSet<_> = stores.filter_map(address).collect();
        Self(
            self.0
                .as_ref()
                .map(|named| Arc::new(Named { leads: Some(leads), stores, ..Named::clone(named) })),
        )
    }

    /// The same, for requests that go by these proxies.
    pub(crate) fn by(&self, proxies: impl IntoIterator<Item = String>) -> Self {
        Self(self.0.as_ref().map(|named| {
            let proxies = proxies.into_iter().collect();
            Arc::new(Named { proxies, ..Named::clone(named) })
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

    /// Returns the policy for redirects: `more` permits some beside those of the rules, `noted` is
    /// called at each.
    pub(crate) fn redirects(
        &self,
        more: Leads,
        noted: impl Fn() + Send + Sync + 'static,
    ) -> Policy {
        let gate = self.clone();
        Policy::custom(move |attempt| {
            noted();
            gate.redirect(attempt, &more)
        })
    }

    fn redirect(&self, attempt: Attempt<'_>, more: &Leads) -> Action {
        if attempt.previous().len() > REDIRECTS || attempt.previous().contains(attempt.url()) {
            let error = astray("the store redirects in a circle", &attempt);
            return attempt.error(error);
        }
        if !matches!(attempt.url().scheme(), "http" | "https") {
            let error = astray("the store redirects to what is no web address", &attempt);
            return attempt.error(error);
        }
        match self.check(attempt.url()).and_then(|()| self.check_lead(&attempt, more)) {
            Ok(()) => attempt.follow(),
            Err(error) => attempt.error(error),
        }
    }
}

/// Host as a URL has it, and port.
fn address(url: &Url) -> Option<(String, u16)> {
    Some((url.host_str()?.to_owned(), url.port_or_known_default()?))
}

impl Gate {
    /// Refuses a redirect to what no rule names.
    fn check_lead(&self, attempt: &Attempt<'_>, more: &Leads) -> Result<()> {
        let Some(named) = &self.0 else { return Ok(()) };
        let Some(leads) = &named.leads else { return Ok(()) };
        let url = attempt.url();
        // Its buckets are named, not its addresses.
        let is_store = address(url).is_some_and(|address| named.stores.contains(&address));
        let stays = attempt.previous().last().is_some_and(|last| last.origin() == url.origin());
        if leads.may(url) || more.may(url) || stays && is_store {
            return Ok(());
        }
        let what = "the store redirects to an address that no [[source]] permits";
        let root = format!("{}/", url.origin().ascii_serialization());
        Err(Error::new(ErrorKind::PermissionDenied, what)
            .at("redirect", forebay_error::shown(url.as_str()))
            .advise(format!("ask an admin to add `redirects = [\"{root}\"]` to the [[source]]")))
    }
}

/// Returns the error of a redirect that nobody can follow.
fn astray(what: &str, attempt: &Attempt<'_>) -> Error {
    Error::new(ErrorKind::Invalid, what)
        .at("fault", "redirect")
        .at("status", attempt.status().as_u16())
        .at("redirect", forebay_error::shown(attempt.url().as_str()))
        .at("redirects", attempt.previous().len())
        .advise("mend the redirect at the server, or name the shard's own URL")
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
