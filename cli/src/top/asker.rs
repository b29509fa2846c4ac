//! Asks a daemon for its state, in a thread of its own.
//!
//! Nothing waits for this thread. A daemon may hang while its viewer scrolls, or leaves.

use std::sync::mpsc;

use forebay_api::status::Status;
use forebay_client::{Admin, Deadline};
use forebay_error::{Doing, Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, channel};

use super::super::{ANSWER_TIMEOUT, Done, Failure, Target};

/// A daemon that is asked again and again.
pub(super) struct Asking<'a> {
    target: &'a Target,
    /// None before the first answer, and after a failure.
    admin: Option<Admin>,
}

impl<'a> Asking<'a> {
    pub(super) fn of(target: &'a Target) -> Self {
        Self { target, admin: None }
    }

    /// Returns the daemon's state. After a failure the daemon is looked for again: another may be
    /// there.
    pub(super) fn ask(&mut self) -> Done<Status> {
        self.get()
    }

    /// Returns the daemon's state as the daemon wrote it.
    pub(super) fn ask_as_json(&mut self) -> Done<Value> {
        self.get()
    }

    fn get<T: DeserializeOwned>(&mut self) -> Done<T> {
        let admin = match self.admin.take() {
            Some(admin) => admin,
            None => self.target.admin_if_running()?,
        };
        let answer = admin.get("/api/v1/status", &Deadline::after(ANSWER_TIMEOUT));
        let answer = answer.map_err(Failure::of_request)?;
        self.admin = Some(admin);
        Ok(answer)
    }
}

/// A thread that asks. It is left behind at the end: it may be waiting for a daemon that hangs.
pub(super) struct Asker {
    requests: mpsc::Sender<()>,
    answers: Receiver<Done<Status>>,
}

impl Asker {
    pub(super) fn started(target: &Target) -> Result<Self> {
        let (requests, requested) = mpsc::channel();
        let (answer, answers) = channel(1);
        let target = target.clone();
        let run = move || {
            let mut asking = Asking::of(&target);
            while requested.recv().is_ok() && answer.blocking_send(asking.ask()).is_ok() {}
        };
        let thread = std::thread::Builder::new().name("fb-top".to_owned()).spawn(run);
        thread.doing("start a thread that asks the daemon")?;
        Ok(Self { requests, answers })
    }

    /// Requests one more answer.
    pub(super) fn ask(&self) -> Result<()> {
        self.requests.send(()).map_err(|_| gone())
    }

    /// Waits for the next answer.
    pub(super) async fn answer(&mut self) -> Done<Status> {
        self.answers.recv().await.unwrap_or_else(|| Err(gone().into()))
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Closed, "the thread that asks the daemon has ended")
}
