//! Which requests meet which fault.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, RANGE};
use hyper::{Method, Request};
use tokio::sync::watch;

use crate::dice::Dice;

/// Shares are told in parts of this.
const MILLE: u64 = 1000;

/// Which requests meet a fault: by default all.
#[derive(Debug, Clone, Default)]
pub struct When {
    method: Option<Method>,
    path: Option<String>,
    covering: Option<u64>,
    skip: u64,
    times: Option<u64>,
    share: Option<(u64, Dice)>,
}

impl When {
    /// Every request.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// GET requests.
    #[must_use]
    pub fn get() -> Self {
        Self { method: Some(Method::GET), ..Self::default() }
    }

    /// HEAD requests.
    #[must_use]
    pub fn head() -> Self {
        Self { method: Some(Method::HEAD), ..Self::default() }
    }

    /// Those whose path and query, as sent, hold `text`.
    #[must_use]
    pub fn of(mut self, text: &str) -> Self {
        self.path = Some(text.to_owned());
        self
    }

    /// Those whose range starts at or before this byte and does not end before it.
    #[must_use]
    pub fn covering(mut self, byte: u64) -> Self {
        self.covering = Some(byte);
        self
    }

    /// Of these, not the first so many.
    #[must_use]
    pub fn after(mut self, requests: u64) -> Self {
        self.skip = requests;
        self
    }

    /// Of these, no more than so many.
    #[must_use]
    pub fn times(mut self, requests: u64) -> Self {
        self.times = Some(requests);
        self
    }

    /// Of these, so many of a thousand, chosen by dice with this seed.
    #[must_use]
    pub fn share(mut self, per_mille: u64, seed: u64) -> Self {
        self.share = Some((per_mille, Dice::new(seed)));
        self
    }

    /// Whether this request is meant; counts down what was set a number for.
    fn meets<B>(&mut self, request: &Request<B>) -> bool {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let is_meant = self.method.as_ref().is_none_or(|method| method == request.method())
            && self.path.as_ref().is_none_or(|text| target.contains(text.as_str()))
            && self.covering.is_none_or(|byte| covers(request, byte));
        if !is_meant {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.share.as_mut().is_some_and(|(mille, dice)| dice.below(MILLE) >= *mille) {
            return false;
        }
        match &mut self.times {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }
}

/// Whether a request wants this byte.
fn covers<B>(request: &Request<B>, byte: u64) -> bool {
    let Some(range) = request.headers().get(RANGE) else { return true };
    let ends = range.to_str().ok().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((first, last)) = ends else { return false };
    let first = first.parse::<u64>().is_ok_and(|first| first <= byte);
    first && (last.is_empty() || last.parse::<u64>().is_ok_and(|last| byte <= last))
}

/// When a store says to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    /// After so many seconds.
    Seconds(u64),
    /// At a date, so many seconds from now.
    Date(u64),
}

impl RetryAfter {
    /// As it stands in the header.
    pub(super) fn text(self) -> String {
        match self {
            Self::Seconds(seconds) => seconds.to_string(),
            Self::Date(seconds) => {
                httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds))
            }
        }
    }
}

type Change = Arc<dyn Fn(Option<&str>) -> Option<String> + Send + Sync>;

/// What happens to a request. Bytes are counted from the start of the body that the answer has, which
/// is that of the part asked for.
#[derive(Clone)]
#[non_exhaustive]
pub enum Fault {
    /// The answer begins later.
    Delay(Duration),
    /// The answer begins later, by up to so much.
    Jitter(Duration, Dice),
    /// The store is not asked; this is answered in its place, with an error document as S3 words it.
    Refuse {
        /// The status.
        status: u16,
        /// The `Code` in the document.
        code: &'static str,
        /// When to come back, where the store says so.
        retry_after: Option<RetryAfter>,
    },
    /// The connection is reset without an answer.
    ResetBeforeHead,
    /// The connection is reset after so many bytes of the body; the last of them may be lost with it.
    Reset(u64),
    /// The connection ends in good order after so many bytes of the body.
    Cut(u64),
    /// No answer comes, until other rules are set.
    StallBeforeHead,
    /// So many bytes of the body come, and no more until other rules are set.
    Stall(u64),
    /// A header of the answer is changed, added or dropped.
    Header(HeaderName, Change),
    /// This byte of the body is changed.
    Garble(u64),
    /// This is called before the request is sent on.
    Call(Arc<dyn Fn() + Send + Sync>),
    /// This is called when so many bytes of the body have been passed on.
    CallAt(u64, Arc<dyn Fn() + Send + Sync>),
}

impl Fault {
    /// An answer of this status that says no more.
    #[must_use]
    pub fn status(status: u16) -> Self {
        let code = match status {
            403 => "AccessDenied",
            404 => "NoSuchKey",
            412 => "PreconditionFailed",
            416 => "InvalidRange",
            429 | 503 => "SlowDown",
            _ => "InternalError",
        };
        Self::Refuse { status, code, retry_after: None }
    }

    /// A busy store that says when to come back.
    #[must_use]
    pub fn busy(status: u16, retry_after: RetryAfter) -> Self {
        Self::Refuse { status, code: "SlowDown", retry_after: Some(retry_after) }
    }

    /// Credentials that are no longer valid.
    #[must_use]
    pub fn expired() -> Self {
        Self::Refuse { status: 403, code: "ExpiredToken", retry_after: None }
    }

    /// The header has this value.
    #[must_use]
    pub fn header(name: HeaderName, value: &str) -> Self {
        let value = value.to_owned();
        Self::Header(name, Arc::new(move |_| Some(value.clone())))
    }

    /// The header is not there.
    #[must_use]
    pub fn no_header(name: HeaderName) -> Self {
        Self::Header(name, Arc::new(|_| None))
    }

    /// The ETag is a weak one.
    #[must_use]
    pub fn weak_etag() -> Self {
        let weaken = |etag: Option<&str>| etag.map(|etag| format!("W/{etag}"));
        Self::Header(ETAG, Arc::new(weaken))
    }

    /// The answer says it is of a range that begins and ends `by` bytes later than what it holds.
    #[must_use]
    pub fn shifted_range(by: u64) -> Self {
        let shift = move |range: Option<&str>| {
            let (first, last, total) = numbers(range?)?;
            Some(format!("bytes {}-{}/{total}", first + by, last + by))
        };
        Self::Header(CONTENT_RANGE, Arc::new(shift))
    }

    /// The answer says that the whole object has `by` bytes more than it has.
    #[must_use]
    pub fn longer_total(by: u64) -> Self {
        let longer = move |range: Option<&str>| {
            let (first, last, total) = numbers(range?)?;
            Some(format!("bytes {first}-{last}/{}", total + by))
        };
        Self::Header(CONTENT_RANGE, Arc::new(longer))
    }

    /// The answer says that its body has so many bytes more than it has, or fewer.
    #[must_use]
    pub fn wrong_length(by: i64) -> Self {
        let wrong = move |length: Option<&str>| {
            let length: u64 = length?.parse().ok()?;
            Some(length.saturating_add_signed(by).to_string())
        };
        Self::Header(CONTENT_LENGTH, Arc::new(wrong))
    }
}

/// First byte, last byte and total length of a `Content-Range`.
fn numbers(range: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, total.parse().ok()?))
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delay(by) => f.debug_tuple("Delay").field(by).finish(),
            Self::Jitter(by, _) => f.debug_tuple("Jitter").field(by).finish(),
            Self::Refuse { status, code, retry_after } => {
                write!(f, "Refuse({status} {code} {retry_after:?})")
            }
            Self::ResetBeforeHead => f.write_str("ResetBeforeHead"),
            Self::Reset(after) => write!(f, "Reset({after})"),
            Self::Cut(after) => write!(f, "Cut({after})"),
            Self::StallBeforeHead => f.write_str("StallBeforeHead"),
            Self::Stall(after) => write!(f, "Stall({after})"),
            Self::Header(name, _) => write!(f, "Header({name})"),
            Self::Garble(at) => write!(f, "Garble({at})"),
            Self::Call(_) => f.write_str("Call"),
            Self::CallAt(after, _) => write!(f, "CallAt({after})"),
        }
    }
}

/// A fault and whom it meets.
pub(super) struct Rule {
    when: When,
    fault: Fault,
}

impl Rule {
    pub(super) fn new(when: When, fault: Fault) -> Self {
        Self { when, fault }
    }
}

/// The rules of the moment.
pub(super) struct Rules {
    rules: Mutex<Vec<Rule>>,
    /// How often they were set: what is held back waits for the next time.
    set: watch::Sender<u64>,
}

/// Until other rules are set.
#[derive(Clone)]
pub(super) struct Until(watch::Receiver<u64>);

impl Until {
    pub(super) async fn changed(&mut self) {
        // Where the proxy is gone there is nobody to hold anything back.
        drop(self.0.changed().await);
    }
}

impl Rules {
    pub(super) fn new() -> Self {
        Self { rules: Mutex::new(Vec::new()), set: watch::Sender::new(0) }
    }

    pub(super) fn set(&self, rules: impl Iterator<Item = Rule>) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules.collect();
        self.set.send_modify(|times| *times += 1);
    }

    /// What this request meets, and until when.
    pub(super) fn of<B>(&self, request: &Request<B>) -> (Vec<Fault>, Until) {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let met = rules.iter_mut().filter_map(|rule| {
            let Rule { when, fault } = rule;
            if !when.meets(request) {
                return None;
            }
            if let Fault::Jitter(by, dice) = fault {
                let most = u64::try_from(by.as_micros()).unwrap_or(u64::MAX).max(1);
                return Some(Fault::Delay(Duration::from_micros(dice.below(most))));
            }
            Some(fault.clone())
        });
        (met.collect(), Until(self.set.subscribe()))
    }
}
