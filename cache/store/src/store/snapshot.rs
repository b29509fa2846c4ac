//! Versions of shards as one run of a job sees them.
//!
//! A job does not depend on the questions of jobs before it. A run looks at each of its files
//! anew, and accepts an answer of a remote store that was at most a minute old when the run began.
//! The version found first is the version of the whole run.
//!
//! A run may begin ahead of its consumer, which may replace shards before it comes. When it has
//! come, the shards that the run opened are looked at once more.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_shard::Origin;
use forebay_source::{Options, Source};
use futures::StreamExt;
use xxhash_rust::xxh3::xxh3_64;

use super::Store;
use crate::directory::ObjectKey;
use crate::excerpt_source::version_of_object;
use crate::identity::{Begun, IDENTITY_TTL, Identity};
use crate::shard::ShardHandle;

/// Longest wait for an origin to confirm a version that is known already. It spans a slow answer
/// of a busy store; a job over cached shards must not wait longer for an origin that is away.
pub(super) const RENEWAL_WAIT: Duration = Duration::from_secs(2);

/// Time for which an origin that did not confirm a version is not waited for again.
const SILENCE: Duration = Duration::from_secs(60);

/// Reason of the errors of a shard that changed, as sources give it, too.
const CHANGED: &str = "changed";

/// Shards looked at concurrently when a run is confirmed: its consumer waits, and a run that is
/// ahead has opened a few dozen.
const LOOKS: usize = 32;

/// Treatment of a shard that changes during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnChange {
    /// The run ends with an error that names the shard.
    #[default]
    Raise,
    /// The new version is served, and the log says so.
    Serve,
}

/// Start of a run, and the versions it has seen since.
pub(super) struct Snapshot(Mutex<SnapshotState>);

struct SnapshotState {
    since: Instant,
    /// Number of that start.
    start: RunStart,
    /// URLs and hashes of the versions that were opened, while the run is ahead of its consumer.
    ahead: Option<Vec<(String, u64)>>,
    on_change: OnChange,
    /// Hash of the version of each shard; as many as the job names.
    versions: HashMap<ObjectKey, u64>,
}

/// Names the moment from which on a run accepts the answers of origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunStart(u64);

impl SnapshotState {
    fn start_now(&mut self) {
        self.since = Instant::now();
        self.start.0 += 1;
    }
}

impl Snapshot {
    pub(super) fn begin() -> Self {
        Self(Mutex::new(SnapshotState {
            since: Instant::now(),
            start: RunStart::default(),
            ahead: None,
            on_change: OnChange::default(),
            versions: HashMap::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, SnapshotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time of the oldest acceptable answer; `None` if any is.
    fn oldest(&self, is_remote: bool) -> Option<Instant> {
        let since = self.state().since;
        if is_remote { since.checked_sub(IDENTITY_TTL) } else { Some(since) }
    }

    /// Returns true if this is the version of the run.
    fn has(&self, origin: &Origin) -> bool {
        self.state().versions.get(&key_of(origin)) == Some(&hash_of(origin))
    }

    /// Records the version of a shard. Returns the treatment if the run saw another one before.
    fn note(&self, origin: &Origin) -> Option<OnChange> {
        self.state().note(origin)
    }

    /// Records the version of a shard that was asked for after this start of the run, as
    /// [`Snapshot::note`] does; returns `None` if the run has another start by now.
    fn note_opened(&self, origin: &Origin, url: &str, start: RunStart) -> Option<Option<OnChange>> {
        let mut state = self.state();
        if state.start != start {
            return None;
        }
        let is_new = !state.versions.contains_key(&key_of(origin));
        if let Some(opened) = state.ahead.as_mut().filter(|_| is_new) {
            opened.push((url.to_owned(), hash_of(origin)));
        }
        Some(state.note(origin))
    }
}

impl SnapshotState {
    fn note(&mut self, origin: &Origin) -> Option<OnChange> {
        let (key, version) = (key_of(origin), hash_of(origin));
        let on_change = self.on_change;
        match self.versions.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(version);
                None
            }
            Entry::Occupied(entry) if *entry.get() == version => None,
            Entry::Occupied(mut entry) => {
                if on_change == OnChange::Serve {
                    entry.insert(version);
                }
                Some(on_change)
            }
        }
    }
}

/// Key of an object, of which this may be an excerpt.
fn key_of(origin: &Origin) -> ObjectKey {
    ObjectKey::new(&origin.endpoint, &origin.url)
}

/// Hash of the version of an object, of which this may be an excerpt.
fn hash_of(origin: &Origin) -> u64 {
    xxh3_64(version_of_object(&origin.version).as_bytes())
}

impl Store {
    /// Begins a run: shards are looked at anew, and versions of the run before no longer bind. A
    /// run that `is_ahead` of its consumer is confirmed later.
    pub fn begin_run(&self, is_ahead: bool) {
        if let Some(snapshot) = &self.snapshot {
            let mut state = snapshot.state();
            state.start_now();
            state.versions.clear();
            state.ahead = is_ahead.then(Vec::new);
        }
    }

    /// Lets a run that was ahead begin now; the result is true if the shards that it opened are the
    /// ones that their URLs stand for now.
    pub fn confirm_run(&self, options: &Options) -> impl Future<Output = bool> + Send + use<> {
        let opened = self.snapshot.as_ref().and_then(|snapshot| {
            let mut state = snapshot.state();
            state.start_now();
            state.ahead.take()
        });
        let (store, options) = (self.clone(), options.clone());
        async move {
            let (store, options) = (&store, &options);
            let opened = futures::stream::iter(opened.unwrap_or_default());
            let same = opened.map(|(url, version)| async move {
                let client = store.client.as_ref();
                let source = store.inner.sources.open_for(&url, options, client).ok()?;
                let begun = store.look(&source, &url).await.ok()?;
                (xxh3_64(begun.stat.version.as_bytes()) == version).then_some(())
            });
            same.buffer_unordered(LOOKS).all(|same| async move { same.is_some() }).await
        }
    }

    /// Names the present start of the job's run.
    #[must_use]
    pub fn run_start(&self) -> RunStart {
        self.snapshot.as_ref().map(|snapshot| snapshot.state().start).unwrap_or_default()
    }

    /// Sets the treatment of shards that change during a run of this job.
    pub fn set_on_change(&self, on_change: OnChange) {
        if let Some(snapshot) = &self.snapshot {
            snapshot.state().on_change = on_change;
        }
    }

    /// Compares the version of a shard, opened as `url` after this start of the run, with the one
    /// that the run saw first. Returns false if the run has another start by now: the shard is to
    /// be opened again.
    ///
    /// # Errors
    /// `Unavailable` with the reason `changed` if it is another, unless changes are served.
    pub fn check_version(&self, shard: &ShardHandle, url: &str, start: RunStart) -> Result<bool> {
        let Some(snapshot) = &self.snapshot else { return Ok(true) };
        let origin = shard.origin();
        match snapshot.note_opened(&origin, url, start) {
            None => Ok(false),
            Some(None) => {
                self.note_excerpt(shard);
                Ok(true)
            }
            Some(Some(OnChange::Serve)) => {
                let (session, job) = (self.session(), self.job.as_deref());
                let (url, version) = (shown(&origin.url), &origin.version);
                tracing::warn!(session, job, url, version, "serves a shard that changed in a run");
                Ok(true)
            }
            Some(Some(OnChange::Raise)) => {
                let what = "the shard changed during the epoch";
                Err(Error::new(ErrorKind::Unavailable, what)
                    .at("url", &origin.url)
                    .at("reason", CHANGED)
                    .at("version", &origin.version)
                    .advise("run the epoch again, or accept a mix with on_change=\"serve\""))
            }
        }
    }

    /// Returns true if this run read this version of an object before.
    pub(super) fn has_seen(&self, origin: &Origin) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| snapshot.has(origin))
    }

    /// True if a shard was replaced while it was read; its version is then asked for again. The
    /// next attempt reads the new one, or fails in [`Store::check_version`].
    pub fn was_replaced(&self, url: &str, options: &Options, error: &Error) -> bool {
        let is_replaced = error.place("reason") == Some(CHANGED);
        if is_replaced
            && let Ok(source) = self.inner.sources.open_for(url, options, self.client.as_ref())
        {
            self.inner.shared.forget_identity(&*source, url);
        }
        is_replaced
    }

    /// Looks at a shard before the run needs it, if its last known version is too old for the run.
    /// A file is looked at once per run; a remote shard only if it is known, since its fetch tells
    /// the version of one that is not.
    pub async fn look_at(&self, url: &str, options: &Options) {
        let Some(snapshot) = &self.snapshot else { return };
        let Ok(source) = self.inner.sources.open_for(url, options, self.client.as_ref()) else {
            // The error surfaces where the shard is opened.
            return;
        };
        let key = (source.scope().to_owned(), url.to_owned());
        if source.is_remote() && self.inner.shared.identities().peek(&key).is_none() {
            return;
        }
        match self.look(&source, url).await {
            Ok(Begun { stat, .. }) => {
                let endpoint = source.endpoint().to_owned();
                let origin = Origin { endpoint, url: url.to_owned(), version: stat.version };
                // A change is reported where the shard is opened.
                snapshot.note(&origin);
            }
            Err(error) => {
                tracing::debug!(url = shown(url), %error, "failed to look at a shard");
            }
        }
    }

    /// Last answer about a shard, if the question is too old for this run and another answer may be
    /// waited for. The inner option is `None` if the question is still open: whoever asked may have
    /// left, and the answer may be waiting since before the run.
    pub(super) fn outdated(
        &self,
        source: &dyn Source,
        url: &str,
        known: &Identity,
    ) -> Option<Option<Begun>> {
        let oldest = self.snapshot.as_ref()?.oldest(source.is_remote())?;
        if known.asked >= oldest || self.is_silent(source, url) {
            return None;
        }
        match known.begun.peek() {
            None => Some(None),
            Some(answer) => Some(Some(answer.as_ref().ok()?.clone())),
        }
    }

    /// True if this origin gave no answer a moment ago.
    fn is_silent(&self, source: &dyn Source, url: &str) -> bool {
        let mut silent = self.inner.shared.silent();
        silent.get(&place_of(source, url)).is_some_and(|since| since.elapsed() < SILENCE)
    }

    /// Notes that an origin did not confirm a version.
    pub(super) fn note_silence(&self, source: &dyn Source, url: &str, error: &Error) {
        let endpoint = source.endpoint();
        tracing::warn!(endpoint, %error, "cannot tell if cached shards changed; serves them");
        // An answer costs no time: the next run asks again.
        if error.kind() != ErrorKind::NotFound {
            self.inner.shared.silent().put(place_of(source, url), Instant::now());
        }
    }
}

/// Part of a source that answers as a whole: a store, or the folder of a file, since file systems
/// share an endpoint.
fn place_of(source: &dyn Source, url: &str) -> String {
    match (source.is_remote(), url.rsplit_once('/')) {
        (false, Some((folder, _))) => format!("{} {folder}", source.scope()),
        _ => source.scope().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str, version: &str) -> Origin {
        let text = str::to_owned;
        Origin { endpoint: text("file"), url: text(url), version: text(version) }
    }

    #[test]
    fn first_version_binds_the_run() {
        let snapshot = Snapshot::begin();
        assert_eq!(snapshot.note(&origin("/0.tar", "a")), None);
        assert_eq!(snapshot.note(&origin("/1.tar", "b")), None);
        assert_eq!(snapshot.note(&origin("/0.tar", "a")), None);
        for _ in 0..2 {
            assert_eq!(snapshot.note(&origin("/0.tar", "b")), Some(OnChange::Raise));
        }
        assert_eq!(snapshot.note(&origin("/0.tar", "a")), None, "the first version went");
    }

    #[test]
    fn shards_opened_for_an_earlier_start_are_not_of_the_run() {
        let snapshot = Snapshot::begin();
        let early = snapshot.state().start;
        snapshot.state().ahead = Some(Vec::new());
        for _ in 0..2 {
            assert_eq!(snapshot.note_opened(&origin("/0.tar", "a"), "0.tar", early), Some(None));
        }
        let opened = snapshot.state().ahead.take();
        assert_eq!(opened, Some(vec![("0.tar".to_owned(), xxh3_64(b"a"))]));
        snapshot.state().start_now();
        assert_eq!(snapshot.note_opened(&origin("/1.tar", "a"), "1.tar", early), None);
        let now = snapshot.state().start;
        assert_eq!(snapshot.note_opened(&origin("/1.tar", "b"), "1.tar", now), Some(None));
        assert_eq!(snapshot.state().ahead, None, "nobody is to confirm it");
    }

    #[test]
    fn served_change_is_reported_once() {
        let snapshot = Snapshot::begin();
        snapshot.state().on_change = OnChange::Serve;
        assert_eq!(snapshot.note(&origin("/0.tar", "a")), None);
        assert_eq!(snapshot.note(&origin("/0.tar", "b")), Some(OnChange::Serve));
        assert_eq!(snapshot.note(&origin("/0.tar", "b")), None);
    }

    #[test]
    fn remote_answers_may_be_a_minute_older_than_the_run() {
        let snapshot = Snapshot::begin();
        let since = snapshot.state().since;
        assert_eq!(snapshot.oldest(false), Some(since));
        assert_eq!(snapshot.oldest(true), since.checked_sub(Duration::from_secs(60)));
    }
}
