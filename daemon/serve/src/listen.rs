//! Listening: Unix sockets, one task per connection, nobody but whom the node serves. Trainers and
//! admins come to the same ones, each with a language of their own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use forebay_admin as admin;
use forebay_admin::Api;
use forebay_config::settings::Door;
use forebay_config::settings::{ListenConfig, UserLimits};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_node::access::Rights;
use forebay_node::audit;
use forebay_node::audit::{Outcome, Whom};
use forebay_node::connection;
use forebay_store::Repeats;
use forebay_wire::credentials::Credentials;
use forebay_wire::frame;
use forebay_wire::message::Reply;
use forebay_wire::socket::SocketPath;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::greetings::{Greeting, Greetings};
use crate::language;
use crate::language::Language;

/// Connections kept for admins: one gets in however many others there are.
const OF_ADMINS: usize = 64;

/// Connections of a user beside those of its jobs: tools, and jobs that leave.
const OF_TOOLS: usize = 32;

/// Users whose connections one tenant's socket takes, where all users are one.
const USERS_OF_A_TENANT: usize = 4;

/// Mode for the daemon's user only: write permission on a socket allows to connect.
const PRIVATE: u32 = 0o600;

/// Anybody: who is then served is decided by who it is.
const EVERYBODY: u32 = 0o666;

/// Pause, at most, after a connection that could not be taken. The usual reason is that descriptors
/// are used up, and the kernel gives no sign when one is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket; its file goes when the listener does.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    door: Arc<Door>,
    /// The daemon's own: its mode follows from who is served.
    is_main: bool,
}

impl Listener {
    /// Binds the daemon's own socket at `path`, replacing one that nobody listens on any more.
    ///
    /// # Errors
    /// `Invalid` if something else lies there or another daemon answers.
    pub fn bind(path: &Path) -> Result<Self> {
        let listener = bind(path)?;
        Ok(Self { listener, door: Arc::new(Door::main(path.to_owned())), is_main: true })
    }

    /// Binds a socket beside the daemon's own. Its folder is made if it is not there.
    ///
    /// # Errors
    /// As [`Listener::bind`]; `PermissionDenied` if the daemon may not give its file to the group.
    pub fn bind_beside(config: ListenConfig) -> Result<Self> {
        let ListenConfig { door, group, mode } = config;
        let at = |error: Error| error.at("socket", door.path.display());
        if let Some(folder) = door.path.parent() {
            fs::create_dir_all(folder).doing("make the socket's directory").map_err(at)?;
        }
        let listener = bind(&door.path)?;
        let listener = Self { listener, door: Arc::new(door), is_main: false };
        let path = listener.path();
        let at = |error: Error| error.at("socket", path.display());
        if let Some(gid) = group {
            let given = std::os::unix::fs::chown(path, None, Some(gid));
            given
                .doing("give the socket to its group")
                .map_err(|error| at(error).at("gid", gid))?;
        }
        let opened = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        opened.doing("set the socket's mode").map_err(at)?;
        if let Some(tenant) = listener.door.tenant.as_deref().filter(|_| is_open(path, mode)) {
            tracing::warn!(
                socket = %path.display(),
                tenant,
                "every user of this machine can connect to this socket as this tenant: give it a group, or put it in a folder that only root can enter"
            );
        }
        Ok(listener)
    }

    fn path(&self) -> &Path {
        &self.door.path
    }

    /// Lets any user connect, or none but the daemon's own. Who is then served is decided by who it
    /// is.
    fn let_knock(&self, everybody: bool) {
        let mode = fs::Permissions::from_mode(if everybody { EVERYBODY } else { PRIVATE });
        if let Err(error) = fs::set_permissions(self.path(), mode) {
            tracing::error!(%error, everybody, "the mode of the daemon's socket cannot be set");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Already gone is as good as removed.
        let _ = fs::remove_file(self.path());
    }
}

/// Returns true if any user may connect to a socket of this mode, as far as folders decide.
#[must_use]
pub fn is_open(path: &Path, mode: u32) -> bool {
    /// Permission bits of others: write on a file; pass through a folder.
    const OTHERS: (u32, u32) = (0o002, 0o001);
    let passes = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & OTHERS.1 != 0)
    };
    mode & OTHERS.0 != 0 && path.ancestors().skip(1).all(passes)
}

/// A socket at `path` that nobody but the daemon's user can connect to.
fn bind(path: &Path) -> Result<UnixListener> {
    let at = |error: Error| error.at("socket", path.display());
    let place = SocketPath::of(path).map_err(at)?;
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            if std::os::unix::net::UnixStream::connect(place.path()).is_ok() {
                return Err(at(Error::new(ErrorKind::Invalid, "another daemon listens there")));
            }
            fs::remove_file(path).doing("remove a dead socket").map_err(at)?;
        }
        Ok(_) => {
            return Err(at(Error::new(
                ErrorKind::Invalid,
                "the socket's path exists and is not a socket",
            )
            .advise("remove it, or name another path")));
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(place.path()).doing("bind the socket").map_err(at)?;
    let private = fs::Permissions::from_mode(PRIVATE);
    fs::set_permissions(path, private).doing("make the socket private").map_err(at)?;
    Ok(listener)
}

/// The next connection, and by which socket it came; `next` is the one that is looked at first, so
/// that none is left waiting behind another that never rests.
async fn accept(
    listeners: &[Listener],
    next: &mut usize,
) -> (std::io::Result<UnixStream>, Arc<Door>) {
    std::future::poll_fn(|context| {
        for step in 0..listeners.len() {
            let at = (*next + step) % listeners.len();
            if let Poll::Ready(accepted) = listeners[at].listener.poll_accept(context) {
                *next = at + 1;
                let stream = accepted.map(|(stream, _)| stream);
                return Poll::Ready((stream, listeners[at].door.clone()));
            }
        }
        Poll::Pending
    })
    .await
}

/// Serves whoever comes by these sockets until `stop` completes, or until nobody was connected for
/// `idle`.
pub async fn serve(
    node: Arc<Node>,
    listeners: Vec<Listener>,
    idle: Option<Duration>,
    stop: impl Future<Output = ()>,
) {
    let mut clients = JoinSet::new();
    let mut count = node.sessions.watch_users();
    let mut policy = node.access.subscribe();
    // Seen at once.
    policy.mark_changed();
    node.audit.note(audit::Entry::new("start", Outcome::Done));
    let (users, greetings, mut next) = (Users::default(), Greetings::default(), 0);
    let (api, failed) = (Api::new(&node), Repeats::default());
    tokio::pin!(stop);
    loop {
        while clients.try_join_next().is_some() {}
        let quiet = idle_for(&mut count, idle, &node);
        let limit = node.access.policy().user_limits().connections;
        tokio::select! {
            () = &mut stop => break,
            // The sender lives in the node.
            _ = policy.changed() => {
                let others = policy.borrow_and_update().serves_others();
                let main = listeners.iter().filter(|listener| listener.is_main);
                main.for_each(|main| main.let_knock(others));
            }
            () = quiet => {
                tracing::info!("no client uses this daemon any more");
                break;
            }
            (accepted, door) = accept(&listeners, &mut next), if clients.len() < limit => {
                match accepted {
                    Ok(stream) => {
                        if let Some((rights, place)) = admit(&node, &users, &stream, &door) {
                            let (node, api, greeting) = (node.clone(), api.clone(), greetings.begin());
                            let number = greeting.number();
                            let task = clients.spawn(async move {
                                talk(node, &api, stream, rights, greeting).await;
                                drop(place);
                            });
                            greetings.serve_by(number, task);
                        }
                    }
                    // One client's connection: the jobs that run are not to suffer for it.
                    Err(error) => {
                        if let Some(times) = failed.note(Instant::now()) {
                            tracing::error!(times, %error, "failed to accept a connection");
                        }
                        // A client that leaves gives some back.
                        let mut left = node.sessions.watch_users();
                        let _ = tokio::time::timeout(ACCEPT_PAUSE, left.changed()).await;
                    }
                }
            }
            // Room for one more connection.
            _ = clients.join_next(), if clients.len() >= limit => {}
        }
    }
    // New trainers must not find a socket that nobody serves.
    drop(listeners);
    clients.shutdown().await;
    node.store.close().await;
    node.audit.note(audit::Entry::new("stop", Outcome::Done));
    node.audit.close().await;
}

/// Serves a client in its own language, to its end.
async fn talk(
    node: Arc<Node>,
    api: &Api,
    stream: UnixStream,
    rights: Arc<Rights>,
    greeting: Greeting,
) {
    let present = node.sessions.enter();
    match language::spoken(&stream).await {
        Some(Language::Frames) => {
            connection::serve(node, Arc::new(stream), rights, || drop(greeting)).await;
        }
        Some(Language::Http) => {
            drop(greeting);
            api.serve(stream, admin::Caller::Client(rights)).await;
        }
        None => {}
    }
    drop(present);
}

/// Completes once nobody was connected for `idle` and no checkpoint is on its way; never without a
/// limit.
async fn idle_for(
    count: &mut tokio::sync::watch::Receiver<usize>,
    idle: Option<Duration>,
    node: &Node,
) {
    let Some(idle) = idle else { return std::future::pending().await };
    loop {
        // The sender lives in the node: the waits cannot fail.
        let _ = count.wait_for(|clients| *clients == 0).await;
        let came = tokio::time::timeout(idle, count.wait_for(|clients| *clients > 0)).await;
        if came.is_err() && !node.checkpoints.is_busy() {
            return;
        }
    }
}

/// Connections of each user that is no admin, and of each tenant with a socket.
type Users = Arc<Mutex<HashMap<Caller, usize>>>;

/// Group of connections that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Caller {
    /// A user of this machine's.
    User(u32),
    /// Clients that connect through this tenant's socket.
    Tenant(String),
}

/// A connection among its user's, until dropped.
struct ConnectionPermit {
    users: Users,
    caller: Caller,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut connections) = users.entry(self.caller.clone()) {
            *connections.get_mut() -= 1;
            if *connections.get() == 0 {
                connections.remove();
            }
        }
    }
}

/// Tells a client why it is not served, if it can be told at once.
fn turn_away<T>(stream: &UnixStream, error: Error) -> Option<T> {
    let refusal = frame::encode(&Reply::Failed { run: None, error });
    // A client that is gone, or that asks no questions, needs no answer.
    refusal.ok().and_then(|refusal| stream.try_write(&refusal).ok());
    None
}

/// The rights and the place of a client, if it is served: who it is, the kernel says.
fn admit(
    node: &Node,
    users: &Users,
    stream: &UnixStream,
    door: &Arc<Door>,
) -> Option<(Arc<Rights>, Option<ConnectionPermit>)> {
    let turned_away = |error: Error| turn_away(stream, error);
    let client = match Credentials::of(stream.as_fd()) {
        Ok(client) => client,
        Err(error) => {
            node.audit.note(audit::Entry::denied("connect", &error));
            return turned_away(error);
        }
    };
    let (uid, whom) = (client.uid, Whom::of(&client, door.tenant.as_deref(), &door.path));
    let rights = match Rights::of(&node.access, &node.audit, client, door) {
        Ok(rights) => Arc::new(rights),
        Err(error) => return turned_away(error),
    };
    if rights.last().is_admin {
        return Some((rights, None));
    }
    let UserLimits { connections: all_limit, sessions } = node.access.policy().user_limits();
    // A few users that take all they can leave others theirs.
    let of_a_user = sessions as usize + OF_TOOLS;
    let (caller, limit) = match &door.tenant {
        Some(tenant) => (Caller::Tenant(tenant.clone()), USERS_OF_A_TENANT * of_a_user),
        None => (Caller::User(uid), of_a_user),
    };
    let mut counted = users.lock().unwrap_or_else(PoisonError::into_inner);
    let all: usize = counted.values().sum();
    let connections = counted.get(&caller).copied().unwrap_or_default();
    let reached = [(connections, limit), (all, all_limit - OF_ADMINS)];
    if let Some((_, limit)) = reached.into_iter().find(|(count, limit)| count >= limit) {
        let error = Error::new(ErrorKind::Unavailable, "the limit on connections is reached");
        let error = error.at("limit", limit).advise(
            "run fewer jobs at once, or ask an admin to raise `max_connections` or \
             `max_sessions_per_user` of [daemon]",
        );
        node.audit.note(audit::Entry::denied("connect", &error).by(&whom));
        return turned_away(error);
    }
    counted.insert(caller.clone(), connections + 1);
    Some((rights, Some(ConnectionPermit { users: users.clone(), caller })))
}
