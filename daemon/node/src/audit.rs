//! The audit log: every denial and every change that somebody made, a line of JSON each.
//!
//! Nothing waits for it. What it cannot take, because lines come faster than they are
//! written or the disk takes none, is counted, and the count is the next line.
//!
//! ```text
//!   note ──▶ queue, bounded ──▶ a thread ──▶ FILE ──▶ FILE.1 ──▶ … FILE.keep
//! ```

mod file;
mod line;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_api::status::AuditReport;
use forebay_config::settings::AuditConfig;
use forebay_error::{Doing, Error, Result};
use governor::clock::MonotonicClock;
use governor::{Quota, RateLimiter};

use file::LogFile;
pub use line::{Entry, Outcome, Whom};

/// Lines that wait to be written: some seconds of the fastest that is let through, in two
/// megabytes.
const QUEUE: usize = 1024;

/// Denials of one user that are noted each second. A script that is refused is seen after one of
/// them; one that runs in a loop must not push out what others did.
const DENIALS: NonZeroU32 = NonZeroU32::new(10).expect("not zero");

/// Users whose denials are counted, before those who were quiet are forgotten.
const USERS: usize = 4096;

/// Interval between reports of lost lines, and between retries of a failing disk.
const TOLD: Duration = Duration::from_secs(1);

/// The log's end waits this long for the last lines: a disk that hangs must not keep the daemon.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Counters.
#[derive(Default)]
struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
    /// Lost lines that no line reports yet.
    untold: AtomicU64,
    failing: Mutex<Option<String>>,
}

impl Counts {
    /// Counts lines that are lost; whether somebody has to be told that there are.
    fn lose(&self, lines: u64) -> bool {
        self.lost.fetch_add(lines, Ordering::Relaxed);
        self.untold.fetch_add(lines, Ordering::Relaxed) == 0
    }

    fn failing(&self) -> MutexGuard<'_, Option<String>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message to the writing thread.
enum Message {
    Line(Box<Entry>),
    /// Something was lost, and nothing else may come for a while.
    Lost,
}

/// The log, or none.
pub struct Audit {
    path: Option<PathBuf>,
    queue: Mutex<Option<SyncSender<Message>>>,
    writing: Mutex<Option<JoinHandle<()>>>,
    counts: Arc<Counts>,
    denials: Denials,
}

type Denials = RateLimiter<
    u64,
    governor::state::keyed::HashMapStateStore<u64>,
    MonotonicClock,
    governor::middleware::NoOpMiddleware<Instant>,
>;

impl Audit {
    /// Opens the log; without one, what would be noted is told by the daemon's own log alone.
    ///
    /// # Errors
    /// If the file cannot be opened, or is none.
    pub fn open(config: Option<AuditConfig>) -> Result<Self> {
        let counts = Arc::<Counts>::default();
        let denials = RateLimiter::hashmap_with_clock(Quota::per_second(DENIALS), MonotonicClock);
        let path = config.as_ref().map(|config| config.path.clone());
        let (queue, writing) = match config {
            None => (None, None),
            Some(config) => {
                let file = LogFile::open(config)?;
                let (queue, lines) = sync_channel(QUEUE);
                let writer = Writer { file, counts: counts.clone(), told: Instant::now() };
                let writing = std::thread::Builder::new()
                    .name("fb-audit".into())
                    .spawn(move || writer.run(&lines))
                    .doing("start a thread")?;
                (Some(queue), Some(writing))
            }
        };
        Ok(Self { path, queue: Mutex::new(queue), writing: Mutex::new(writing), counts, denials })
    }

    /// Notes what happened. Never waits.
    pub fn note(&self, entry: Entry) {
        if entry.is_denial() {
            if self.denials.len() > USERS {
                self.denials.retain_recent();
            }
            if self.denials.check_key(&entry.user()).is_err() {
                if self.counts.lose(1) {
                    self.send(Message::Lost);
                }
                return;
            }
        }
        entry.log();
        if !self.send(Message::Line(Box::new(entry))) {
            // The thread has something to write: it looks at the count when it has.
            self.counts.lose(1);
        }
    }

    /// Returns true if the thread accepts the message, or if there is no thread.
    fn send(&self, message: Message) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().is_none_or(|queue| queue.try_send(message).is_ok())
    }

    /// Returns the log's state; none without a log.
    pub fn report(&self) -> Option<AuditReport> {
        Some(AuditReport {
            path: self.path.clone()?,
            written: self.counts.written.load(Ordering::Relaxed),
            lost: self.counts.lost.load(Ordering::Relaxed),
            failing: self.counts.failing().clone(),
        })
    }

    /// Writes what was noted so far, and takes no more.
    pub async fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(writing) = writing else { return };
        let ended = tokio::task::spawn_blocking(move || writing.join());
        if tokio::time::timeout(LAST_LINES, ended).await.is_err() {
            tracing::error!("the audit log's last lines may be lost: its disk does not answer");
        }
    }
}

/// The writing thread's state.
struct Writer {
    file: LogFile,
    counts: Arc<Counts>,
    /// Time of the last report of lost lines.
    told: Instant,
}

impl Writer {
    fn run(mut self, lines: &Receiver<Message>) {
        loop {
            let untold = self.counts.untold.load(Ordering::Relaxed) > 0;
            let next = match untold {
                true => lines.recv_timeout(TOLD.saturating_sub(self.told.elapsed())),
                false => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(Message::Line(entry)) => self.write(&entry),
                Ok(Message::Lost) => {}
                Err(RecvTimeoutError::Timeout) => self.tell(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.tell();
        if let Err(error) = self.file.sync() {
            self.fails(&error);
        }
    }

    /// Tells of what was lost.
    fn tell(&mut self) {
        self.told = Instant::now();
        let lost = self.counts.untold.load(Ordering::Relaxed);
        if lost == 0 {
            return;
        }
        match self.file.append(&Entry::lost(lost).line()) {
            Ok(()) => {
                self.counts.untold.fetch_sub(lost, Ordering::Relaxed);
                self.recovers();
            }
            Err(error) => self.fails(&error),
        }
    }

    fn write(&mut self, entry: &Entry) {
        match self.file.append(&entry.line()) {
            Ok(()) => self.recovers(),
            Err(error) => {
                self.fails(&error);
                self.counts.lose(1);
            }
        }
    }

    fn recovers(&self) {
        self.counts.written.fetch_add(1, Ordering::Relaxed);
        if self.counts.failing().take().is_some() {
            tracing::info!("the audit log is writable again");
        }
    }

    fn fails(&self, error: &Error) {
        let mut failing = self.counts.failing();
        if failing.is_none() {
            tracing::error!(%error, "the audit log cannot be written: events are lost");
        }
        *failing = Some(error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use forebay_error::ErrorKind;
    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;

    fn denial(uid: u32) -> Entry {
        let error = Error::new(ErrorKind::PermissionDenied, "no").at("url", "s3://b/0.tar?secret");
        Entry::denied("open", &error).by(&Whom::user(uid))
    }

    fn lines(path: &std::path::Path) -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn noted(entries: Vec<Entry>) -> Vec<Value> {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("new/audit.jsonl");
        let config = AuditConfig { path: path.clone(), max_bytes: 1 << 30, keep: 1 };
        let audit = Audit::open(Some(config)).unwrap();
        for entry in entries {
            audit.note(entry);
        }
        audit.close().await;
        lines(&path)
    }

    #[tokio::test]
    async fn audit_line_names_peer_event_and_outcome() {
        let whom =
            Whom { gid: Some(5), pid: Some(77), tenant: Some("vision".into()), ..Whom::user(1000) };
        let refused =
            Error::new(ErrorKind::PermissionDenied, "this job may not read this data set")
                .at("dataset", "imagenet")
                .at("url", "s3://b/0.tar?signature=hunter2");
        let done: Result<()> = Ok(());
        let failed: Result<()> =
            Err(Error::new(ErrorKind::NotFound, "there is no tier with this name"));
        let lines = noted(vec![
            Entry::denied("open", &refused).by(&whom),
            Entry::of("tier", &done).by(&whom).what("drain nvme"),
            Entry::of("tier", &failed).what("drain\n\u{1b}[2Jnvme\u{9b}"),
            Entry::of("evict", &done).what(&"é".repeat(10_000)),
        ])
        .await;
        let first = &lines[0];
        assert_eq!((&first["event"], &first["outcome"]), (&"open".into(), &"denied".into()));
        assert_eq!(
            (&first["uid"], &first["gid"], &first["pid"]),
            (&1000.into(), &5.into(), &77.into())
        );
        assert_eq!((&first["tenant"], &first["dataset"]), (&"vision".into(), &"imagenet".into()));
        assert_eq!(first["url"], "s3://b/0.tar");
        assert_eq!(first["reason"], "this job may not read this data set");
        let time = first["time"].as_str().unwrap();
        assert!(humantime::parse_rfc3339(time).is_ok() && time.ends_with('Z'), "{time}");
        assert_eq!(
            (&lines[1]["outcome"], &lines[1]["what"]),
            (&"done".into(), &"drain nvme".into())
        );
        assert_eq!(lines[2]["outcome"], "failed");
        let what = lines[2]["what"].as_str().unwrap();
        assert!(!what.contains(char::is_control), "{what:?}");
        assert!(lines[3]["what"].as_str().unwrap().len() < 3000);
    }

    #[tokio::test]
    async fn repeated_denials_are_counted() {
        let mut entries: Vec<_> = (0..500).map(|_| denial(1)).collect();
        entries.push(denial(2));
        let lines = noted(entries).await;
        let of = |uid: u32| lines.iter().filter(|line| line["uid"] == uid).count() as u64;
        let lost: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
        assert!(of(1) >= 10 && lost >= 400, "{lines:#?}");
        assert_eq!((of(1) + lost, of(2)), (500, 1));
        assert!(lines.iter().any(|line| line["event"] == "lost"));
    }

    #[test]
    fn audit_log_must_be_a_regular_file() {
        let directory = TempDir::new().unwrap();
        for (path, words) in [
            (PathBuf::from("/dev/null"), "not a regular file"),
            (directory.path().to_owned(), "failed to open the audit log"),
        ] {
            let config = AuditConfig { path: path.clone(), max_bytes: 1 << 20, keep: 1 };
            let error = Audit::open(Some(config)).err().unwrap().to_string();
            assert!(error.contains(words) && error.contains("audit="), "{error}");
        }
        let (link, target) = (directory.path().join("link"), directory.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let config = AuditConfig { path: link, max_bytes: 1 << 20, keep: 1 };
        assert!(Audit::open(Some(config)).is_err() && !target.exists());
    }

    #[tokio::test]
    async fn audit_without_a_file_writes_nothing_and_never_waits() {
        let audit = Audit::open(None).unwrap();
        (0..10 * QUEUE as u32).for_each(|uid| audit.note(denial(uid)));
        assert!(audit.report().is_none());
        audit.close().await;
    }
}
