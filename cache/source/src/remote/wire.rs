//! The one HTTP client of a process: its connections, its limits and its counters.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use hyper::Method;
use lru::LruCache;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions, HeaderValue, RetryConfig};
use url::Url;

use super::bounded_body;
use super::error_document::element;
use super::head::{Head, range_of};
use super::link::{Link, LinkReport};
use super::listing_page;
use crate::Limits;
use crate::limits::RateLimits;
use crate::network::gate::{Gate, Resolver};
use crate::network::{Network, system_authorities};
use crate::rules;

/// User agent in servers' logs.
const USER_AGENT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// Header in which S3 names a bucket's region.
const BUCKET_REGION: &str = "x-amz-bucket-region";

/// Characters of a region's name, at most: the longest has 14.
const REGION_CHARS: usize = 32;

/// Bytes of an error document that are looked at: S3's have some hundreds.
const ERROR_BYTES: usize = 16 << 10;

/// Endpoints remembered: a node has a handful; this bounds what hostile clients can make.
const LINKS: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Facts of one request, from its reply and from the way there.
#[derive(Debug, Clone, Default)]
pub(super) struct Noted {
    /// Time to come back after.
    pub(super) retry_after: Option<Duration>,
    /// Head of the reply, if one came.
    pub(super) head: Option<Head>,
    /// Keys left out of a listing, as no request can name them.
    pub(super) odd_keys: Vec<String>,
    /// True if a redirect was followed: another server may be at fault.
    pub(super) was_redirected: bool,
    /// Region of the bucket, where S3 answered for another.
    pub(super) bucket_region: Option<String>,
}

impl Noted {
    /// Status of the reply, if one came.
    pub(super) fn status(&self) -> Option<u16> {
        self.head.as_ref().map(|head| head.status)
    }
}

tokio::task_local! {
    /// Facts of this task's request.
    static NOTED: RefCell<Noted>;
}

/// Runs one request, with what its reply and the way there say.
pub(super) async fn noting<T>(request: impl Future<Output = T>) -> (T, Noted) {
    let noted = async {
        let done = request.await;
        (done, NOTED.with(RefCell::take))
    };
    NOTED.scope(RefCell::default(), noted).await
}

/// Adds to the facts of this task's request; object_store's own requests, for credentials, are
/// nobody's.
fn note(change: impl FnOnce(&mut Noted)) {
    let _ = NOTED.try_with(|noted| change(&mut noted.borrow_mut()));
}

/// `Retry-After`, in seconds or as a date.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Direction of the bytes of a client's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// From the store. Silence is bounded.
    Reads,
    /// To the store, whose answer comes when all have arrived: whoever sends bounds the wait.
    Writes,
}

/// Network counters. All counters only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// HTTP requests sent, repeated ones included.
    pub requests: u64,
    /// Failed requests: no answer, or one that asks to retry (408, 429, 5xx).
    pub failed: u64,
    /// Payload bytes received.
    pub bytes: u64,
    /// Payload bytes of objects, and parts of them, that stores took.
    pub written_bytes: u64,
}

#[derive(Debug, Default)]
struct Tally {
    requests: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Ways to stores whose connections are kept: proxies and bundles of certificates that a
/// configuration names.
const WAYS: NonZeroUsize = NonZeroUsize::new(16).expect("16 is not zero");

/// Endpoints, each for those who have the same limits and the same way there.
type Links = LruCache<(String, RateLimits, Network), Arc<Link>>;

/// The shared client.
pub(crate) struct Wire {
    limits: Limits,
    gate: Gate,
    client: HttpClient,
    /// For whom object_store asks who this machine is: its own metadata service.
    identity: HttpClient,
    /// For those that do not go the usual way.
    others: Mutex<LruCache<(Network, Direction), HttpClient>>,
    links: Arc<Mutex<Links>>,
    tally: Arc<Tally>,
}

impl Wire {
    pub(crate) fn new(limits: Limits, gate: Gate) -> Result<Self> {
        if limits.connections == 0 {
            let error = Error::new(ErrorKind::Invalid, "a source needs at least one connection");
            return Err(error.at("connections", limits.connections));
        }
        let links = Arc::new(Mutex::new(LruCache::new(LINKS)));
        Self::with(limits, gate, links, Arc::default())
    }

    fn with(
        limits: Limits,
        gate: Gate,
        links: Arc<Mutex<Links>>,
        tally: Arc<Tally>,
    ) -> Result<Self> {
        let way = Network::of_process();
        let identity = client(&limits, &way, Direction::Reads, &Gate::default(), &tally)?;
        let client = client(&limits, &way, Direction::Reads, &gate, &tally)?;
        let others = Mutex::new(LruCache::new(WAYS));
        Ok(Self { limits, gate, client, identity, others, links, tally })
    }

    /// The same, which connects to what `gate` lets through. What was learnt of endpoints stays
    /// known.
    pub(crate) fn behind(&self, gate: Gate) -> Result<Self> {
        Self::with(self.limits.clone(), gate, self.links.clone(), self.tally.clone())
    }

    /// Sets other limits for whoever had these.
    pub(crate) fn relimit(&self, old: RateLimits, new: RateLimits) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let had = links.iter().filter(|((_, limits, _), _)| *limits == old);
        let had = had.map(|((endpoint, _, network), _)| (endpoint.clone(), network.clone()));
        for (endpoint, network) in had.collect::<Vec<_>>() {
            let after = (endpoint.clone(), new, network.clone());
            if links.contains(&after) {
                // Others have them already: whoever asks from now on joins those.
                continue;
            }
            if let Some(link) = links.pop(&(endpoint, old, network)) {
                link.limit(self.connections(new), new.bandwidth);
                links.put(after, link);
            }
        }
    }

    fn connections(&self, limits: RateLimits) -> usize {
        let most = self.limits.connections;
        limits.connections.map_or(most, |connections| connections.min(most))
    }

    /// The endpoint, as everybody uses it who has these limits and goes this way.
    pub(super) fn link(&self, endpoint: &str, limits: RateLimits, way: &Network) -> Arc<Link> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = self.connections(limits);
        let link = || Link::new(endpoint, connections, limits.bandwidth, self.limits.late);
        links.get_or_insert((endpoint.to_owned(), limits, way.clone()), link).clone()
    }

    /// Each endpoint, by its address.
    pub(crate) fn links(&self) -> Vec<LinkReport> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reports: Vec<_> = links.iter().map(|(_, link)| link.report()).collect();
        reports.sort_by(|one, other| one.endpoint.cmp(&other.endpoint));
        reports
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Gives object_store a client that goes this way in place of one of its own.
    pub(super) fn connector_by(&self, network: &Network, direction: Direction) -> Result<Shared> {
        let identity = self.identity.clone();
        let is_usual = *network == Network::default();
        if is_usual && direction == Direction::Reads {
            return Ok(Shared { client: self.client.clone(), identity });
        }
        let way = if is_usual { Network::of_process() } else { network.clone() };
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || client(&self.limits, &way, direction, &self.gate, &self.tally);
        let client = others.try_get_or_insert((network.clone(), direction), make).cloned()?;
        Ok(Shared { client, identity })
    }

    /// Has object_store try once: what to do about a failure is decided above it, where it is known
    /// what arrived already.
    pub(super) fn without_retries(&self) -> RetryConfig {
        RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
    }

    pub(super) fn received(&self, bytes: usize) {
        self.tally.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.tally.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> Counters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Tally { requests, failed, bytes, written_bytes } = &*self.tally;
        Counters {
            requests: read(requests),
            failed: read(failed),
            bytes: read(bytes),
            written_bytes: read(written_bytes),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Shared {
    client: HttpClient,
    identity: HttpClient,
}

impl Shared {
    /// One that goes through what `wrap` makes of the client.
    pub(super) fn wrapped<S: HttpService + 'static>(
        self,
        wrap: impl FnOnce(HttpClient) -> S,
    ) -> Self {
        Self { client: HttpClient::new(wrap(self.client)), ..self }
    }

    /// The client itself.
    pub(super) fn client(&self) -> &HttpClient {
        &self.client
    }
}

impl HttpConnector for Shared {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The addresses of metadata services are object_store's own, and nobody's choice: it asks
        // for a client of theirs by a shorter time to connect, which nothing else changes here.
        let patience =
            |options: &ClientOptions| options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let is_usual = patience(options) == patience(&ClientOptions::default());
        Ok(if is_usual { self.client.clone() } else { self.identity.clone() })
    }
}

fn client(
    limits: &Limits,
    network: &Network,
    direction: Direction,
    gate: &Gate,
    tally: &Arc<Tally>,
) -> Result<HttpClient> {
    let gate = gate.by(network.proxies());
    let builder = || network.over(builder(limits, network, direction, &gate));
    let (client, distrust) = match builder()?.build() {
        Ok(client) => (client, None),
        Err(error) => {
            let Err(missing) = system_authorities() else { return Err(cannot_start(&error)) };
            // It trusts nobody, and plain HTTP needs nobody's certificate.
            let trusting_none = builder()?.tls_certs_only([]).build();
            (trusting_none.map_err(|error| cannot_start(&error))?, Some(missing))
        }
    };
    let client = HttpClient::new(client);
    Ok(HttpClient::new(Counted { client, distrust, gate, tally: Arc::clone(tally) }))
}

fn builder(
    limits: &Limits,
    network: &Network,
    direction: Direction,
    gate: &Gate,
) -> reqwest::ClientBuilder {
    let builder = match direction {
        // A part may be large and the network slow: silence is the failure, not duration.
        Direction::Reads => reqwest::Client::builder().read_timeout(limits.read_timeout),
        // While bytes are sent, silence is none.
        Direction::Writes => reqwest::Client::builder(),
    };
    builder
        .user_agent(USER_AGENT)
        .connect_timeout(limits.connect_timeout)
        .http1_only()
        // Bytes arrive as they were sent: they have a length and a checksum.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .pool_max_idle_per_host(limits.connections)
        .dns_resolver(Arc::new(Resolver { gate: gate.clone(), turns: Arc::default() }))
        .redirect(gate.redirects(rules::leads(&network.redirects), || {
            note(|noted| noted.was_redirected = true);
        }))
}

/// Returns the error of a client that cannot be made.
fn cannot_start(error: &reqwest::Error) -> Error {
    // The innermost cause says most; there is no URL in it.
    let mut cause: &dyn StdError = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Error::new(ErrorKind::Unavailable, format!("the HTTP client cannot start: {cause}"))
}

/// Takes out of a listing's page what object_store would refuse the page for.
async fn without_odd_keys(page: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (head, body) = page.into_parts();
    let bytes = body.bytes().await?;
    let text = String::from_utf8_lossy(&bytes);
    let (kept, odd) = listing_page::without_odd(&text);
    note(|noted| noted.odd_keys = odd);
    Ok(HttpResponse::from_parts(head, kept.into()))
}

/// Notes the bucket's region, which S3 names in a header, or in the error document alone.
async fn with_region_noted(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let header = response.headers().get(BUCKET_REGION).and_then(|value| value.to_str().ok());
    if let Some(region) = header.filter(|region| is_region(region)) {
        let region = region.to_owned();
        note(|noted| noted.bucket_region = Some(region));
        return Ok(response);
    }
    let length = response.headers().get("content-length").and_then(|value| value.to_str().ok());
    let length: Option<usize> = length.and_then(|length| length.parse().ok());
    if length.is_none_or(|length| length > ERROR_BYTES) {
        return Ok(response);
    }
    let (head, body) = response.into_parts();
    let bytes = body.bytes().await?;
    let region = region_of(&String::from_utf8_lossy(&bytes));
    note(|noted| noted.bucket_region = region);
    Ok(HttpResponse::from_parts(head, bytes.into()))
}

/// Returns the bucket's region by an error document of S3: as it names it, or by the host that it
/// names.
fn region_of(document: &str) -> Option<String> {
    let named = element(document, "Region").or_else(|| {
        let host = element(document, "Endpoint")?.strip_suffix(".amazonaws.com")?;
        let (_, region) =
            host.rsplit_once(".s3").or_else(|| Some(("", host.strip_prefix("s3")?)))?;
        region.strip_prefix(['.', '-'])
    });
    named.filter(|region| is_region(region)).map(str::to_owned)
}

/// Returns true for a word that may be a region's name.
fn is_region(word: &str) -> bool {
    (1..=REGION_CHARS).contains(&word.len())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Counts every attempt, and notes what a reply asks for.
#[derive(Debug)]
struct Counted {
    client: HttpClient,
    /// Reason for which no server can prove who it is, if there is one.
    distrust: Option<Error>,
    gate: Gate,
    tally: Arc<Tally>,
}

#[async_trait]
impl HttpService for Counted {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Ok(url) = Url::parse(&request.uri().to_string()) {
            // The client rejects an unparsable URL itself.
            let refused = |error| HttpError::new(HttpErrorKind::Unknown, error);
            self.gate.check(&url).map_err(refused)?;
            if let Some(distrust) = self.distrust.as_ref().filter(|_| url.scheme() == "https") {
                return Err(refused(distrust.clone()));
            }
        }
        self.tally.requests.fetch_add(1, Ordering::Relaxed);
        let asked = request.headers().get("range").and_then(range_of);
        let lists = request.uri().query().is_some_and(listing_page::is_asked_for);
        // Only objects are read as a stream.
        let reads = request.method() == Method::GET && !lists;
        let mut response = self.client.execute(request).await;
        let failed = match &mut response {
            Ok(response) => {
                let retry_after = response.headers().get("retry-after").and_then(retry_after);
                let head = Head::take(asked.as_ref(), response);
                let status = head.status;
                note(|noted| (noted.retry_after, noted.head) = (retry_after, Some(head)));
                status >= 500 || status == 429 || status == 408
            }
            Err(_) => true,
        };
        self.tally.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
        let reply = bounded_body::bounded(response?, reads);
        match reply.status().as_u16() {
            200..=299 if lists => without_odd_keys(reply).await,
            301 | 307 | 400 => with_region_noted(reply).await,
            _ => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_is_found_in_documents_of_s3() {
        let error = |inner: &str| region_of(&format!("<Error><Code>x</Code>{inner}</Error>"));
        let region = Some("eu-west-1".to_owned());
        for inner in [
            "<Region>eu-west-1</Region>",
            "<Endpoint>a.b.s3.eu-west-1.amazonaws.com</Endpoint>",
            "<Endpoint>bucket.s3-eu-west-1.amazonaws.com</Endpoint>",
            "<Endpoint>s3.eu-west-1.amazonaws.com</Endpoint>",
        ] {
            assert_eq!(error(inner), region, "{inner}");
        }
        for inner in [
            "",
            "<Endpoint>bucket.s3.amazonaws.com</Endpoint>",
            "<Endpoint>evil.example</Endpoint>",
            "<Region>no word</Region>",
            "<Region></Region>",
        ] {
            assert_eq!(error(inner), None, "{inner}");
        }
    }

    #[test]
    fn oldest_endpoints_beyond_the_bound_are_dropped() {
        let wire = Wire::new(Limits::default(), Gate::default()).unwrap();
        for number in 0..1000 {
            let endpoint = format!("https://host-{number:04}");
            wire.link(&endpoint, RateLimits::default(), &Network::default());
        }
        let kept = wire.links();
        assert_eq!(kept.len(), 256);
        assert_eq!(kept[0].endpoint, "https://host-0744");
    }
}
