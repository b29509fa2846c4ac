//! A program that runs until its test drops it.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Doing, Error, ErrorKind, Result};

/// Limit of a start: the slowest, a storage cluster, takes half a minute on two idle cores.
const PATIENCE: Duration = Duration::from_secs(240);

/// Pause between two checks: short beside any start, long beside the cost of a check.
const LOOK: Duration = Duration::from_millis(20);

/// Bytes of a log in an error.
const LOG_BYTES: usize = 2000;

/// Script that runs a command in a session of its own and ends the session with its standard input:
/// when this process drops its end, or dies. SIGTERM comes first, so that the command can wait for
/// its children.
const UNTIL_EOF: &str = r#"
exec 3<&0
setsid "$@" </dev/null 3<&- &
server=$!
{ read -r _ <&3
  kill -TERM -- "-$server"
  read -r -t 10 _ <> <(:)
  kill -KILL -- "-$server"; } 2>/dev/null &
watcher=$!
exec 3<&-
wait "$server"
status=$?
kill "$watcher" 2>/dev/null
kill -KILL -- "-$server" 2>/dev/null
wait
exit "$status"
"#;

/// A running program.
pub(super) struct Service {
    /// Shell that watches it.
    shell: Child,
    log: PathBuf,
    name: String,
}

impl Service {
    /// Starts `command`, whose output goes to the file `log`.
    pub(super) fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let out = File::create(log).doing("write a server's log")?;
        let mut shell = Command::new("bash");
        shell.args(["-c", UNTIL_EOF, name]).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        shell.stdin(Stdio::piped()).stderr(out.try_clone().doing("write a server's log")?);
        let shell = shell.stdout(out).spawn().doing("start a server")?;
        Ok(Self { shell, log: log.to_owned(), name: name.to_owned() })
    }

    /// Waits until `is_ready`.
    pub(super) fn wait_until(&mut self, mut is_ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_ready() {
            let ended = self.shell.try_wait().doing("look after a server")?;
            if ended.is_some() || Instant::now() > deadline {
                let what = if ended.is_some() { "ended" } else { "does not come up" };
                return Err(Error::new(ErrorKind::Unavailable, format!("{} {what}", self.name))
                    .at("log", self.told()));
            }
            std::thread::park_timeout(LOOK);
        }
        Ok(())
    }

    /// Waits until `address` accepts connections.
    pub(super) fn wait_for(&mut self, address: SocketAddr) -> Result<()> {
        self.wait_until(|| TcpStream::connect(address).is_ok())
    }

    /// End of its output.
    pub(super) fn told(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_BYTES)..]).into_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // It was killed: the exit status says nothing.
        let _ = self.shell.wait();
    }
}

/// Ports of servers: below the ports that connections take (32768 and up, `ip(7)`), above those
/// that Ceph's daemons choose by themselves (up to 7568).
const PORTS: Range<u16> = 20_000..32_000;

/// Returns a free port that no other test takes while this process runs. A server may bind it late:
/// the gateway of a storage cluster does after half a minute.
pub(super) fn free_port() -> Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static TAKEN: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

    let len = PORTS.end - PORTS.start;
    // Processes begin at different places, so that they rarely meet.
    let start = (std::process::id().wrapping_mul(131) % u32::from(len)) as u16;
    for _ in 0..len {
        let place = NEXT.fetch_add(1, Ordering::Relaxed) % len;
        let port = PORTS.start + (start + place) % len;
        // The kernel frees an abstract name when its process ends in any way.
        let name = UnixAddr::from_abstract_name(format!("forebay-test-port-{port}"));
        let Ok(taken) = UnixDatagram::bind_addr(&name.doing("name a port")?) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(taken);
            return Ok((Ipv4Addr::LOCALHOST, port).into());
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "all ports of test servers are taken"))
}

/// Error for a missing server, with advice.
pub(super) fn missing(program: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{program} is not installed"))
        .advise("run `make setup-tests`, which installs the servers that tests need")
}

/// Runs a command to its end.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(missing(&program));
        }
        out => out.doing("run a program")?,
    };
    if out.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    Err(Error::new(ErrorKind::Unavailable, format!("{program} failed")).at("stderr", told))
}

/// Path of a file in the checkout's folder of tools, which setup fills.
///
/// # Errors
/// `NotFound` with advice if it is missing.
pub fn tool(path: &str) -> Result<PathBuf> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let tool = checkout.unwrap_or(Path::new("/")).join(".tools").join(path);
    if tool.exists() { Ok(tool) } else { Err(missing(&tool.display().to_string())) }
}
