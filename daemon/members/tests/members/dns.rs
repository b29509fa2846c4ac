//! Lists in DNS, by names that every machine resolves, or none does.

use std::sync::Arc;

use forebay_config::settings::MembersSource;
use forebay_members::{Greeting, Members};

use super::nodes::{Neighbours, has, member, reports};

const PORT: u16 = 9481;

fn source(name: &str) -> MembersSource {
    MembersSource::Dns { name: name.to_owned(), port: PORT }
}

fn neighbour(name: &str, group: &str) -> Neighbours {
    let greeting = Greeting { name: name.to_owned(), group: group.to_owned(), slots: 3 };
    let addresses = [format!("127.0.0.1:{PORT}"), format!("[::1]:{PORT}")];
    Neighbours(addresses.map(|address| (address, greeting.clone())).into())
}

async fn follow(name: &str, address: &str, neighbours: Neighbours) -> Members {
    let own = member("own", address);
    Members::start(source(name), own, "pool", Arc::new(neighbours)).await.unwrap()
}

#[tokio::test]
async fn addresses_of_a_name_become_members() {
    let members = follow("localhost", "10.0.0.1:9481", neighbour("other", "pool")).await;
    has(&members, &["other"]).await;
    assert_eq!(members.ring().member("other").unwrap().slots, 3);
    let report = members.report();
    assert!(!report.is_listed && !report.is_frozen, "{report:?}");
    assert_eq!(report.source, "dns localhost:9481");
}

/// The own server of a node may not listen yet.
#[tokio::test]
async fn own_address_is_not_greeted() {
    let members = follow("localhost", "127.0.0.1:9481", Neighbours::default()).await;
    has(&members, &["own"]).await;
    assert!(members.report().is_listed);
}

#[tokio::test]
async fn nodes_of_another_group_are_left_out() {
    let members = follow("localhost", "10.0.0.1:9481", neighbour("other", "elsewhere")).await;
    let report = reports(&members, |report| report.last_error.is_some()).await;
    assert!(report.members.is_empty() && report.is_frozen && report.since.is_none(), "{report:?}");
}

#[tokio::test]
async fn name_without_addresses_leaves_the_list_as_it_is() {
    let members = follow("no-such-host.invalid", "10.0.0.1:9481", Neighbours::default()).await;
    let report = reports(&members, |report| report.last_error.is_some()).await;
    assert!(report.is_frozen && report.members.is_empty(), "{report:?}");
    assert!(report.last_error.unwrap().contains("no-such-host.invalid"));
}
