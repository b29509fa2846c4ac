//! A daemon scripted by a test, for messages that a real one sends only rarely.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use forebay_client::Address;
use forebay_error::ErrorKind;
use forebay_wire::PROTOCOL;
use forebay_wire::frame::{self, Receiver};
use forebay_wire::message::{Batch, Bytes, Member, Opened, Progress, Reply, Request, Sample};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;

use crate::patience::{PATIENCE, eventually};

/// A daemon's socket served by a test.
pub struct ScriptedDaemon {
    listener: UnixListener,
    directory: TempDir,
}

/// Connection of one trainer to a scripted daemon.
pub struct TrainerConnection {
    socket: UnixStream,
    receiver: Receiver,
}

impl Default for ScriptedDaemon {
    fn default() -> Self {
        Self::new()
    }
}

impl ScriptedDaemon {
    /// A daemon that listens and accepts nothing yet.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn new() -> Self {
        let directory = TempDir::new().expect("a temp directory can be made");
        let listener = UnixListener::bind(directory.path().join("d.sock")).expect("it is empty");
        listener.set_nonblocking(true).expect("a socket may be asked not to block");
        Self { listener, directory }
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("d.sock")
    }

    /// Address of its socket.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::Unix(self.socket())
    }

    /// Fills its queue of connections, so that no further one is accepted while the returned ones
    /// live.
    ///
    /// # Panics
    /// If the queue cannot be cut to one place.
    #[must_use]
    pub fn fill_line(&self) -> UnixStream {
        rustix::net::listen(&self.listener, 0).expect("a line may be cut");
        UnixStream::connect(self.socket()).expect("one place is left")
    }

    /// Accepts the next connection.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn accept(&self) -> TrainerConnection {
        let mut accepted = None;
        eventually("a trainer connects", || {
            accepted = self.try_accept();
            accepted.is_some()
        });
        accepted.expect("waited for just above")
    }

    /// Accepts a connection, if there is one.
    ///
    /// # Panics
    /// If the socket takes no time limit.
    #[must_use]
    pub fn try_accept(&self) -> Option<TrainerConnection> {
        let (socket, _) = self.listener.accept().ok()?;
        // A silent trainer fails its test instead of hanging it.
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes a time limit");
        Some(TrainerConnection { socket, receiver: Receiver::default() })
    }
}

impl TrainerConnection {
    /// Receives the trainer's next request, skipping what it says of each wait.
    ///
    /// # Panics
    /// If there is none.
    pub fn request(&mut self) -> Request {
        loop {
            match self.receive() {
                Request::Progress(_) | Request::Explain { .. } => {}
                other => return other,
            }
        }
    }

    /// Receives the trainer's next progress report, skipping returned slots.
    ///
    /// # Panics
    /// If it sends anything else.
    pub fn progress(&mut self) -> Progress {
        loop {
            match self.receive() {
                Request::Progress(progress) => return *progress,
                Request::Release { .. } | Request::Explain { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn receive(&mut self) -> Request {
        self.receiver.receive(&self.socket).expect("the trainer asks")
    }

    /// Sends `reply`.
    ///
    /// # Panics
    /// If the trainer is gone.
    pub fn say(&mut self, reply: &Reply) {
        self.send(&frame::encode(reply).expect("a reply fits a frame"), None);
    }

    /// Waits for the end of the connection; true once the trainer closed it.
    pub fn ends(&mut self) -> bool {
        loop {
            match self.receiver.receive::<Request>(&self.socket) {
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::Closed,
            }
        }
    }

    /// Answers the greeting.
    ///
    /// # Panics
    /// If the trainer does anything else.
    pub fn greet(&mut self) {
        self.greet_in(PROTOCOL);
    }

    /// Answers the greeting in another protocol.
    ///
    /// # Panics
    /// If the trainer does anything else.
    pub fn greet_in(&mut self, protocol: u32) {
        assert!(matches!(self.request(), Request::Hello { .. }));
        let (release, pid) = ("scripted".to_owned(), std::process::id());
        self.say(&Reply::Welcome { protocol, release, pid });
    }

    /// Answers the greeting and the job.
    ///
    /// # Panics
    /// If the trainer does anything else.
    pub fn register(&mut self) {
        self.greet();
        self.open();
    }

    /// Answers the job.
    ///
    /// # Panics
    /// If the trainer does anything else.
    pub fn open(&mut self) {
        assert!(matches!(self.request(), Request::Open(_)));
        self.say(&Reply::Opened(Opened { session: 1, lanes: 1, samples: None, batches: None }));
    }

    /// Receives a start, skipping returned slots; returns run, epoch and batch.
    pub fn started(&mut self) -> (u64, u64, u64) {
        loop {
            if let Request::Play { run, begin } = self.request() {
                return (run, begin.epoch, begin.batch);
            }
        }
    }

    /// Receives a start ahead of its consumer, skipping returned slots; returns run and epoch.
    pub fn started_ahead(&mut self) -> (u64, u64) {
        loop {
            if let Request::PlayAhead { run, begin } = self.request() {
                return (run, begin.epoch);
            }
        }
    }

    /// Receives the word that the consumer of a run has come, skipping returned slots; returns the
    /// run.
    pub fn asked_to_confirm(&mut self) -> u64 {
        loop {
            if let Request::Confirm { run } = self.request() {
                return run;
            }
        }
    }

    /// Sends a slab of `len` bytes, all zero.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn slab(&mut self, slab: u32, len: u64, batches: u32) {
        let memory = memfd_create("scripted-slab", MemfdFlags::CLOEXEC).expect("memory is there");
        ftruncate(&memory, len).expect("memory is there");
        let reply = frame::encode(&Reply::Slab { slab, len, batches }).expect("it fits a frame");
        self.send(&reply, Some(memory.as_fd()));
    }

    /// Sends batch `index` of `run`: one sample in a slot of `slab`, whose field `bin` has four
    /// bytes.
    pub fn batch(&mut self, run: u64, index: u64, slab: u32) {
        let sample = Sample {
            position: index,
            url: 0,
            key: format!("{run}/{index}"),
            valid: true,
            has: vec!["bin".to_owned()],
            members: Ok(vec![Member { field: 0, offset: 0, len: 4, memory: 0 }]),
        };
        self.say(&Reply::Batch(Box::new(Batch {
            run,
            index,
            slab,
            slot: index,
            fields: vec!["bin".to_owned()],
            samples: vec![sample],
            errors: Vec::new(),
            stages: Vec::new(),
            bytes: Bytes::default(),
        })));
    }

    fn send(&mut self, frame: &[u8], descriptor: Option<std::os::fd::BorrowedFd<'_>>) {
        let riders: Vec<_> = descriptor.into_iter().collect();
        let sent = frame::send(&self.socket, frame, &riders).expect("the trainer listens");
        assert_eq!(sent, frame.len(), "a short reply goes out whole");
    }
}
