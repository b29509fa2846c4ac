//! Asks a daemon for its state, in a thread of its own.
//!
//! Its rule: nobody waits for it: a daemon may hang, and whoever looks at it wants to scroll, or to go.

use std::sync::mpsc;

use forebay_client::{Admin, Deadline};
use forebay_error::{Doing, Error, ErrorKind, Result};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, channel};

use super::super::{ANSWER_TIMEOUT, Done, Failure, Target};

/// A daemon that is asked again and again.
pub(super) struct Asking<'a> {
    target: &'a Target,
    /// None before it answered, and once it does not.
    admin: Option<Admin>,
}

impl<'a> Asking<'a> {
    pub(super) fn of(target: &'a Target) -> Self {
        Self { target, admin: None }
    }

    /// Its state now. After a failure it is looked for anew: another daemon may be there.
    pub(super) fn ask(&mut self) -> Done<Value> {
        let admin = match self.admin.take() {
            Some(admin) => admin,
            None => self.target.admin_if_running()?,
        };
        let told = admin.get("/api/v1/status", &Deadline::after(ANSWER_TIMEOUT));
        let told = told.map_err(Failure::of_request)?;
        self.admin = Some(admin);
        Ok(told)
    }
}

/// A thread that asks. It is left behind at the end: it may be waiting for a daemon that hangs.
pub(super) struct Asker {
    asks: mpsc::Sender<()>,
    answers: Receiver<Done<Value>>,
}

impl Asker {
    pub(super) fn started(target: &Target) -> Result<Self> {
        let (asks, asked) = mpsc::channel();
        let (answer, answers) = channel(1);
        let target = target.clone();
        let asks_on = move || {
            let mut asking = Asking::of(&target);
            while asked.recv().is_ok() && answer.blocking_send(asking.ask()).is_ok() {}
        };
        let thread = std::thread::Builder::new().name("fb-top".to_owned()).spawn(asks_on);
        thread.doing("start a thread that asks the daemon")?;
        Ok(Self { asks, answers })
    }

    /// Has it ask once more.
    pub(super) fn ask(&self) -> Result<()> {
        self.asks.send(()).map_err(|_| gone())
    }

    /// What it was told next.
    pub(super) async fn answer(&mut self) -> Done<Value> {
        self.answers.recv().await.unwrap_or_else(|| Err(gone().into()))
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Closed, "what asks the daemon has ended")
}
