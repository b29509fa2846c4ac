//! `forebay daemon`: a node daemon from a configuration file, or a user's embedded one.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use forebay_admin::HttpListener;
use forebay_client::{Capacity, RuntimeDirectory, cache_directory, wanted_capacity};
use forebay_config::Config;
use forebay_config::embedded;
use forebay_config::settings::AccessConfig;
use forebay_config::settings::HttpConfig;
use forebay_config::settings::LeasesConfig;
use forebay_config::settings::ListenConfig;
use forebay_config::settings::LogFormat;
use forebay_config::settings::{
    LOOK_AFTER, NodeConfig, NodeTier, leases_directory, state_directory,
};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_node::Node;
use forebay_serve::logs;
use forebay_serve::supervisor;
use forebay_serve::{Listener, serve};
use forebay_source::{Limits, Rules};
use forebay_store::{Class, LocalFiles};
use forebay_uring::EngineChoice;
use forebay_wire::socket::SocketPath;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Done, Failure, Launcher};

/// The node daemon's configuration unless `--config` names another.
pub(super) const CONFIG: &str = "/etc/forebay/forebay.toml";

/// A predecessor that is on its way out gives its lock up within this time, or it hangs.
const TAKE_OVER: Duration = Duration::from_secs(15);

/// Time for running work (a removal, a cancelled indexer) to end at shutdown before it is cut off:
/// everything on disk is safe at any instant.
const WIND_UP: Duration = Duration::from_secs(5);

/// Interval at which a process that waits for the lock checks if its holder serves: short beside
/// the seconds in which a daemon starts.
const LOOK: Duration = Duration::from_millis(20);

/// Run the daemon in the foreground.
///
/// Without `--embedded` it is the node's daemon, which reads its configuration file, and reads it
/// again on SIGHUP: jobs go on, and feel the change at once. A file with a mistake changes nothing
/// and is told of in the log; `forebay config apply` does the same with an answer. Training jobs
/// start an embedded daemon by themselves where no node daemon answers.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Run as this user's embedded daemon: no configuration file, gone after it idles.
    #[arg(long)]
    embedded: bool,
    /// Bytes the embedded cache may hold, such as 200GB; nine tenths of the free space at most
    /// [default: half of the free space, 500 GB at most] [env: FOREBAY_CAPACITY].
    // Not read by clap: it would refuse the variable, which is for the embedded daemon, beside a
    // node daemon's --config.
    #[arg(long, value_name = "SIZE", requires = "embedded", value_parser = forebay_client::capacity)]
    capacity: Option<ByteSize>,
    /// Seconds without a job after which an embedded daemon ends.
    #[arg(long, value_name = "SECONDS", env = "FOREBAY_IDLE", default_value_t = 300)]
    idle: u64,
    /// The I/O engine: `auto` takes io_uring where the kernel allows it.
    #[arg(long, value_name = "ENGINE", env = "FOREBAY_IO", default_value = "auto")]
    io: Io,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum Io {
    /// io_uring if it works, else threads.
    Auto,
    /// io_uring, or an error.
    Ring,
    /// A pool of threads.
    Threads,
}

impl From<Io> for EngineChoice {
    fn from(io: Io) -> Self {
        match io {
            Io::Auto => Self::Auto,
            Io::Ring => Self::Ring,
            Io::Threads => Self::Threads,
        }
    }
}

/// Endpoints of a daemon, and the condition for its end.
struct Startup {
    node: NodeConfig,
    /// The file that it goes by, and what that said.
    governed: Option<(PathBuf, Config)>,
    socket: PathBuf,
    /// Other sockets beside it.
    listens: Vec<ListenConfig>,
    /// TCP settings, if any.
    http: Option<HttpConfig>,
    idle: Option<Duration>,
    /// Told once the daemon listens.
    announce: bool,
    /// Held until the process has let go of everything.
    lock: Option<File>,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let io = arguments.io.into();
    let mut place = if arguments.embedded {
        logs::begin(LogFormat::Text, embedded::log)?;
        match embedded(arguments, io, launcher)? {
            Some(place) => place,
            // The process that started the other daemon was killed meanwhile; ours finds it.
            None => return Ok(announce()?),
        }
    } else {
        node(arguments, io, launcher)?
    };
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("fb-async")
        .build()
        .doing("start the async runtime")?;
    let lock = place.lock.take();
    let lived = runtime.block_on(Box::pin(live(place)));
    runtime.shutdown_timeout(WIND_UP);
    drop(lock);
    Ok(lived?)
}

/// Shards, slabs and connections are descriptors; the usual soft limit of 1,024 is for programs
/// that use `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "failed to raise the limit on open files");
    }
}

async fn live(place: Startup) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).doing("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).doing("listen for SIGINT")?;
    // A daemon without a file has nothing to read again, and ends as any program does.
    let hangup = match place.governed {
        Some(_) => Some(signal(SignalKind::hangup()).doing("listen for SIGHUP")?),
        None => None,
    };
    let node = Node::start(place.node).await?;
    if let Some((file, config)) = place.governed {
        node.govern(&file, config);
    }
    let mut listeners = vec![Listener::bind(&place.socket)?];
    let http = match place.http {
        Some(http) => Some(HttpListener::bind(http).await?),
        None => None,
    };
    tracing::info!(socket = %place.socket.display(), "listening");
    for listen in place.listens {
        tracing::info!(socket = %listen.door.path.display(), tenant = listen.door.tenant, "listening");
        listeners.push(Listener::bind_beside(listen)?);
    }
    if place.announce {
        announce()?;
    }
    supervisor::ready().await;
    let asked_until = Cell::new(None);
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = reload_on(&node, hangup) => {}
            () = supervisor::alive() => {}
        }
        tracing::info!("stopping");
        supervisor::stopping().await;
    };
    let leave = async {
        stop.await;
        if let Some(cluster) = &node.cluster {
            asked_until.set(cluster.leave().await);
        }
    };
    // It ends with the runtime.
    let _http = http.map(|http| tokio::spawn(http.serve(node.clone())));
    serve(node.clone(), listeners, place.idle, leave).await;
    if let Some(asked_until) = asked_until.get() {
        tracing::info!("serves other nodes until they know that it left; a second signal ends it");
        tokio::select! {
            () = tokio::time::sleep_until(asked_until) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
    Ok(())
}

/// Reads the daemon's file again at each signal.
async fn reload_on(node: &Node, hangup: Option<Signal>) {
    let Some(mut hangup) = hangup else { return std::future::pending().await };
    while hangup.recv().await.is_some() {
        supervisor::reloading().await;
        let applied = node.apply(None, false).await;
        node.note_applied(&applied);
        let why_not = match &applied {
            Ok(applied) => {
                let why = applied.why_not();
                if why.is_some() {
                    // Mistakes and places, one per line.
                    applied.to_string().lines().for_each(|line| tracing::error!("{line}"));
                }
                why
            }
            Err(error) => Some(error.to_string()),
        };
        let told = match why_not {
            None => {
                let told = "reloaded the configuration".to_owned();
                tracing::info!("{told}");
                told
            }
            Some(why) => {
                let told = format!("failed to reload the configuration: {why}");
                tracing::error!("{told}");
                told
            }
        };
        supervisor::status(&told).await;
        supervisor::ready().await;
    }
}

fn node(arguments: &Arguments, io: EngineChoice, launcher: &Launcher) -> Result<Startup> {
    let config = Config::read(&arguments.config).map_err(|error| match error.kind() {
        ErrorKind::NotFound => error.advise(
            "write one with a [[tier]] (name, path, capacity), or run `forebay daemon --embedded`",
        ),
        _ => error,
    })?;
    logs::begin(config.daemon.log, std::io::stderr)?;
    let (tiers, datasets, tenants) = (config.tiers()?, config.datasets()?, config.tenants()?);
    let checkpoints = config.checkpoints()?;
    let (sources, access, http) = (config.sources()?, config.access()?, config.http()?);
    let (socket, listens, audit) = (config.socket(), config.listens()?, config.audit()?);
    if let Some(parent) = socket.parent() {
        std::fs::create_dir_all(parent).doing("make the socket's directory")?;
    }
    let cluster = config.cluster()?;
    let memory = config.daemon.memory.map_or_else(embedded::memory, |size| bytes(size) as usize);
    let leases = LeasesConfig {
        directory: leases_directory(&tiers),
        redis: config.leases.redis.clone(),
        named_by_jobs: false,
    };
    let node = NodeConfig {
        tiers,
        datasets,
        sources,
        tenants,
        checkpoints,
        memory,
        io,
        limits: Limits::default(),
        reader: super::reader::command(launcher),
        lender: super::credentials::command(launcher),
        own: false,
        opens_named: false,
        access,
        audit,
        leases,
        cluster,
        look_after: LOOK_AFTER,
        state: config.daemon.state.clone().or_else(state_directory),
        files: Arc::new(LocalFiles),
        faults: None,
    };
    let governed = Some((arguments.config.clone(), config));
    Ok(Startup { node, governed, socket, listens, http, idle: None, announce: false, lock: None })
}

/// A user's own daemon; `None` if another one serves its cache.
fn embedded(arguments: &Arguments, io: EngineChoice, launcher: &Launcher) -> Done<Option<Startup>> {
    let capacity = capacity(arguments)?;
    // A session of its own: a Ctrl-C for the trainer is not for the daemon. A process started as a
    // group leader cannot, and needs not: whoever did that separated it already.
    let _ = rustix::process::setsid();
    let cache = cache_directory()?;
    let runtime = RuntimeDirectory::of(&cache);
    runtime.make()?;
    let Some(lock) = take_over(&runtime)? else { return Ok(None) };
    let wanted = capacity;
    let capacity = embedded::capacity(&cache, wanted)?;
    runtime.note_capacity(&Capacity { wanted, bytes: capacity })?;
    let tiers = vec![NodeTier::at("cache", Class::Nvme, cache, capacity)];
    let leases =
        LeasesConfig { directory: leases_directory(&tiers), redis: None, named_by_jobs: true };
    let node = NodeConfig {
        tiers,
        datasets: Vec::new(),
        sources: Rules::default(),
        tenants: Vec::new(),
        checkpoints: Vec::new(),
        memory: embedded::memory(),
        io,
        limits: Limits::default(),
        reader: super::reader::command(launcher),
        lender: super::credentials::command(launcher),
        own: true,
        opens_named: true,
        access: AccessConfig::default(),
        audit: None,
        leases,
        cluster: None,
        look_after: LOOK_AFTER,
        // Its cache lies in the user's home, without which nothing works.
        state: None,
        files: Arc::new(LocalFiles),
        faults: None,
    };
    Ok(Some(Startup {
        node,
        governed: None,
        socket: runtime.socket(),
        listens: Vec::new(),
        http: None,
        idle: Some(Duration::from_secs(arguments.idle)),
        announce: true,
        lock: Some(lock),
    }))
}

/// The capacity asked for, by the flag or by the environment.
fn capacity(arguments: &Arguments) -> Done<Option<u64>> {
    match arguments.capacity {
        Some(size) => Ok(Some(bytes(size))),
        None => wanted_capacity().map_err(Failure::Usage),
    }
}

/// Takes the lock of the cache's daemon, waiting for one that is just ending; `None` if its holder
/// serves.
fn take_over(runtime: &RuntimeDirectory) -> Result<Option<File>> {
    let path = runtime.daemon_lock();
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = open.doing("open the daemon's lock")?;
    let (sender, taken) = mpsc::channel();
    // flock has no time limit, so a thread waits; if it waits too long the process ends with it.
    std::thread::Builder::new()
        .name("fb-lock".into())
        .spawn(move || {
            let result = flock(&lock, FlockOperation::LockExclusive).doing("take the lock");
            // A receiver that gave up has ended the process.
            let _ = sender.send(result.map(|()| lock));
        })
        .doing("start a thread")?;
    let socket = runtime.socket();
    let socket = SocketPath::of(&socket)?;
    let deadline = Instant::now() + TAKE_OVER;
    while Instant::now() < deadline {
        match taken.recv_timeout(LOOK) {
            Ok(lock) => return lock.map(Some),
            Err(_) if UnixStream::connect(socket.path()).is_ok() => return Ok(None),
            Err(_) => {}
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "another daemon of this cache hangs")
        .at("lock", path.display())
        .advise(format!("end the process that holds the lock: `fuser {}`", path.display())))
}

/// Tells whoever started us that we listen, and lets go of their pipe.
fn announce() -> Result<()> {
    let mut stdout = std::io::stdout();
    // Nobody has to listen: a person may have started the daemon by hand.
    let _ = writeln!(stdout, "ready").and_then(|()| stdout.flush());
    let null = OpenOptions::new().write(true).open("/dev/null").doing("open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).doing("close standard output")
}

fn bytes(size: ByteSize) -> u64 {
    size.as_u64()
}
