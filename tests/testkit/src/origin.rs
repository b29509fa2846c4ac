//! An object store on loopback that counts what it serves and fails on demand.
//!
//! Signed requests go to `s3s` and `s3s-fs`, which check signatures and speak S3. Plain GET
//! and HEAD are answered from the same directory as by a web server. Counts and faults apply to
//! both.
//!
//! Directory layout: `DIR/<bucket>/<key>`. A *key* in this interface is `bucket/key`.

mod answer;
mod body;
mod counts;
mod etag;
mod faults;
mod plain;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use forebay_error::{Doing, Error, ErrorKind, Result};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use answer::Origin;
pub use counts::Counts;
use faults::Faults;

/// Access key that [`S3Server::start`] accepts.
pub const ACCESS_KEY: &str = "AK";
/// Secret key that [`S3Server::start`] accepts.
pub const SECRET_KEY: &str = "SK";

/// Threads that answer: enough for eight parallel parts on a small machine.
const WORKERS: usize = 2;

/// A running server. It stops, with every connection, when dropped.
pub struct S3Server {
    address: SocketAddr,
    origin: Arc<Origin>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Serves `dir` on a free port of 127.0.0.1 for [`ACCESS_KEY`] and [`SECRET_KEY`].
    ///
    /// # Errors
    /// If the directory or the socket cannot be opened.
    pub fn start(dir: &Path) -> Result<Self> {
        Self::start_at(dir, (Ipv4Addr::LOCALHOST, 0).into(), ACCESS_KEY, SECRET_KEY)
    }

    /// Serves `dir` on `address` for the given key pair.
    ///
    /// # Errors
    /// If the directory or the socket cannot be opened.
    pub fn start_at(dir: &Path, address: SocketAddr, access: &str, secret: &str) -> Result<Self> {
        let origin = Arc::new(Origin::new(dir, access, secret)?);
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = mpsc::channel();
        let serving = Arc::clone(&origin);
        let thread = std::thread::Builder::new().name("origin".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(WORKERS)
                .enable_all()
                .build();
            match runtime.doing("start a runtime") {
                Ok(runtime) => runtime.block_on(serve(serving, address, ready, stopped)),
                Err(error) => drop(ready.send(Err(error))),
            }
        });
        let thread = thread.doing("start the origin's thread")?;
        let started = started
            .recv()
            .map_err(|_| Error::new(ErrorKind::Closed, "the origin's thread ended early"))?;
        Ok(Self { address: started?, origin, stop: Some(stop), thread: Some(thread) })
    }

    /// Address of the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL such as `http://127.0.0.1:4711`: an S3 endpoint, or the base of plain URLs.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Counts of requests and bytes so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.origin.counts.now()
    }

    /// Waits until the counts satisfy `condition`.
    ///
    /// # Panics
    /// If they do not within a minute: the test has failed.
    pub fn wait_until(&self, condition: impl Fn(&Counts) -> bool) {
        self.origin.counts.wait_until(condition);
    }

    /// Holds back the bytes of `key` from object offset `from` on in every GET, until
    /// [`S3Server::release`].
    pub fn stall(&self, key: &str, from: u64) {
        self.faults().change(|rules| {
            rules.stalls.insert(key.to_owned(), from);
        });
    }

    /// Releases the bytes of `key`.
    pub fn release(&self, key: &str) {
        self.faults().change(|rules| {
            rules.stalls.remove(key);
        });
    }

    /// Breaks the connection of the next `times` GETs of `key` after `bytes` body bytes each.
    pub fn cut(&self, key: &str, bytes: u64, times: u32) {
        self.faults().change(|rules| {
            rules.cuts.insert(key.to_owned(), (bytes, times));
        });
    }

    /// Breaks every body of `key` at its current byte (`true`), or lets bodies pass again
    /// (`false`).
    pub fn break_off(&self, key: &str, broken: bool) {
        self.faults().change(|rules| mark(&mut rules.broken, key, broken));
    }

    /// Answers the next `requests` requests, of any kind, with `status`.
    pub fn fail_next(&self, requests: u32, status: u16) {
        self.faults().change(|rules| rules.fail = (requests, status));
    }

    /// Answers requests for `key` with 403 (`true`), or serves them again (`false`).
    pub fn deny(&self, key: &str, denied: bool) {
        self.faults().change(|rules| mark(&mut rules.denied, key, denied));
    }

    fn faults(&self) -> &Faults {
        &self.origin.faults
    }
}

/// Adds or removes a key.
fn mark(keys: &mut BTreeSet<String>, key: &str, is_among: bool) {
    match is_among {
        true => keys.insert(key.to_owned()),
        false => keys.remove(key),
    };
}

impl Drop for S3Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the server's thread is printed already; the test checks its own results.
            drop(thread.join());
        }
    }
}

async fn serve(
    origin: Arc<Origin>,
    address: SocketAddr,
    ready: mpsc::Sender<Result<SocketAddr>>,
    stopped: oneshot::Receiver<()>,
) {
    let bound = TcpListener::bind(address).await.and_then(|l| Ok((l.local_addr()?, l)));
    let listener = match bound.doing("listen").map_err(|error| error.at("address", address)) {
        Ok((address, listener)) => {
            drop(ready.send(Ok(address)));
            listener
        }
        Err(error) => return drop(ready.send(Err(error))),
    };
    let accept = async {
        while let Ok((socket, _)) = listener.accept().await {
            // Otherwise a body waits for the client's delayed acknowledgement of its head: 40 ms.
            drop(socket.set_nodelay(true));
            let origin = Arc::clone(&origin);
            let service = service_fn(move |request| Arc::clone(&origin).answer(request));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            // Connections break by injected faults.
            tokio::spawn(async move { drop(connection.await) });
        }
    };
    tokio::select! {
        () = accept => {}
        _ = stopped => {}
    }
}
