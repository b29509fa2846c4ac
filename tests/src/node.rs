//! A daemon inside the test's process: node, socket, runtime.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Address, Admin, Connection, Deadline};
use forebay_config::settings::{AccessConfig, LOOK_AFTER, LeasesConfig, NodeConfig, NodeTier};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_serve::{Listener, serve};
use forebay_source::{Limits, Rules};
use forebay_store::{Class, LocalFiles, Mode, Store, TierReport};
use forebay_uring::EngineChoice;
use forebay_wire::message::{Reply, Request};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::patience::{PATIENCE, eventually};
use crate::process::actor;

/// Memory of a node for frames and requests; the rest of its memory is for slabs.
pub const FRAMES: usize =
    forebay_store::FRAME_BYTES + forebay_node::connection::RequestMemory::BYTES;

/// Attempts to lock a cache directory, and the pause between two: a process that another test forks
/// holds the locks of daemons that have ended until it executes its program.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Slab memory of [`Daemon::start`].
const SLABS: usize = 128 << 20;

/// A daemon that stops when dropped, as by SIGTERM.
pub struct Daemon {
    node: Option<Arc<Node>>,
    runtime: Option<Runtime>,
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    socket: PathBuf,
    /// Directory of the first tier.
    cache: PathBuf,
    _directory: Option<TempDir>,
}

impl Daemon {
    /// A configuration with one tier of `capacity` bytes in `cache`.
    #[must_use]
    pub fn config(cache: &Path, capacity: u64) -> NodeConfig {
        NodeConfig {
            tiers: vec![NodeTier::at("nvme", Class::Nvme, cache.to_owned(), capacity)],
            datasets: Vec::new(),
            sources: Rules::default(),
            tenants: Vec::new(),
            checkpoints: Vec::new(),
            memory: FRAMES + SLABS,
            io: EngineChoice::Auto,
            // On a busy machine late requests would be sent twice, and counted.
            limits: Limits { late: Duration::from_secs(600), ..Limits::default() },
            reader: vec![actor().into(), "reader".into()],
            lender: vec![actor().into(), "credentials".into()],
            own: false,
            opens_named: true,
            access: AccessConfig::default(),
            audit: None,
            leases: LeasesConfig {
                directory: Some(cache.join("leases")),
                redis: None,
                named_by_jobs: true,
            },
            cluster: None,
            look_after: LOOK_AFTER,
            state: None,
            files: Arc::new(LocalFiles),
            faults: None,
        }
    }

    /// A directory on the file system of the build: a disk, where `/tmp` may be memory.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    pub fn disk() -> TempDir {
        let program = std::env::current_exe().expect("a process knows its program");
        let beside = program.parent().expect("a program lies in a directory");
        TempDir::new_in(beside).expect("the build's directory is writable")
    }

    /// A daemon on `cache` with a capacity of one GiB.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(cache: &Path) -> Self {
        Self::try_start(Self::config(cache, 1 << 30)).expect("the daemon starts")
    }

    /// A daemon with this configuration.
    ///
    /// # Errors
    /// The daemon's, if it does not start.
    pub fn try_start(config: NodeConfig) -> Result<Self> {
        let directory = TempDir::new().doing("make a temp directory")?;
        let socket = directory.path().join("d.sock");
        Self::at(config, socket, Some(directory), None)
    }

    /// A daemon with this configuration at the socket of an earlier one.
    ///
    /// # Errors
    /// The daemon's, if it does not start.
    pub fn try_start_at(config: NodeConfig, socket: &Path) -> Result<Self> {
        Self::at(config, socket.to_owned(), None, None)
    }

    /// A daemon at this socket that accepts connections only after its directories are listed and
    /// `check` returned.
    ///
    /// # Errors
    /// The daemon's, if it does not start.
    pub fn try_start_after(
        config: NodeConfig,
        socket: &Path,
        check: impl Fn(&Store),
    ) -> Result<Self> {
        Self::at(config, socket.to_owned(), None, Some(&check))
    }

    fn at(
        config: NodeConfig,
        socket: PathBuf,
        directory: Option<TempDir>,
        check: Option<&dyn Fn(&Store)>,
    ) -> Result<Self> {
        let first = config.tiers.first().and_then(|tier| tier.path.clone());
        let cache = first.unwrap_or_default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .doing("start a runtime")?;
        let started =
            (0..LOCK_TRIES).find_map(|_| match runtime.block_on(Node::start(config.clone())) {
                Err(error) if error.place("pid").is_some() => {
                    std::thread::park_timeout(LOCK_PAUSE);
                    None
                }
                started => Some(started),
            });
        let node = started.unwrap_or_else(|| runtime.block_on(Node::start(config)))?;
        if let Some(check) = check {
            runtime.block_on(node.store().scanned())?;
            check(node.store());
        }
        let listener = {
            let _runtime = runtime.enter();
            Listener::bind(&socket)?
        };
        let (stop, stopped) = oneshot::channel();
        let stopped = async move { drop(stopped.await) };
        let serving = runtime.spawn(serve(node.clone(), vec![listener], None, stopped));
        Ok(Self {
            node: Some(node),
            runtime: Some(runtime),
            serving: Some((stop, serving)),
            socket,
            cache,
            _directory: directory,
        })
    }

    /// Node.
    #[must_use]
    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("taken only by drop")
    }

    /// Address of its socket.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::Unix(self.socket.clone())
    }

    /// Socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Status document.
    #[must_use]
    pub fn status(&self) -> Value {
        status(&self.socket)
    }

    /// Report of one of its tiers.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    pub fn tier(&self, name: &str) -> TierReport {
        let tiers = self.node().store().tiers();
        tiers.into_iter().find(|tier| tier.name == name).expect("a tier of this name")
    }

    /// Waits until every fetch has ended, in success or failure.
    pub fn settle(&self) {
        eventually("nothing is under way", || {
            let counters = self.node().store().counters();
            counters.misses == counters.ended()
        });
    }

    /// Sends one request of a trainer on a connection of its own and returns the reply.
    ///
    /// # Errors
    /// If it does not answer, or rejects the request.
    pub fn ask(&self, request: &Request) -> Result<Reply> {
        let deadline = Deadline::after(PATIENCE);
        Connection::open(&self.socket, &deadline)?.ask(request, &deadline)
    }

    /// Evicts every copy of a shard, or only counts them; returns the number of copies.
    ///
    /// # Errors
    /// If it does not answer, or rejects the request.
    pub fn forget(&self, url: &str, dry: bool) -> Result<u64> {
        forget(&self.socket, url, dry)
    }

    /// Changes the mode of a tier.
    ///
    /// # Errors
    /// If it does not answer, or rejects the request.
    pub fn change(&self, tier: &str, mode: Mode) -> Result<()> {
        change_tier(&self.socket, tier, mode)
    }

    /// Returns a number of its status document.
    ///
    /// # Panics
    /// If there is none at `pointer`.
    #[must_use]
    pub fn number(&self, pointer: &str) -> u64 {
        let status = self.status();
        let number = status.pointer(pointer).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no number at {pointer} in {status}"))
    }

    /// Files in its shard directory, sorted by name.
    ///
    /// # Panics
    /// If the directory cannot be listed.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(self.cache.join("shards")).expect("the directory exists");
        let mut files: Vec<_> = listed.map(|entry| entry.expect("listable").path()).collect();
        files.sort();
        files
    }

    /// Data file of the shard fetched from an object of this name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn data_file(&self, name: &str) -> PathBuf {
        let mine = |path: &PathBuf| path.to_string_lossy().ends_with(&format!("-{name}"));
        self.files().into_iter().find(mine).expect("the shard is in the cache")
    }

    /// Stops it and waits.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if let Some((stop, serving)) = self.serving.take() {
            // Fails if the daemon ended by itself.
            let _ = stop.send(());
            let ended = runtime.block_on(serving);
            if !std::thread::panicking() {
                assert!(ended.is_ok(), "the daemon ended badly: {ended:?}");
            }
        }
        let within = runtime.enter();
        drop(self.node.take());
        drop(within);
        drop(runtime);
    }
}

/// Connects to the daemon at `socket` as an admin.
///
/// # Errors
/// If it does not answer.
pub fn admin(socket: &Path) -> Result<Admin> {
    Admin::of(Connection::open(socket, &Deadline::after(PATIENCE))?)
}

/// Starts work with `body` at `path` and returns its progress documents.
///
/// # Errors
/// If the daemon does not answer, or the work fails.
pub fn followed(socket: &Path, path: &str, body: &Value) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    let told = |told| {
        all.push(told);
        Ok(())
    };
    admin(socket)?.follow(path, body, told, &Deadline::after(PATIENCE))?;
    Ok(all)
}

/// Evicts every copy of a shard, or only counts them; returns the number of copies.
///
/// # Errors
/// If the daemon does not answer, or rejects the request.
pub fn forget(socket: &Path, url: &str, dry: bool) -> Result<u64> {
    let path = format!("/api/v1/evictions?dry_run={dry}");
    let asked = json!({ "urls": [url] });
    let evicted: Value = admin(socket)?.post(&path, &asked, &Deadline::after(PATIENCE))?;
    let copies = evicted.pointer("/0/copies").and_then(Value::as_u64);
    copies.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("not a count: {evicted}")))
}

/// Changes the mode of a tier.
///
/// # Errors
/// If the daemon does not answer, or rejects the request.
pub fn change_tier(socket: &Path, tier: &str, mode: Mode) -> Result<()> {
    let asked = json!({ "mode": mode });
    let path = format!("/api/v1/tiers/{tier}");
    admin(socket)?.put::<Value>(&path, &asked, &Deadline::after(PATIENCE)).map(drop)
}

/// The status document of the daemon at `socket`.
///
/// # Panics
/// If it does not answer.
#[must_use]
pub fn status(socket: &Path) -> Value {
    daemon_status(socket).expect("the daemon answers")
}

/// The status document of the daemon at `socket`, if it runs.
///
/// # Errors
/// If it does not answer.
pub fn daemon_status(socket: &Path) -> Result<Value> {
    admin(socket)?.get("/api/v1/status", &Deadline::after(PATIENCE))
}
