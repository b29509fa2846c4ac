//! Nodes of a test.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_cluster::{Member, Ring};
use forebay_config::settings::MembersSource;
use forebay_error::{Error, ErrorKind, Result};
use forebay_members::{Greet, Greeting, Members, MembersReport};

/// Time for a condition: a hang, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval between two looks at a report.
const LOOK: Duration = Duration::from_millis(20);

/// Nodes that answer at their addresses.
#[derive(Default)]
pub(super) struct Neighbours(pub(super) HashMap<String, Greeting>);

#[async_trait]
impl Greet for Neighbours {
    async fn greet(&self, address: &str) -> Result<Greeting> {
        let nobody = || Error::new(ErrorKind::Unavailable, "nobody answers").at("address", address);
        self.0.get(address).cloned().ok_or_else(nobody)
    }
}

pub(super) fn member(name: &str, address: &str) -> Member {
    Member { name: name.to_owned(), address: address.to_owned(), slots: 4 }
}

/// Follows a source as `own`, in the group `pool`.
pub(super) async fn start(source: MembersSource, own: Member) -> Result<Members> {
    Members::start(source, own, "pool", Arc::new(Neighbours::default())).await
}

/// Names of the members in force.
pub(super) fn names(ring: &Ring) -> Vec<&str> {
    ring.members().iter().map(|member| member.name.as_str()).collect()
}

/// Waits until exactly these members are in force.
pub(super) async fn has(members: &Members, wanted: &[&str]) {
    let mut changed = members.changed();
    let waited = tokio::time::timeout(PATIENCE, changed.wait_for(|ring| names(ring) == wanted));
    if waited.await.is_err() {
        panic!("{wanted:?} are not the members: {:?}", members.report());
    }
}

/// Waits for a report.
pub(super) async fn reports(
    members: &Members,
    mut is_so: impl FnMut(&MembersReport) -> bool,
) -> MembersReport {
    let waited = async {
        let mut looks = tokio::time::interval(LOOK);
        loop {
            looks.tick().await;
            let report = members.report();
            if is_so(&report) {
                return report;
            }
        }
    };
    match tokio::time::timeout(PATIENCE, waited).await {
        Ok(report) => report,
        Err(_) => panic!("this is not the report: {:?}", members.report()),
    }
}
