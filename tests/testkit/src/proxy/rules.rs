//! Rules that assign faults to requests.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, RANGE};
use hyper::{Method, Request};
use tokio::sync::watch;

use crate::random::Random;

/// Unit of shares: thousandths.
const MILLE: u64 = 1000;

/// Requests that meet a fault: all by default.
#[derive(Debug, Clone, Default)]
pub struct When {
    method: Option<Method>,
    path: Option<String>,
    covering: Option<u64>,
    skip: u64,
    times: Option<u64>,
    share: Option<(u64, Random)>,
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

    /// PUT requests.
    #[must_use]
    pub fn put() -> Self {
        Self { method: Some(Method::PUT), ..Self::default() }
    }

    /// POST requests.
    #[must_use]
    pub fn post() -> Self {
        Self { method: Some(Method::POST), ..Self::default() }
    }

    /// DELETE requests.
    #[must_use]
    pub fn delete() -> Self {
        Self { method: Some(Method::DELETE), ..Self::default() }
    }

    /// Requests whose path and query, as sent, contain `text`.
    #[must_use]
    pub fn of(mut self, text: &str) -> Self {
        self.path = Some(text.to_owned());
        self
    }

    /// Requests whose range contains this byte.
    #[must_use]
    pub fn covering(mut self, byte: u64) -> Self {
        self.covering = Some(byte);
        self
    }

    /// Skips the first `count` of them.
    #[must_use]
    pub fn after(mut self, requests: u64) -> Self {
        self.skip = requests;
        self
    }

    /// Takes at most `count` of them.
    #[must_use]
    pub fn times(mut self, requests: u64) -> Self {
        self.times = Some(requests);
        self
    }

    /// Takes this many in a thousand of them, chosen at random from this seed.
    #[must_use]
    pub fn share(mut self, per_mille: u64, seed: u64) -> Self {
        self.share = Some((per_mille, Random::new(seed)));
        self
    }

    /// True if this request meets the fault; counts down the limits.
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
        if self.share.as_mut().is_some_and(|(mille, random)| random.below(MILLE) >= *mille) {
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

/// True if a request asks for this byte.
fn covers<B>(request: &Request<B>, byte: u64) -> bool {
    let Some(range) = request.headers().get(RANGE) else { return true };
    let ends = range.to_str().ok().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((first, last)) = ends else { return false };
    let first = first.parse::<u64>().is_ok_and(|first| first <= byte);
    first && (last.is_empty() || last.parse::<u64>().is_ok_and(|last| byte <= last))
}

/// Value of a Retry-After header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    /// A number of seconds.
    Seconds(u64),
    /// A date, this many seconds from now.
    Date(u64),
}

impl RetryAfter {
    /// Text of the header.
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

/// A fault of one request. Bytes count from the start of the answer's body, which is the part asked
/// for.
#[derive(Clone)]
#[non_exhaustive]
pub enum Fault {
    /// Delays the answer.
    Delay(Duration),
    /// Delays the answer by up to this much.
    Jitter(Duration, Random),
    /// Answers with an error document of S3 instead of asking the store.
    Refuse {
        /// Status code.
        status: u16,
        /// `Code` in the document.
        code: &'static str,
        /// Retry-After header, if any.
        retry_after: Option<RetryAfter>,
    },
    /// Resets the connection without an answer.
    ResetBeforeHead,
    /// Forwards the request, then resets the connection without an answer.
    LoseAnswer,
    /// Resets the connection after this many bytes of the body; the last of them may be lost.
    Reset(u64),
    /// Ends the connection in order after this many bytes of the body.
    Cut(u64),
    /// Holds back the answer until other rules are set.
    StallBeforeHead,
    /// Stalls the body after this many bytes until other rules are set.
    Stall(u64),
    /// Sends a byte in each interval after this many bytes of the body, until other rules are set.
    Drip(u64, Duration),
    /// Changes, adds or removes a header of the answer.
    Header(HeaderName, Change),
    /// Changes this byte of the body.
    Garble(u64),
    /// Calls a function before the request is forwarded.
    Call(Arc<dyn Fn() + Send + Sync>),
    /// Calls a function when this many bytes of the body have been forwarded.
    CallAt(u64, Arc<dyn Fn() + Send + Sync>),
}

impl Fault {
    /// An answer with this status and an empty code.
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

    /// A busy store with a Retry-After header.
    #[must_use]
    pub fn busy(status: u16, retry_after: RetryAfter) -> Self {
        Self::Refuse { status, code: "SlowDown", retry_after: Some(retry_after) }
    }

    /// Expired credentials.
    #[must_use]
    pub fn expired() -> Self {
        Self::Refuse { status: 403, code: "ExpiredToken", retry_after: None }
    }

    /// Sets a header.
    #[must_use]
    pub fn header(name: HeaderName, value: &str) -> Self {
        let value = value.to_owned();
        Self::Header(name, Arc::new(move |_| Some(value.clone())))
    }

    /// Sets S3's CRC-64/NVME checksum of an object: base64 of its big-endian bytes.
    #[must_use]
    pub fn crc64_nvme(sum: u64) -> Self {
        let name = HeaderName::from_static("x-amz-checksum-crc64nvme");
        Self::header(name, &STANDARD.encode(sum.to_be_bytes()))
    }

    /// Removes a header.
    #[must_use]
    pub fn no_header(name: HeaderName) -> Self {
        Self::Header(name, Arc::new(|_| None))
    }

    /// Makes the ETag weak.
    #[must_use]
    pub fn weak_etag() -> Self {
        let weaken = |etag: Option<&str>| etag.map(|etag| format!("W/{etag}"));
        Self::Header(ETAG, Arc::new(weaken))
    }

    /// Shifts the answer's Content-Range by `by` bytes against its body.
    #[must_use]
    pub fn shifted_range(by: u64) -> Self {
        let shift = move |range: Option<&str>| {
            let (first, last, total) = numbers(range?)?;
            Some(format!("bytes {}-{}/{total}", first + by, last + by))
        };
        Self::Header(CONTENT_RANGE, Arc::new(shift))
    }

    /// Adds `by` bytes to the total length in Content-Range.
    #[must_use]
    pub fn longer_total(by: u64) -> Self {
        let longer = move |range: Option<&str>| {
            let (first, last, total) = numbers(range?)?;
            Some(format!("bytes {first}-{last}/{}", total + by))
        };
        Self::Header(CONTENT_RANGE, Arc::new(longer))
    }

    /// Adds this many bytes to Content-Length, or subtracts them.
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
            Self::LoseAnswer => f.write_str("LoseAnswer"),
            Self::Reset(after) => write!(f, "Reset({after})"),
            Self::Cut(after) => write!(f, "Cut({after})"),
            Self::StallBeforeHead => f.write_str("StallBeforeHead"),
            Self::Stall(after) => write!(f, "Stall({after})"),
            Self::Drip(after, every) => write!(f, "Drip({after}, {every:?})"),
            Self::Header(name, _) => write!(f, "Header({name})"),
            Self::Garble(at) => write!(f, "Garble({at})"),
            Self::Call(_) => f.write_str("Call"),
            Self::CallAt(after, _) => write!(f, "CallAt({after})"),
        }
    }
}

/// A fault and its requests.
pub(super) struct Rule {
    when: When,
    fault: Fault,
}

impl Rule {
    pub(super) fn new(when: When, fault: Fault) -> Self {
        Self { when, fault }
    }
}

/// Rules in force.
pub(super) struct Rules {
    rules: Mutex<Vec<Rule>>,
    /// Number of times the rules were set; stalled answers wait for the next change.
    set: watch::Sender<u64>,
}

/// Waits for other rules.
#[derive(Clone)]
pub(super) struct Until(watch::Receiver<u64>);

impl Until {
    pub(super) async fn changed(&mut self) {
        // Fails if the proxy is gone: nothing stalls then.
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

    /// Returns the faults of this request, and the wait that ends its stalls.
    pub(super) fn of<B>(&self, request: &Request<B>) -> (Vec<Fault>, Until) {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let met = rules.iter_mut().filter_map(|rule| {
            let Rule { when, fault } = rule;
            if !when.meets(request) {
                return None;
            }
            if let Fault::Jitter(by, random) = fault {
                let most = u64::try_from(by.as_micros()).unwrap_or(u64::MAX).max(1);
                return Some(Fault::Delay(Duration::from_micros(random.below(most))));
            }
            Some(fault.clone())
        });
        (met.collect(), Until(self.set.subscribe()))
    }
}
