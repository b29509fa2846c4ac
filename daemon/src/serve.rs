//! Listening: one Unix socket, one task per connection, nobody but whom the node serves.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::peer::Credentials;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::compose::Node;
use crate::peer;

/// Connections at once: a node runs tens of ranks; this stops a runaway script, not a cluster.
const PEERS: usize = 1024;

/// Connections of one user other than the daemon's own: what its ranks and tools need, several times over.
/// A few users that take all they can leave others theirs.
const PEERS_OF_A_USER: usize = 128;

/// Pause, at most, after a connection that could not be taken. The usual reason is that descriptors
/// are used up, and the kernel gives no sign when one is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket; its file goes when the listener does.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Binds `path`, replacing a socket nobody listens on any more.
    ///
    /// # Errors
    /// `Invalid` if something else lies there or another daemon answers.
    pub fn bind(path: &Path) -> Result<Self> {
        let at = |error: Error| error.at("socket", path.display());
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(at(Error::new(ErrorKind::Invalid, "another daemon listens there")));
                }
                fs::remove_file(path).doing("remove a dead socket").map_err(at)?;
            }
            Ok(_) => {
                return Err(at(Error::new(ErrorKind::Invalid, "the socket's path is taken")
                    .advise("remove what lies there, or name another path")));
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).doing("bind the socket").map_err(at)?;
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(path, private).doing("make the socket private").map_err(at)?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Listener {
    /// Lets any user connect, or only the daemon's own; who is then served is decided by who it is.
    fn let_everybody_knock(&self, everybody: bool) {
        let mode = fs::Permissions::from_mode(if everybody { 0o666 } else { 0o600 });
        if let Err(error) = fs::set_permissions(&self.path, mode) {
            tracing::error!(%error, everybody, "failed to change who can connect to the daemon's socket");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Already gone is as good as removed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Serves trainers until `stop` completes, or until nobody was connected for `idle`.
pub async fn serve(
    node: Arc<Node>,
    listener: Listener,
    idle: Option<Duration>,
    stop: impl Future<Output = ()>,
) {
    let mut peers = JoinSet::new();
    let mut count = node.peers.subscribe();
    let mut groups = node.groups();
    groups.mark_changed();
    let users = Users::default();
    tokio::pin!(stop);
    loop {
        while peers.try_join_next().is_some() {}
        let quiet = idle_for(&mut count, idle);
        tokio::select! {
            () = &mut stop => break,
            // The sender lives in the node.
            Ok(()) = groups.changed() => {
                let serves_others = !groups.borrow_and_update().is_empty();
                listener.let_everybody_knock(serves_others);
            }
            () = quiet => {
                tracing::info!("nobody needs this daemon any more");
                break;
            }
            accepted = listener.listener.accept(), if peers.len() < PEERS => {
                match accepted {
                    Ok((stream, _)) => {
                        if let Some(place) = admit(&node, &users, &stream) {
                            let (node, stream) = (node.clone(), Arc::new(stream));
                            peers.spawn(async move {
                                peer::serve(node, stream).await;
                                drop(place);
                            });
                        }
                    }
                    // One peer's connection: the jobs that run are not to suffer for it.
                    Err(error) => {
                        tracing::error!(%error, "failed to take a connection");
                        // A peer that leaves gives some back.
                        let mut left = node.peers.subscribe();
                        let _ = tokio::time::timeout(ACCEPT_PAUSE, left.changed()).await;
                    }
                }
            }
            // Room for one more connection.
            _ = peers.join_next(), if peers.len() >= PEERS => {}
        }
    }
    // New trainers must not find a socket that nobody serves.
    drop(listener);
    peers.shutdown().await;
    node.store.close().await;
}

/// Completes once nobody was connected for `idle`; never without a limit.
async fn idle_for(count: &mut tokio::sync::watch::Receiver<usize>, idle: Option<Duration>) {
    let Some(idle) = idle else { return std::future::pending().await };
    loop {
        // The sender lives in the node: the waits cannot fail.
        let _ = count.wait_for(|peers| *peers == 0).await;
        if tokio::time::timeout(idle, count.wait_for(|peers| *peers > 0)).await.is_err() {
            return;
        }
    }
}

/// Connections of each user other than the daemon's own.
type Users = Arc<Mutex<HashMap<u32, usize>>>;

/// A connection among its user's, until dropped.
struct Place {
    users: Users,
    user: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut connections) = users.entry(self.user) {
            *connections.get_mut() -= 1;
            if *connections.get() == 0 {
                connections.remove();
            }
        }
    }
}

/// The place of a peer, if it is served: who it is, the kernel says.
fn admit(node: &Node, users: &Users, stream: &UnixStream) -> Option<Option<Place>> {
    let peer = match Credentials::of(stream.as_fd()) {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%error, "turned away a peer without credentials");
            return None;
        }
    };
    if node.is_own(&peer) {
        return Some(None);
    }
    if !node.serves(&peer) {
        tracing::warn!(uid = peer.uid, "turned away another user");
        return None;
    }
    let mut counted = users.lock().unwrap_or_else(PoisonError::into_inner);
    let connections = counted.entry(peer.uid).or_default();
    if *connections >= PEERS_OF_A_USER {
        tracing::warn!(uid = peer.uid, "turned away a user with too many connections");
        return None;
    }
    *connections += 1;
    Some(Some(Place { users: users.clone(), user: peer.uid }))
}
