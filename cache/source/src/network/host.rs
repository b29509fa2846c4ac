//! Hosts that only this machine reaches: itself, and the services that tell a machine its secrets.
//!
//! An address is judged as the client that connects will read it, whatever its spelling.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// Returns true if only this machine, or its link, has the address, or this machine is what answers
/// there.
pub(crate) fn is_private_address(address: IpAddr) -> bool {
    is_local(address) || is_own(address.to_canonical())
}

/// Time that an answer about an address holds: a job names a million URLs of one host.
const FRESH: Duration = Duration::from_secs(1);

/// The address that was asked about last, the answer, and when.
static LAST: Mutex<Option<(IpAddr, bool, Instant)>> = Mutex::new(None);

/// Returns true if one of this machine's interfaces has the address.
fn is_own(address: IpAddr) -> bool {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, is_own, _)) =
        last.filter(|(asked, _, since)| *asked == address && since.elapsed() < FRESH)
    {
        return is_own;
    }
    let is_own = reaches_itself(address);
    *last = Some((address, is_own, Instant::now()));
    is_own
}

/// Returns true if packets to the address would leave from it, which the kernel says of its own
/// addresses alone. Nothing is sent.
fn reaches_itself(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let Ok(socket) = UdpSocket::bind((any, 0)) else { return false };
    // Any port: no packet goes there.
    let is_routed = socket.connect((address, 9)).is_ok();
    is_routed && socket.local_addr().is_ok_and(|local| local.ip() == address)
}

fn is_local(address: IpAddr) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_interfaces_are_this_machines_own() {
        // The address from which this machine would reach others, if it has one.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let lan = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
        if let Ok(lan) = lan {
            assert!(is_private_address(lan.ip()), "{lan}");
            let url = Url::parse(&format!("http://{}:8080/", lan.ip())).unwrap();
            assert!(is_private(&url));
        }
        assert!(reaches_itself("127.0.0.1".parse().unwrap()));
        for other in ["192.0.2.1", "8.8.8.8", "2001:db8::1"] {
            assert!(!is_private_address(other.parse().unwrap()), "{other}");
        }
    }
}
