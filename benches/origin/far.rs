//! A server at the far end of a link: `benches/link/delay_line.py` makes it and says where it is.

use std::net::SocketAddr;
use std::time::Instant;

use forebay_source::Options;
use forebay_store::{PART_BYTES, Urgency};
use forebay_testkit::Nginx;
use serde_json::{Value, json};

use crate::contest::{contest, spread};
use crate::near::{on_the_web, part_by_curl};
use crate::run::Fresh;
use crate::{BUCKET, Bench, KEY};

/// Any: the namespace is the link's own.
const PORT: u16 = 8099;

/// Variable with the address of the link's far end.
const ADDRESS: &str = "FOREBAY_LINK_ADDRESS";

/// TCP's payload in a packet of 1500 bytes, with time stamps.
const PAYLOAD: f64 = 1448.0 / 1500.0;

pub(crate) struct Link {
    pub(crate) nginx: Nginx,
    pub(crate) rtt: f64,
    bits: f64,
}

impl Link {
    /// Bytes of payload a second.
    pub(crate) fn carries(&self) -> f64 {
        self.bits * PAYLOAD / 8.0
    }
}

/// Returns true if `delay_line.py` made a link.
pub(crate) fn is_over_a_link() -> bool {
    std::env::var_os(ADDRESS).is_some()
}

pub(crate) fn far_end(bench: &Bench) -> Link {
    let told = |name: &str| {
        let hint = "run this by benches/link/delay_line.py";
        std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: {hint}"))
    };
    let address = SocketAddr::new(told(ADDRESS).parse().unwrap(), PORT);
    let namespace = told("FOREBAY_LINK_NAMESPACE");
    Link {
        nginx: Nginx::within(bench.root.path(), &namespace, address).unwrap(),
        rtt: told("FOREBAY_LINK_RTT_MS").parse::<f64>().unwrap() / 1e3,
        bits: told("FOREBAY_LINK_MBIT").parse::<f64>().unwrap() * 1e6,
    }
}

/// Cold fetches over the link.
pub(crate) fn link(bench: &Bench) -> Value {
    let link = far_end(bench);
    let object = on_the_web(&link.nginx.http(), bench.bytes);
    let mut told = contest(bench, &object.link, &Options::default(), &object);
    let carries = link.carries() / 1e9;
    println!(
        "  the link carries {carries:.3} GB/s of payload, a round trip is {:.0} ms",
        link.rtt * 1e3
    );
    told["link_gb_per_second"] = carries.into();
    told["rtt_seconds"] = link.rtt.into();
    told
}

/// The first sample of a cold shard, against one part by a tool, each on a fresh connection.
pub(crate) fn first(bench: &Bench) -> Value {
    let link = far_end(bench);
    let url = format!("{}/{BUCKET}/{KEY}", link.nginx.http());
    let (mut samples, mut parts) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let fresh = Fresh::open(&bench.directory);
        let begin = Instant::now();
        let seconds = fresh.runtime.block_on(async {
            let options = Options::default();
            let lease = fresh.store.shard(&url, &options, Urgency::Needed).await.unwrap();
            lease.wait(1).await.unwrap();
            begin.elapsed().as_secs_f64()
        });
        samples.push(seconds);
        // The other parts are still on the link.
        drop(fresh);
        parts.push(part_by_curl(&url));
    }
    let ([sample, low, high], [part, ..]) = (spread(samples.clone()), spread(parts.clone()));
    let bound = 4.0 * link.rtt + part;
    println!(
        "  first sample {sample:.3} s ({low:.3}..{high:.3}); 4 round trips and curl's part of {} MiB: {bound:.3} s",
        PART_BYTES >> 20
    );
    json!({
        "first_sample_seconds": samples, "curl_part_seconds": parts, "rtt_seconds": link.rtt,
        "bound_seconds": bound, "ratio": sample / bound,
    })
}
