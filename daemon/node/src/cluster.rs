//! The node's part in its cluster: the other nodes, and what it serves them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_cluster::{Member, Ring, parse_members, slots_of};
use forebay_config::settings::{ClusterConfig, MembersSource};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_peer_server::{PeerServer, PeerServerConfig};
use forebay_peers::message::{Greeting, PROTOCOL};
use forebay_peers::{ClusterReport, PeerTls, PeerTlsFiles, Peers};
use forebay_store::Store;
use forebay_uring::{Arena, Region};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Memory of replies to other nodes: 16 blocks, which is more than a link of 100 Gbit/s has on its
/// way.
pub const SERVING_BYTES: usize = 64 << 20;

/// Interval at which certificates are compared with those in force: issuers renew them days before
/// they expire.
const CERTIFICATES_CHECK: Duration = Duration::from_secs(60);

/// A node's part in its cluster, until dropped.
pub struct Cluster {
    peers: Arc<Peers>,
    server: PeerServer,
    group: String,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Cluster {
    /// Joins the cluster: reads the certificates and the member list, opens the port for other
    /// nodes, and has the store read shards from their owners. `capacity`: bytes of the node's
    /// tiers. `rules`: digest of its rules.
    ///
    /// # Errors
    /// If a certificate, the member list or the port is invalid.
    pub async fn start(
        config: ClusterConfig,
        store: &Store,
        capacity: u64,
        rules: String,
    ) -> Result<Self> {
        let ClusterConfig { name, listen, address, tls, group, weight, serve, members } = config;
        let slots = weight.unwrap_or_else(|| slots_of(capacity));
        let own = Member { name: name.clone(), address, slots };
        let files = tls;
        let tls = read_tls(files.clone()).await?;
        let ring = Arc::new(read_members(members, &own).await?);
        let (ring_sender, ring) = watch::channel(ring);
        let peers = Arc::new(Peers::new(&name, &tls, ring)?);
        let region =
            tokio::task::spawn_blocking(|| Region::create("forebay-serving", SERVING_BYTES));
        let region = region.await.map_err(|_| Error::new(ErrorKind::Closed, "shutting down"))??;
        for engine in store.engines() {
            engine.attach(&region).await?;
        }
        let (tls_sender, tls) = watch::channel(tls);
        let greeting = Greeting {
            name,
            group: group.clone(),
            slots,
            protocol: PROTOCOL,
            oldest_protocol: PROTOCOL,
            unix_time: 0,
            rules,
        };
        let config = PeerServerConfig { listen, tls, greeting, serve, memory: Arena::new(region) };
        let server = PeerServer::start(config, store, peers.clone()).await?;
        store.join(peers.clone());
        let tasks = vec![
            tokio::spawn(renew(files, tls_sender, peers.clone())),
            tokio::spawn(async move { ring_sender.closed().await }),
        ];
        Ok(Self { peers, server, group, tasks })
    }

    /// Returns the node's part in its cluster.
    #[must_use]
    pub fn report(&self) -> ClusterReport {
        ClusterReport {
            node: self.peers.own().to_owned(),
            group: self.group.clone(),
            address: self.server.address().to_string(),
            members: self.peers.report(),
            serving: self.server.report(),
        }
    }
}

async fn read_tls(files: PeerTlsFiles) -> Result<PeerTls> {
    let read = tokio::task::spawn_blocking(move || PeerTls::read(&files)).await;
    read.map_err(|_| Error::new(ErrorKind::Closed, "shutting down"))?
}

/// Reads the member list.
async fn read_members(source: MembersSource, own: &Member) -> Result<Ring> {
    let MembersSource::File(path) = source else {
        let what = "member lists from DNS and Redis do not exist yet";
        return Err(Error::new(ErrorKind::Invalid, what).at("node", &own.name));
    };
    let at = |error: Error| error.at("members", path.display());
    let text = tokio::fs::read_to_string(&path).await.doing("read the member list").map_err(at)?;
    let members = parse_members(&text).map_err(at)?;
    if !members.iter().any(|member| member.name == own.name) {
        tracing::warn!(node = own.name, members = %path.display(), "this node is missing in the member list: it owns no shards");
    }
    Ring::new(members)
}

/// Puts renewed certificates in force.
async fn renew(files: PeerTlsFiles, tls: watch::Sender<PeerTls>, peers: Arc<Peers>) {
    let mut before = changed(&files).await;
    let mut due = tokio::time::interval(CERTIFICATES_CHECK);
    loop {
        due.tick().await;
        let now = changed(&files).await;
        if now == before {
            continue;
        }
        // A half-written set is read again when it changes.
        before = now;
        match read_tls(files.clone()).await.and_then(|tls| peers.renew(&tls).map(|()| tls)) {
            Ok(renewed) => {
                tls.send_replace(renewed);
                tracing::info!("new certificates of the node are in force");
            }
            Err(error) => {
                tracing::error!(%error, "the node's certificates changed and are invalid: the earlier ones stay");
            }
        }
    }
}

/// Times of the files' last change.
async fn changed(files: &PeerTlsFiles) -> Vec<Option<SystemTime>> {
    let mut times = Vec::new();
    for path in [&files.cert, &files.key, &files.ca] {
        times.push(modified(path).await);
    }
    times
}

async fn modified(path: &Path) -> Option<SystemTime> {
    tokio::fs::metadata(path).await.ok()?.modified().ok()
}
