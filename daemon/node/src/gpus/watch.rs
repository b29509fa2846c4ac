//! Asks for a look at the GPUs, and the answers.
//!
//! A look under way is shared by all of a kind who ask meanwhile, and what hangs is
//! waited for once. The thread is no task of the runtime: one that ends waits for its blocking
//! tasks, and a driver that hangs would hold the daemon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_api::gpus::GpuReport;
use forebay_api::status::Job;
use tokio::sync::watch;

use super::{Device, Viewer, driver};

/// Age up to which a read is shared: status, metrics and a live screen ask at the same moments.
const FRESH: Duration = Duration::from_millis(500);

/// Longest wait of a caller. A read takes milliseconds, the first one some tenths of a second.
const PATIENCE: Duration = Duration::from_secs(1);

/// Knowledge about the GPUs.
#[derive(Debug, Clone, Default)]
pub(super) enum Known {
    /// Nobody has looked.
    #[default]
    Nothing,
    /// There is no NVIDIA driver on this node.
    Absent,
    /// Result of a read.
    Look(Arc<Look>),
}

/// A look at all GPUs.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// End of the read.
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

/// One kind of viewer's knowledge, and its pending request.
#[derive(Debug)]
struct View {
    known: watch::Sender<Known>,
    is_wanted: AtomicBool,
}

impl Default for View {
    fn default() -> Self {
        Self { known: watch::Sender::new(Known::Nothing), is_wanted: AtomicBool::new(false) }
    }
}

/// Those of all kinds.
type Views = [View; Viewer::ALL.len()];

/// The side of whoever looks.
pub(super) struct Asked {
    asks: Receiver<()>,
    views: Arc<Views>,
}

impl Asked {
    /// Blocks until some want a look, and says who; nobody once nobody will.
    pub(super) fn wanted(&self) -> Vec<Viewer> {
        while self.asks.recv().is_ok() {
            let wants = |viewer: &Viewer| {
                let view = &self.views[*viewer as usize];
                // Else it was answered by the look that was under way.
                view.is_wanted.swap(false, Ordering::AcqRel) && !view.known.borrow().is_enough()
            };
            let viewers: Vec<_> = Viewer::ALL.into_iter().filter(wants).collect();
            if !viewers.is_empty() {
                return viewers;
            }
        }
        Vec::new()
    }

    /// Tells those of a kind what a look for them gave.
    pub(super) fn tell(&self, viewer: Viewer, known: Known) {
        self.views[viewer as usize].known.send_replace(known);
    }

    /// Tells everybody what is so whoever asks.
    pub(super) fn tell_all(&self, known: &Known) {
        Viewer::ALL.into_iter().for_each(|viewer| self.tell(viewer, known.clone()));
    }
}

/// Looks whenever that is wanted, until none is any more.
type Looks = dyn Fn(&Asked) + Send + Sync;

/// The node's GPUs, for whoever asks.
pub struct Gpus {
    views: Arc<Views>,
    asks: OnceLock<Result<SyncSender<()>, String>>,
    /// The reading thread; the first caller starts it.
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
        Self { views: Arc::default(), asks: OnceLock::new(), looks, overdue: Mutex::default() }
    }

    /// Returns the GPUs' current activity and these jobs on them; none without an NVIDIA driver.
    pub async fn look(&self, viewer: Viewer, jobs: &[Job]) -> Option<GpuReport> {
        let asked = Instant::now();
        let mut known = self.views[viewer as usize].known.subscribe();
        let mut failing = None;
        if !known.borrow_and_update().is_enough() {
            failing = match self.overdue() {
                Some(since) => Some(silent(since)),
                None => self.ask(viewer).err(),
            };
            // The sender is alive: only the timeout can end this.
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
        let answered = self.views.iter().filter_map(|view| view.known.borrow().at()).max();
        let mut overdue = self.lock();
        *overdue = overdue.filter(|asked| answered.is_none_or(|at| at < *asked));
        *overdue
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.overdue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, viewer: Viewer) -> Result<(), String> {
        let asks = self.asks.get_or_init(|| {
            let (sender, asks) = sync_channel(1);
            let asked = Asked { asks, views: self.views.clone() };
            let looks = self.looks.clone();
            let thread = std::thread::Builder::new().name("fb-gpus".into());
            let started = thread.spawn(move || looks(&asked));
            started
                .map(|_| sender)
                .map_err(|error| format!("cannot start the thread that reads them: {error}"))
        });
        let asks = asks.as_ref().map_err(Clone::clone)?;
        // Before it is said that somebody asks: whoever looks finds who it is.
        self.views[viewer as usize].is_wanted.store(true, Ordering::Release);
        match asks.try_send(()) {
            // Full: somebody else asks, and both will be found.
            Ok(()) | Err(TrySendError::Full(())) => Ok(()),
            Err(TrySendError::Disconnected(())) => Err(ended()),
        }
    }
}

fn silent(since: Instant) -> String {
    format!("NVIDIA's driver has not answered for {:.0} s", since.elapsed().as_secs_f64())
}

fn ended() -> String {
    "the thread that reads them has ended: see the daemon's log".to_owned()
}

fn report(known: &Known, failing: Option<String>, jobs: &[Job]) -> Option<GpuReport> {
    let host = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    let host =
        host.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let look = match known {
        Known::Absent => return None,
        // The presence of GPUs is unknown.
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
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Sender, channel};

    use super::Viewer::{Scrape, Status};
    use super::*;

    /// GPUs whose every look waits for a word, and how many looks there were.
    fn slow() -> (Gpus, Sender<Known>, Arc<AtomicUsize>) {
        let (word, words) = channel();
        let (words, looks) = (Mutex::new(words), Arc::new(AtomicUsize::new(0)));
        let counted = looks.clone();
        let gpus = Gpus::by(Arc::new(move |asked| {
            loop {
                let viewers = asked.wanted();
                if viewers.is_empty() {
                    return;
                }
                for viewer in viewers {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let Ok(known) = words.lock().unwrap().recv() else { return };
                    asked.tell(viewer, known);
                }
            }
        }));
        (gpus, word, looks)
    }

    fn nothing_fails() -> Known {
        Known::devices(Some("580".to_owned()), Ok(Vec::new()))
    }

    #[tokio::test]
    async fn concurrent_viewers_share_one_reading() {
        let (gpus, word, looks) = slow();
        word.send(nothing_fails()).unwrap();
        let all = futures::future::join_all((0..10).map(|_| gpus.look(Status, &[]))).await;
        for report in all {
            let report = report.unwrap();
            assert_eq!((report.failing, report.driver.as_deref()), (None, Some("580")));
            assert!(report.read_seconds_ago.is_some());
        }
        assert_eq!(looks.load(Ordering::Relaxed), 1);
    }

    /// A scrape covers the time since the scrape before, whatever else was read meanwhile.
    #[tokio::test]
    async fn scrapes_have_readings_of_their_own() {
        let (gpus, word, looks) = slow();
        let known = |driver: &str| Known::devices(Some(driver.to_owned()), Ok(Vec::new()));
        for (viewer, driver) in [(Status, "1"), (Scrape, "2")] {
            word.send(known(driver)).unwrap();
            let report = gpus.look(viewer, &[]).await.unwrap();
            assert_eq!(report.driver.as_deref(), Some(driver));
        }
        assert_eq!(looks.load(Ordering::Relaxed), 2);
        // Both at the same moment: neither's wish is lost.
        let (gpus, word, looks) = slow();
        (0..2).for_each(|_| word.send(nothing_fails()).unwrap());
        let both = futures::future::join(gpus.look(Scrape, &[]), gpus.look(Status, &[])).await;
        assert!([both.0, both.1].iter().flatten().all(|report| report.failing.is_none()));
        assert_eq!(looks.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn hanging_driver_is_waited_for_once() {
        let (gpus, word, looks) = slow();
        for _ in 0..100 {
            let report = gpus.look(Status, &[]).await.unwrap();
            assert!(report.failing.unwrap().contains("has not answered"));
            assert_eq!(report.read_seconds_ago, None);
        }
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        // It answers after all.
        let mut known = gpus.views[Status as usize].known.subscribe();
        word.send(nothing_fails()).unwrap();
        known.changed().await.unwrap();
        let report = gpus.look(Status, &[]).await.unwrap();
        assert_eq!((report.failing, report.driver.as_deref()), (None, Some("580")));
        assert!(gpus.overdue().is_none());
    }

    #[tokio::test]
    async fn failing_driver_gives_a_reason_and_an_absent_one_nothing() {
        let (gpus, word, _) = slow();
        word.send(Known::devices(None, Err("it is not loaded".to_owned()))).unwrap();
        let report = gpus.look(Status, &[]).await.unwrap();
        assert_eq!(report.failing.as_deref(), Some("it is not loaded"));
        let (gpus, word, looks) = slow();
        word.send(Known::Absent).unwrap();
        assert_eq!((gpus.look(Status, &[]).await, gpus.look(Status, &[]).await), (None, None));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn ended_watch_thread_is_reported() {
        let (gpus, word, _) = slow();
        drop(word);
        let first = gpus.look(Status, &[]).await.unwrap();
        assert!(first.failing.is_some() && gpus.look(Status, &[]).await.unwrap().failing.is_some());
    }
}
