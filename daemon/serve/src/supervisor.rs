//! Messages to the service manager: systemd, or any that set `NOTIFY_SOCKET`.
//!
//! A message is true when it is sent. A manager that does not listen stops nothing.

use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use sd_notify::NotifyState;

/// The manager is told so many times in the period after which it would take the daemon for dead:
/// systemd advises two.
const TOLD_PER_PERIOD: u32 = 2;

/// However short the period is: timers count no shorter times.
const LEAST: Duration = Duration::from_millis(1);

/// One that takes longer to take a word does not listen.
const PATIENCE: Duration = Duration::from_secs(1);

/// The daemon listens.
pub async fn ready() {
    tell(&[NotifyState::Ready]).await;
}

/// The daemon reads its configuration anew; [`ready`] is the end of that, however it went.
pub async fn reloading() {
    match NotifyState::monotonic_usec_now() {
        // With the time, systemd knows which of its own requests this answers
        // (`Type=notify-reload`).
        Ok(now) => tell(&[NotifyState::Reloading, now]).await,
        Err(_) => tell(&[NotifyState::Reloading]).await,
    }
}

/// Reports the last reload, as `systemctl status` shows it.
pub async fn status(text: &str) {
    tell(&[NotifyState::Status(text)]).await;
}

/// The daemon ends.
pub async fn stopping() {
    tell(&[NotifyState::Stopping]).await;
}

/// Tells again and again that the daemon is alive, if the manager wants to hear it
/// (`WatchdogSec=`).
pub async fn alive() {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return std::future::pending().await;
    };
    let mut due = tokio::time::interval((period / TOLD_PER_PERIOD).max(LEAST));
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        // However long that takes: one word at a time waits for the manager.
        if let Err(error) = send(&[NotifyState::Watchdog]).await {
            refused(&error);
        }
    }
}

async fn tell(what: &[NotifyState<'_>]) {
    let late = |_| Error::new(ErrorKind::Unavailable, "it does not listen");
    let told = tokio::time::timeout(PATIENCE, send(what)).await.map_err(late);
    if let Err(error) = told.flatten() {
        refused(&error);
    }
}

fn refused(error: &Error) {
    tracing::warn!(%error, "failed to notify the service manager");
}

/// Sends a word, on a thread that may wait until it is taken.
async fn send(what: &[NotifyState<'_>]) -> Result<()> {
    let words: Vec<String> = what.iter().map(NotifyState::to_string).collect();
    let sent = tokio::task::spawn_blocking(move || {
        let words: Vec<_> = words.iter().map(|word| NotifyState::Custom(word)).collect();
        sd_notify::notify(&words).doing("notify the service manager")
    });
    sent.await.map_err(std::io::Error::other).doing("notify the service manager").flatten()
}
