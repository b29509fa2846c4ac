//! What the service manager is told: systemd, or whatever set `NOTIFY_SOCKET`.
//!
//! One rule: what it is told is so by then. A manager that does not listen keeps nobody from working.

use std::time::Duration;

use sd_notify::NotifyState;

/// The manager is told so many times in the period after which it would take the daemon for dead: systemd
/// advises two.
const TOLD_PER_PERIOD: u32 = 2;

/// The daemon listens.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The daemon reads its configuration anew; [`ready`] is the end of that, however it went.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        // With the time, systemd knows which of its own requests this answers (`Type=notify-reload`).
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// How the last reload went, in the words of `systemctl status`.
pub(crate) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// The daemon ends.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells again and again that the daemon is alive, if the manager wants to hear it (`WatchdogSec=`).
pub(crate) async fn alive() {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return std::future::pending().await;
    };
    let mut due = tokio::time::interval((period / TOLD_PER_PERIOD).max(Duration::from_millis(1)));
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::warn!(%error, "the service manager cannot be told of the daemon's state");
    }
}
