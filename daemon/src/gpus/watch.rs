//! Asks for a look at the GPUs, and the answers.
//!
//! One rule: a look under way is shared by all who ask meanwhile, and what hangs is waited for once. The thread is no task of the
//! runtime: one that ends waits for its blocking tasks, and a driver that hangs would hold the daemon.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Device, GpuReport, driver};
use crate::status::Job;

/// What was read within this time is not read again: status, metrics and a live screen ask at the same moments.
const FRESH: Duration = Duration::from_millis(500);

/// How long whoever asks waits. A look takes milliseconds, the first some tenths of a second.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known of the GPUs.
#[derive(Debug, Clone, Default)]
pub(super) enum Known {
    /// Nobody has looked.
    #[default]
    Nothing,
    /// There is no NVIDIA driver on this node.
    Absent,
    /// What a look gave.
    Look(Arc<Look>),
}

/// A look at all GPUs.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// When it ended.
    pub(super) at: Instant,
    pub(super) driver: Option<String>,
    /// Or why it gave nothing.
    pub(super) devices: Result<Vec<Device>, String>,
}

impl Known {
    pub(super) fn devices(driver: Option<String>, devices: Result<Vec<Device>, String>) -> Self {
        Self::Look(Arc::new(Look { at: Instant::now(), driver, devices }))
    }

    fn at(&self) -> Option<Instant> {
        match self {
            Self::Look(look) => Some(look.at),
            Self::Nothing | Self::Absent => None,
        }
    }

    fn is_enough(&self) -> bool {
        matches!(self, Self::Absent) || self.at().is_some_and(|at| at.elapsed() < FRESH)
    }
}

/// The side of whoever looks.
pub(super) struct Asked {
    asks: Receiver<()>,
    known: Arc<watch::Sender<Known>>,
}

impl Asked {
    /// Blocks until somebody wants a look; false once nobody will.
    pub(super) fn wanted(&self) -> bool {
        while self.asks.recv().is_ok() {
            // Else it was answered by the look that was under way.
            if !self.known.borrow().is_enough() {
                return true;
            }
        }
        false
    }

    pub(super) fn tell(&self, known: Known) {
        self.known.send_replace(known);
    }
}

/// Looks whenever that is wanted, until none is any more.
type Looks = dyn Fn(&Asked) + Send + Sync;

/// The node's GPUs, for whoever asks.
pub(crate) struct Gpus {
    known: Arc<watch::Sender<Known>>,
    asks: OnceLock<Result<SyncSender<()>, String>>,
    /// What looks; it is started by the first who asks.
    looks: Arc<Looks>,
    /// Since when an answer is overdue.
    overdue: Mutex<Option<Instant>>,
}

impl Default for Gpus {
    fn default() -> Self {
        Self::by(Arc::new(driver::run))
    }
}

impl Gpus {
    fn by(looks: Arc<Looks>) -> Self {
        let known = Arc::new(watch::Sender::new(Known::Nothing));
        Self { known, asks: OnceLock::new(), looks, overdue: Mutex::default() }
    }

    /// What they do now, and these jobs on them; nothing where there is no NVIDIA driver.
    pub(crate) async fn look(&self, jobs: &[Job]) -> Option<GpuReport> {
        let asked = Instant::now();
        let mut known = self.known.subscribe();
        let mut failing = None;
        if !known.borrow_and_update().is_enough() {
            failing = match self.overdue() {
                Some(since) => Some(silent(since)),
                None => self.ask().err(),
            };
            // Its sender is ours: what ends is the time.
            if failing.is_none() && tokio::time::timeout(PATIENCE, known.changed()).await.is_err() {
                *self.lock() = Some(asked);
                failing = Some(silent(asked));
            }
        }
        let known = known.borrow().clone();
        report(&known, failing, jobs)
    }

    /// Since when an answer is overdue, unless it has come.
    fn overdue(&self) -> Option<Instant> {
        let answered = self.known.borrow().at();
        let mut overdue = self.lock();
        *overdue = overdue.filter(|asked| answered.is_none_or(|at| at < *asked));
        *overdue
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.overdue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> Result<(), String> {
        let asks = self.asks.get_or_init(|| {
            let (sender, asks) = sync_channel(1);
            let asked = Asked { asks, known: self.known.clone() };
            let looks = self.looks.clone();
            let thread = std::thread::Builder::new().name("fb-gpus".into());
            let started = thread.spawn(move || looks(&asked));
            started.map(|_| sender).map_err(|error| format!("no thread can look at them: {error}"))
        });
        match asks.as_ref().map_err(Clone::clone)?.try_send(()) {
            // Full: somebody else asks.
            Ok(()) | Err(TrySendError::Full(())) => Ok(()),
            Err(TrySendError::Disconnected(())) => Err(ended()),
        }
    }
}

fn silent(since: Instant) -> String {
    format!("NVIDIA's driver has not answered for {:.0} s", since.elapsed().as_secs_f64())
}

fn ended() -> String {
    "what looks at them has ended: see the daemon's log".to_owned()
}

fn report(known: &Known, failing: Option<String>, jobs: &[Job]) -> Option<GpuReport> {
    let host = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    let host =
        host.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let look = match known {
        Known::Absent => return None,
        // Whether there are any is not known.
        Known::Nothing => {
            let (driver, read_seconds_ago, devices) = Default::default();
            return Some(GpuReport { host, driver, failing, read_seconds_ago, devices });
        }
        Known::Look(look) => look,
    };
    let (devices, failed) = match &look.devices {
        Ok(devices) => (devices.clone(), None),
        Err(error) => (Vec::new(), Some(error.clone())),
    };
    Some(GpuReport {
        host,
        driver: look.driver.clone(),
        failing: failing.or(failed),
        read_seconds_ago: Some(look.at.elapsed().as_secs_f64()),
        devices: devices.into_iter().map(|device| device.joined(jobs)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// GPUs whose every look waits for a word, and how many looks there were.
    fn slow() -> (Gpus, Sender<Known>, Arc<AtomicUsize>) {
        let (word, words) = channel();
        let (words, looks) = (Mutex::new(words), Arc::new(AtomicUsize::new(0)));
        let counted = looks.clone();
        let gpus = Gpus::by(Arc::new(move |asked| {
            while asked.wanted() {
                counted.fetch_add(1, Ordering::Relaxed);
                let Ok(known) = words.lock().unwrap().recv() else { return };
                asked.tell(known);
            }
        }));
        (gpus, word, looks)
    }

    fn nothing_fails() -> Known {
        Known::devices(Some("580".to_owned()), Ok(Vec::new()))
    }

    #[tokio::test]
    async fn a_look_is_shared_by_all_who_ask() {
        let (gpus, word, looks) = slow();
        word.send(nothing_fails()).unwrap();
        let all = futures::future::join_all((0..10).map(|_| gpus.look(&[]))).await;
        for report in all {
            let report = report.unwrap();
            assert_eq!((report.failing, report.driver.as_deref()), (None, Some("580")));
            assert!(report.read_seconds_ago.is_some());
        }
        assert_eq!(looks.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_driver_that_hangs_is_waited_for_once() {
        let (gpus, word, looks) = slow();
        for _ in 0..100 {
            let report = gpus.look(&[]).await.unwrap();
            assert!(report.failing.unwrap().contains("has not answered"));
            assert_eq!(report.read_seconds_ago, None);
        }
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        // It answers after all.
        let mut known = gpus.known.subscribe();
        word.send(nothing_fails()).unwrap();
        known.changed().await.unwrap();
        let report = gpus.look(&[]).await.unwrap();
        assert_eq!((report.failing, report.driver.as_deref()), (None, Some("580")));
        assert!(gpus.overdue().is_none());
    }

    #[tokio::test]
    async fn what_fails_says_why_and_what_is_absent_nothing() {
        let (gpus, word, _) = slow();
        word.send(Known::devices(None, Err("it is not loaded".to_owned()))).unwrap();
        let report = gpus.look(&[]).await.unwrap();
        assert_eq!(report.failing.as_deref(), Some("it is not loaded"));
        let (gpus, word, looks) = slow();
        word.send(Known::Absent).unwrap();
        assert_eq!((gpus.look(&[]).await, gpus.look(&[]).await), (None, None));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn one_that_breaks_off_is_told_of() {
        let (gpus, word, _) = slow();
        drop(word);
        let first = gpus.look(&[]).await.unwrap();
        assert!(first.failing.is_some() && gpus.look(&[]).await.unwrap().failing.is_some());
    }
}
