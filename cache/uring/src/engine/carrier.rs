//! Interface of an engine to the rest of the crate: threads that carry out operations.
//!
//! Engines differ only in how they wait for the kernel. The meaning of an operation, short
//! transfers and replies are handled outside, in [`super::queue`] and [`super::flight`].

use std::convert::Infallible;
use std::sync::{Arc, Mutex, mpsc};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::event::EventfdFlags;

use super::Running;
use super::config::EngineConfig;
use super::node::Home;
use super::queue::Bell;
use super::report::EngineKind;
use super::shared::Shared;

/// One thread's way to carry orders out. Unless it says otherwise, that thread is the only one and
/// keeps a read of an eventfd in flight.
pub(super) trait Carrier: Sized {
    /// Threads for `depth` operations at once; each makes a carrier of its own.
    fn threads(_depth: u32) -> u32 {
        1
    }

    /// Operations that all of them have with the kernel at most.
    fn in_flight(depth: u32) -> u32 {
        depth
    }

    /// Creates the bell that wakes those threads.
    fn bell() -> Result<Bell> {
        // Blocking: a ring polls it. A non-blocking one would answer EAGAIN instead of waiting.
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).doing("create an eventfd")?;
        Ok(Bell::Event(event))
    }

    /// A carrier for the calling thread, which is the one that will run it.
    fn new(shared: Arc<Shared>, depth: u32) -> Result<Self>;

    /// Carries orders out until the queue is closed and everything in it and in flight is over.
    fn run(self);
}

/// Starts an engine's threads and waits until each of them is ready.
pub(super) fn launch<C: Carrier>(config: &EngineConfig, kind: EngineKind) -> Result<Running> {
    let depth = config.depth;
    let shared = Shared::new(config, kind, C::in_flight(depth), C::bell()?);
    let home = config.near.as_deref().and_then(Home::near).map(Arc::new);
    let count = C::threads(depth);
    let (report, ready) = mpsc::sync_channel(count as usize);
    // From here on a failure stops and joins the threads that run already.
    let (alive, ended) = mpsc::channel::<Infallible>();
    let threads = Vec::with_capacity(count as usize);
    let mut running = Running { shared, threads, ended: Mutex::new(ended) };
    for _ in 0..count {
        let (shared, home, report) = (Arc::clone(&running.shared), home.clone(), report.clone());
        let alive = alive.clone();
        let body = move || {
            // Dropped with the thread.
            let _alive = alive;
            if let Some(home) = &home {
                settle(home, &shared);
            }
            match C::new(Arc::clone(&shared), depth) {
                Ok(carrier) => {
                    let _end = Abandon(shared);
                    // `launch` reads as many messages as there are threads, or has failed.
                    let _sent = report.send(Ok(()));
                    carrier.run();
                }
                Err(error) => drop(report.send(Err(error))),
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("disk-{}", config.name))
            .spawn(body)
            .doing("start a disk engine thread")?;
        running.threads.push(thread);
    }
    drop((report, alive));
    for _ in 0..count {
        ready.recv().map_err(|_| {
            Error::new(ErrorKind::Unavailable, "a disk engine's thread ended at its start")
        })??;
    }
    Ok(running)
}

/// Keeps the calling thread on its node, before it has memory or a ring. Where the kernel refuses,
/// the engine runs anywhere, as it would without being asked.
fn settle(home: &Home, shared: &Shared) {
    match home.pin() {
        Ok(()) => shared.settled(home.node),
        Err(error) => {
            tracing::warn!(engine = shared.name, node = home.node, %error, "a disk engine cannot run on its NUMA node");
        }
    }
}

/// Ends what is queued when a thread ends, however it ends. All threads of an engine end together:
/// when the queue is closed and empty, or because one of them panicked and the engine is broken.
struct Abandon(Arc<Shared>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.queue.abandon();
    }
}
