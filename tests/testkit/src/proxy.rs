//! A proxy in front of any HTTP server that injects faults of networks and stores.
//!
//! Requests without a planned fault pass unchanged, so signatures stay valid and ETags are
//! the server's. A planned fault meets a known request at a known byte, and chance comes from a
//! seed. Requests, bytes and faults are counted.
//!
//! Rules change at run time: new rules replace the old ones and release stalled answers.

mod body;
mod forward;
mod rules;
mod traffic;

use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Doing, Result};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use forward::Downstream;
pub use rules::{Fault, RetryAfter, When};
use rules::{Rule, Rules};
pub use traffic::Traffic;

use crate::tally::Tally;

/// Threads that forward: one sends a body while another answers.
const WORKERS: usize = 2;

/// Longest wait for a test's hook at the end: nothing else in a proxy blocks.
const HOOKS_END: Duration = Duration::from_secs(1);

/// A running proxy. It stops, with every connection, when dropped.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// State shared by all connections.
struct Shared {
    upstream: SocketAddr,
    rules: Rules,
    tally: Tally<Traffic>,
}

impl FaultProxy {
    /// Starts a proxy of `upstream` on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If there is no free port or no thread.
    pub fn start(upstream: SocketAddr) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("proxy")
            .enable_all()
            .build()
            .doing("start a runtime")?;
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).doing("listen")?;
        listener.set_nonblocking(true).doing("listen")?;
        let address = listener.local_addr().doing("listen")?;
        let listener = {
            let _runtime = runtime.enter();
            TcpListener::from_std(listener).doing("listen")?
        };
        let shared = Shared { upstream, rules: Rules::new(), tally: Tally::default() };
        let shared = Arc::new(shared);
        runtime.spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, runtime: Some(runtime) })
    }

    /// Address of the proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of the proxy, such as `http://127.0.0.1:4711`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the faults; one request may meet several. Answers stalled by earlier faults are
    /// released.
    pub fn set(&self, faults: impl IntoIterator<Item = (When, Fault)>) {
        self.shared.rules.set(faults.into_iter().map(|(when, fault)| Rule::new(when, fault)));
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.set([]);
    }

    /// Counts of the traffic so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.tally.now()
    }

    /// Waits until the traffic satisfies `condition`.
    ///
    /// # Panics
    /// If it does not within a minute: the test has failed.
    pub fn wait_until(&self, condition: impl Fn(&Traffic) -> bool) {
        self.shared.tally.wait_until(condition);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own: tests drop a proxy where nothing may block.
            let ending = std::thread::spawn(move || runtime.shutdown_timeout(HOOKS_END));
            drop(ending.join());
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(connection(socket, shared));
    }
}

async fn connection(socket: TcpStream, shared: Arc<Shared>) {
    shared.tally.add(|traffic| traffic.connections += 1);
    let _open = shared.tally.present(|traffic| &mut traffic.open);
    // A second descriptor of the socket, to turn its end into a reset.
    let Ok((downstream, socket)) = Downstream::of(socket) else { return };
    let downstream = Arc::new(downstream);
    let service = service_fn(|request| {
        forward::answer(Arc::clone(&shared), Arc::clone(&downstream), request)
    });
    let serving = http1::Builder::new()
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(socket), service);
    // Connections break by injected faults.
    drop(serving.await);
}
