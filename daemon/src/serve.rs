//! Listening: one Unix socket, one task per connection, nobody but this user.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::compose::Node;
use crate::peer;

/// Connections at once: a node runs tens of ranks; this stops a runaway script, not a cluster.
const PEERS: usize = 1024;

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
    tokio::pin!(stop);
    loop {
        while peers.try_join_next().is_some() {}
        let quiet = idle_for(&mut count, idle);
        tokio::select! {
            () = &mut stop => break,
            () = quiet => {
                tracing::info!("nobody needs this daemon any more");
                break;
            }
            accepted = listener.listener.accept(), if peers.len() < PEERS => {
                match accepted {
                    Ok((stream, _)) if may_connect(&stream) => {
                        peers.spawn(peer::serve(node.clone(), Arc::new(stream)));
                    }
                    Ok(_) => {}
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

/// Whether the peer is this very user. Policies for other users come with node-wide rules.
fn may_connect(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == own => true,
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), pid = peer.pid(), "turned away another user");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "turned away a peer without credentials");
            false
        }
    }
}
