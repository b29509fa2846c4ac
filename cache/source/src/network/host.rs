//! Hosts that only this machine reaches: itself, and the services that tell a machine its secrets.
//!
//! An address is judged as the client that connects will read it, whatever its spelling.

use std::net::{IpAddr, Ipv6Addr};

use url::{Host, Url};

/// Names of such hosts, beside addresses.
const NAMES: [&str; 3] = ["localhost", "metadata", "metadata.google.internal"];

/// The IPv6 network of Amazon's metadata services.
const AMAZON: [u16; 2] = [0xfd00, 0x0ec2];

/// Returns true if `url` names a host that only this machine reaches by that name.
pub(crate) fn is_private(url: &Url) -> bool {
    if !matches!(url.scheme(), "http" | "https") {
        return false;
    }
    match url.host() {
        Some(Host::Ipv4(address)) => is_private_address(address.into()),
        Some(Host::Ipv6(address)) => is_private_address(address.into()),
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            NAMES.contains(&name) || name.ends_with(".localhost")
        }
        None => false,
    }
}

/// Returns true if only this machine, or its link, has the address.
pub(crate) fn is_private_address(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback() || address.is_link_local() || address.is_unspecified()
        }
        IpAddr::V6(address) => {
            let [first, second, ..] = address.segments();
            let link_local = first & 0xffc0 == 0xfe80;
            address == Ipv6Addr::LOCALHOST
                || address.is_unspecified()
                || link_local
                || [first, second] == AMAZON
        }
    }
}
