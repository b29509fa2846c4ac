//! SIGINT and SIGTERM: they end the demonstration, which removes what it made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use forebay_error::{Doing, Error, ErrorKind, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Exit codes that shells expect after SIGINT and SIGTERM.
const CODES: [u8; 2] = [130, 143];

/// Word of the signals that came.
#[derive(Clone)]
pub(super) struct Stop {
    came: watch::Receiver<bool>,
    flag: Arc<AtomicBool>,
    code: Arc<AtomicU8>,
}

impl Stop {
    /// From now on these signals end the demonstration, in place of the process.
    ///
    /// # Errors
    /// `Unavailable` if signals cannot be listened for.
    pub(super) fn watch() -> Result<Self> {
        let listen = |kind| signal(kind).doing("listen for signals");
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let (told, came) = watch::channel(false);
        let stop = Self { came, flag: Arc::default(), code: Arc::default() };
        let (flag, code) = (stop.flag.clone(), stop.code.clone());
        drop(tokio::spawn(async move {
            let by = tokio::select! {
                _ = interrupt.recv() => CODES[0],
                _ = terminate.recv() => CODES[1],
            };
            code.store(by, Ordering::Relaxed);
            flag.store(true, Ordering::Relaxed);
            // Nobody listens once the demonstration is over.
            let _ = told.send(true);
        }));
        Ok(stop)
    }

    /// Waits for a signal, and returns the error that it is.
    pub(super) async fn came(&mut self) -> Error {
        if self.came.wait_for(|came| *came).await.is_err() {
            // Whoever listened is gone, with the runtime.
            std::future::pending::<()>().await;
        }
        Error::new(ErrorKind::Closed, "a signal ended the demonstration")
    }

    /// True once a signal came.
    pub(super) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Exit code of the signal that came, if one did.
    pub(super) fn code(&self) -> Option<u8> {
        self.flag.load(Ordering::Relaxed).then(|| self.code.load(Ordering::Relaxed))
    }
}
