//! A proxy in front of any HTTP server that makes the faults of a bad network and of a bad store.
//!
//! Whatever no fault is planned for passes as it came, so that signatures stay valid and
//! ETags stay the server's own; a planned fault meets a known request, at a known byte where it has
//! one, and chance comes from a seed. What passed, and what was done to it, is counted.
//!
//! Rules change at run time: those that are set replace those before, and let go of what was held back.

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

/// Threads that forward: one is busy with a body while another answers.
const WORKERS: usize = 2;

/// Nothing in a proxy blocks, but a hook of the test's may: it is not waited for any longer.
const HOOKS_END: Duration = Duration::from_secs(1);

/// A running proxy. It stops, with every connection, when dropped.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// What connections have in common.
struct Shared {
    upstream: SocketAddr,
    rules: Rules,
    tally: Tally<Traffic>,
}

impl FaultProxy {
    /// Stands in front of `upstream`, on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If there is no port or no thread to be had.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, such as `http://127.0.0.1:4711`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on these faults, and no others, meet requests; one request may meet several. What
    /// earlier ones hold back is let go.
    pub fn set(&self, faults: impl IntoIterator<Item = (When, Fault)>) {
        self.shared.rules.set(faults.into_iter().map(|(when, fault)| Rule::new(when, fault)));
    }

    /// No more faults.
    pub fn clear(&self) {
        self.set([]);
    }

    /// What has passed so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.tally.now()
    }

    /// Waits until what has passed satisfies `condition`.
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
            // Not here: tests drop it where nothing may block.
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
    // Another descriptor of the same socket, by which its end can be made a reset.
    let Ok((downstream, socket)) = Downstream::of(socket) else { return };
    let downstream = Arc::new(downstream);
    let service = service_fn(|request| {
        forward::answer(Arc::clone(&shared), Arc::clone(&downstream), request)
    });
    let serving = http1::Builder::new()
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(socket), service);
    // A connection that breaks is what the faults are for.
    drop(serving.await);
}
