//! The node's part in its cluster: the other nodes, and what it serves them.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use forebay_cluster::{Member, Ring, slots_of};
use forebay_config::settings::{ClusterConfig, MembersSource};
use forebay_error::{Error, Result};
use forebay_members as members;
use forebay_members::{Greet, Members};
use forebay_peer_server::{PeerServer, PeerServerConfig, Replicas};
use forebay_peers::message::{Greeting, PROTOCOL};
use forebay_peers::{ClusterReport, DrainReport, PeerTls, PeerTlsFiles, Peers, greet_members};
use forebay_store::Store;
use forebay_uring::{Arena, Region};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::access::NodeGuard;

/// Memory of replies to other nodes: 16 blocks, which is more than a link of 100 Gbit/s has on its
/// way.
pub const SERVING_BYTES: usize = 64 << 20;

/// Interval at which certificates are compared with those in force: issuers renew them days before
/// they expire.
const CERTIFICATES_CHECK: Duration = Duration::from_secs(60);

/// Time for which a node that left the list serves on: twice the time for which a silent node
/// counts as a member.
const SERVES_ON: Duration = Duration::from_secs(40);

/// A node's part in its cluster, until dropped.
pub struct Cluster {
    peers: Arc<Peers>,
    server: PeerServer,
    members: Members,
    /// Source of the member list.
    source: MembersSource,
    group: String,
    tls: watch::Receiver<PeerTls>,
    greeting: watch::Sender<Greeting>,
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
    /// tiers. `rules`: digest of its rules. `guard`: judge of what other nodes ask for.
    ///
    /// # Errors
    /// If a certificate, the member list or the port is invalid.
    pub async fn start(
        config: ClusterConfig,
        store: &Store,
        capacity: u64,
        rules: String,
        guard: NodeGuard,
    ) -> Result<Self> {
        let ClusterConfig { name, listen, address, tls, group, weight, serve, members } = config;
        let slots = weight.unwrap_or_else(|| slots_of(capacity));
        let own = Member { name: name.clone(), address, slots };
        let files = tls;
        let tls = read_tls(files.clone()).await?;
        // Empty until the list is read: nobody is asked, and nobody may ask, before.
        let (ring_sender, ring) = watch::channel(Arc::default());
        let peers = Arc::new(Peers::new(&name, &tls, ring)?);
        let region =
            tokio::task::spawn_blocking(|| Region::create("forebay-serving", SERVING_BYTES));
        let region = region.await.map_err(|_| Error::shutting_down())??;
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
            is_draining: false,
        };
        let (greeting, greeted) = watch::channel(greeting);
        let memory = Arena::new(region);
        let guard = Arc::new(guard);
        let hears = guard.clone();
        peers.when_denied(Box::new(move |node, error| hears.note_ask(node, error)));
        let config = PeerServerConfig {
            listen,
            tls: tls.clone(),
            greeting: greeted.clone(),
            serve,
            memory,
            guard,
        };
        let server = PeerServer::start(config, store, peers.clone()).await?;
        let greet = Arc::new(GreetByTls(peers.clone()));
        let source = members.clone();
        let members = Members::start(members, own, &group, greet).await?;
        ring_sender.send_replace(members.ring());
        store.join(peers.clone());
        let tasks = vec![
            tokio::spawn(renew(files, tls_sender, peers.clone())),
            tokio::spawn(follow(members.changed(), ring_sender, store.clone())),
            tokio::spawn(greet_members(peers.clone(), greeted)),
        ];
        Ok(Self { peers, server, members, source, group, tls, greeting, tasks })
    }

    /// Returns the client of the other nodes.
    #[must_use]
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Begins to answer what concerns second copies of checkpoints' files.
    pub fn serve_replicas(&self, replicas: Weak<dyn Replicas>) {
        self.server.serve_replicas(replicas);
    }

    /// Takes the node off the member list, where nodes register themselves. Returns the time until
    /// which the others may still ask it.
    pub async fn leave(&self) -> Option<Instant> {
        if !matches!(self.source, MembersSource::Redis(_)) {
            return None;
        }
        let asked_until = Instant::now() + SERVES_ON;
        if let Err(error) = self.members.leave().await {
            tracing::warn!(%error, "cannot leave the member list: the node's entry expires");
        }
        Some(asked_until)
    }

    /// Takes the node off the member list, or puts it back, and tells the other nodes. It serves
    /// them on, and new shards are placed on the others. Where nodes do not register themselves,
    /// the report says what to change.
    ///
    /// # Errors
    /// The error of the server where nodes register.
    pub async fn set_draining(&self, drains: bool) -> Result<DrainReport> {
        self.greeting.send_modify(|greeting| greeting.is_draining = drains);
        tracing::info!(drains, "the node leaves its cluster, or comes back");
        match drains {
            true => self.members.leave().await?,
            false => self.members.join().await?,
        }
        Ok(self.drain_report())
    }

    /// Returns the state of the node's departure.
    #[must_use]
    pub fn drain_report(&self) -> DrainReport {
        let is_draining = self.greeting.borrow().is_draining;
        let is_listed = self.members.report().is_listed;
        let node = self.peers.own();
        let advice = match (&self.source, is_draining == is_listed) {
            (MembersSource::Redis(_), _) | (_, false) => None,
            (MembersSource::File(path), true) => Some(match is_draining {
                true => format!("remove {node} from {} on all nodes", path.display()),
                false => format!("add {node} to {} on all nodes", path.display()),
            }),
            (MembersSource::Dns { name, .. }, true) => Some(match is_draining {
                true => format!("remove the address of {node} from the DNS name {name}"),
                false => format!("add the address of {node} to the DNS name {name}"),
            }),
        };
        DrainReport { node: node.to_owned(), is_draining, is_listed, advice }
    }

    /// Tells other nodes a new digest of this node's rules.
    pub fn set_rules(&self, rules: String) {
        self.greeting.send_modify(|greeting| greeting.rules = rules);
    }

    /// Returns the node's part in its cluster.
    #[must_use]
    pub fn report(&self) -> ClusterReport {
        let list = self.members.report();
        ClusterReport {
            node: self.peers.own().to_owned(),
            group: self.group.clone(),
            address: self.server.address().to_string(),
            members: self.peers.report(),
            is_frozen: list.is_frozen,
            list_error: list.last_error,
            source: list.source,
            is_draining: self.greeting.borrow().is_draining,
            is_listed: list.is_listed,
            rules: self.greeting.borrow().rules.clone(),
            certificate: self.tls.borrow().certificate.clone(),
            serving: self.server.report(),
        }
    }
}

async fn read_tls(files: PeerTlsFiles) -> Result<PeerTls> {
    let read = tokio::task::spawn_blocking(move || forebay_config::read_peer_tls(&files)).await;
    read.map_err(|_| Error::shutting_down())?
}

/// Greets nodes whose names are not known yet.
struct GreetByTls(Arc<Peers>);

#[async_trait]
impl Greet for GreetByTls {
    async fn greet(&self, address: &str) -> Result<members::Greeting> {
        let Greeting { name, group, slots, .. } = self.0.greet(address).await?;
        Ok(members::Greeting { name, group, slots })
    }
}

/// Puts other members in force.
async fn follow(
    mut changed: watch::Receiver<Arc<Ring>>,
    ring: watch::Sender<Arc<Ring>>,
    store: Store,
) {
    while changed.changed().await.is_ok() {
        let now = changed.borrow_and_update().clone();
        ring.send_replace(now);
        let store = store.clone();
        // It looks at every announced shard.
        let noted = tokio::task::spawn_blocking(move || store.note_ring_change());
        if noted.await.is_err() {
            return;
        }
    }
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
