//! Bytes of files that are being written: each counts for the `max` of its rule from its first
//! byte on, so files that are begun at once count for each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_store::{CheckpointRule, Store};

use crate::Inner;
use crate::tidy::is_expendable;

/// Files that are being written.
#[derive(Default)]
pub(crate) struct Claims(Mutex<Claimed>);

#[derive(Default)]
struct Claimed {
    files: HashMap<u64, File>,
    /// Number of the next one.
    next: u64,
}

struct File {
    url: String,
    bytes: u64,
}

/// Bytes of one file that is being written. Dropped, they count no more.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    number: u64,
    url: String,
}

/// A rule with a limit, beside those that go before it.
struct Limit {
    rules: Vec<CheckpointRule>,
    own: usize,
    max: u64,
}

/// Lack of bytes below a limit.
struct Short {
    held: u64,
    /// Bytes of local copies among them.
    expendable: u64,
}

impl Claims {
    /// Begins a claim of `bytes` bytes that are on a tier already.
    pub(crate) fn begin(self: &Arc<Self>, url: &str, bytes: u64) -> Claim {
        let mut claimed = self.lock();
        let number = claimed.next;
        claimed.next += 1;
        claimed.files.insert(number, File { url: url.to_owned(), bytes });
        Claim { claims: self.clone(), number, url: url.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, Claimed> {
        // Each change is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Ends the claim in one step with `add`, from which on the file's record counts.
    pub(crate) fn end_with<T>(&self, add: impl FnOnce() -> T) -> T {
        let mut claimed = self.claims.lock();
        let added = add();
        claimed.files.remove(&self.number);
        added
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().files.remove(&self.number);
    }
}

impl Limit {
    /// Returns the limit of the rule of a URL, if there is one.
    fn of(store: &Store, url: &str) -> Option<Self> {
        let rules = store.checkpoint_rules();
        let own = rules.iter().position(|rule| rule.has(url))?;
        let max = rules[own].max_bytes?;
        Some(Self { rules, own, max })
    }

    /// True if the rule is that of a URL.
    fn counts(&self, url: &str) -> bool {
        self.rules.iter().position(|rule| rule.has(url)) == Some(self.own)
    }
}

impl Inner {
    /// Claims `bytes` for a new file. Local copies of what is in the store make room.
    ///
    /// # Errors
    /// `Full` if the `max` of the rule of its URL is reached.
    pub(crate) async fn claim(&self, url: &str, bytes: u64) -> Result<Claim> {
        let claim = self.claims.begin(url, 0);
        self.raise(&claim, bytes).await?;
        Ok(claim)
    }

    /// Raises a claim to `bytes` at least.
    ///
    /// # Errors
    /// As [`Inner::claim`].
    pub(crate) async fn raise(&self, claim: &Claim, bytes: u64) -> Result<()> {
        let limit = Limit::of(&self.store, &claim.url);
        while let Some((limit, short)) = self.try_raise(claim, bytes, limit.as_ref()) {
            let stays = short.held - short.expendable;
            // What cannot fit frees nothing.
            let may_fit = stays.saturating_add(bytes) <= limit.max;
            if !may_fit || !self.free_of(|record| limit.counts(&record.url)).await {
                let what = "checkpoints of this rule take their `max`";
                return Err(Error::new(ErrorKind::Full, what)
                    .at("url", shown(&claim.url))
                    .at("max", limit.max)
                    .at("held", short.held)
                    .at("bytes", bytes)
                    .advise("wait until uploads are done, or raise `max` of the [[checkpoint]]"));
            }
        }
        Ok(())
    }

    /// Raises a claim if the bytes fit below the limit, and says what is short if they do not.
    fn try_raise<'l>(
        &self,
        claim: &Claim,
        bytes: u64,
        limit: Option<&'l Limit>,
    ) -> Option<(&'l Limit, Short)> {
        // Held until the claim is raised: what others claim meanwhile counts.
        let mut claimed = self.claims.lock();
        let before = claimed.files.get(&claim.number).map_or(0, |file| file.bytes);
        if bytes <= before {
            return None;
        }
        if let Some(limit) = limit {
            let own = self.registry.select(|record| limit.counts(&record.url));
            let copies = self.keeping.files().select(|record| limit.counts(&record.url));
            let mut short = Short { held: 0, expendable: 0 };
            for record in own.iter().chain(&copies).map(|file| file.record()) {
                short.held += record.len;
            }
            for record in own.iter().map(|file| file.record()).filter(|one| is_expendable(one)) {
                short.expendable += record.len;
            }
            let others = claimed.files.iter().filter(|(number, _)| **number != claim.number);
            let others = others.filter(|(_, file)| limit.counts(&file.url));
            short.held += others.map(|(_, file)| file.bytes).sum::<u64>();
            if short.held.saturating_add(bytes) > limit.max {
                return Some((limit, short));
            }
        }
        if let Some(file) = claimed.files.get_mut(&claim.number) {
            file.bytes = bytes;
        }
        None
    }
}
