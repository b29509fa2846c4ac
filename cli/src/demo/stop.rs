//! SIGINT and SIGTERM: they end the demonstration, which removes what it made.

use forebay_bench::interrupt::Interrupt;
use forebay_error::{Doing, Error, ErrorKind, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Word of the signal that came first.
#[derive(Clone)]
pub(super) struct Stop(watch::Receiver<Option<Interrupt>>);

impl Stop {
    /// From now on these signals end the demonstration, in place of the process.
    ///
    /// # Errors
    /// `Unavailable` if signals cannot be listened for.
    pub(super) fn watch() -> Result<Self> {
        let listen = |kind| signal(kind).doing("listen for signals");
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let (told, came) = watch::channel(None);
        drop(tokio::spawn(async move {
            let by = tokio::select! {
                _ = interrupt.recv() => Interrupt::Int,
                _ = terminate.recv() => Interrupt::Term,
            };
            // Nobody listens once the demonstration is over.
            let _ = told.send(Some(by));
        }));
        Ok(Self(came))
    }

    /// Waits for a signal, and returns the error that it is.
    pub(super) async fn came(&mut self) -> Error {
        if self.0.wait_for(Option::is_some).await.is_err() {
            // Whoever listened is gone, with the runtime.
            std::future::pending::<()>().await;
        }
        ended()
    }

    /// Asked for between any two steps of work that does not wait.
    ///
    /// # Errors
    /// `Closed` once a signal came.
    pub(super) fn check(&self) -> Result<()> {
        if self.0.borrow().is_some() { Err(ended()) } else { Ok(()) }
    }

    /// Exit code of the signal that came, if one did.
    pub(super) fn code(&self) -> Option<u8> {
        self.0.borrow().map(Interrupt::exit_code)
    }
}

/// Returns the error of work that a signal ended.
pub(super) fn ended() -> Error {
    Error::new(ErrorKind::Closed, "a signal ended the demonstration")
}
