//! The one HTTP client of a process: its connections, its limits and its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::{BackoffConfig, ClientOptions, HeaderValue, RetryConfig};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::Limits;

/// What servers see in their logs.
const USER_AGENT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// The longest pause between two attempts: a store that comes back is used again within this time.
const LONGEST_BACKOFF: std::time::Duration = std::time::Duration::from_secs(5);

/// What has gone over the network. All counts only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// HTTP requests sent, repeated ones included.
    pub requests: u64,
    /// Of these, how many got no answer, or one that says to come back (408, 429, 5xx).
    pub failed: u64,
    /// Payload bytes received into spans.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Tally {
    requests: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
}

/// The shared client.
pub(crate) struct Wire {
    limits: Limits,
    client: HttpClient,
    permits: Semaphore,
    tally: Arc<Tally>,
}

impl Wire {
    pub(crate) fn new(limits: Limits) -> Result<Self> {
        if limits.connections == 0 || limits.connections > Semaphore::MAX_PERMITS {
            let error = Error::new(ErrorKind::Invalid, "a source needs at least one connection");
            return Err(error.at("connections", limits.connections));
        }
        let options = ClientOptions::new()
            .with_user_agent(HeaderValue::from_static(USER_AGENT))
            .with_connect_timeout(limits.connect_timeout)
            .with_read_timeout(limits.read_timeout)
            // A part may be large and the network slow: silence is the failure, not duration.
            .with_timeout_disabled()
            // Whether plain HTTP is right was settled by whoever wrote the endpoint or URL.
            .with_allow_http(true)
            .with_http1_only()
            .with_pool_max_idle_per_host(limits.connections);
        let client = ReqwestConnector::default().connect(&options).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the HTTP client cannot start: {error}"))
        })?;
        let tally = Arc::new(Tally::default());
        let client = HttpClient::new(Counted { client, tally: Arc::clone(&tally) });
        Ok(Self { permits: Semaphore::new(limits.connections), limits, client, tally })
    }

    /// A place among the requests in flight.
    pub(super) async fn permit(&self) -> Result<SemaphorePermit<'_>> {
        let closed = |_| Error::new(ErrorKind::Closed, "the sources are shutting down");
        self.permits.acquire().await.map_err(closed)
    }

    /// Gives object_store this client in place of one of its own.
    pub(super) fn connector(&self) -> Shared {
        Shared(self.client.clone())
    }

    pub(super) fn retry(&self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig { max_backoff: LONGEST_BACKOFF, ..BackoffConfig::default() },
            max_retries: self.limits.retries,
            retry_timeout: self.limits.retry_time,
        }
    }

    pub(super) fn received(&self, bytes: usize) {
        self.tally.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> Counters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Tally { requests, failed, bytes } = &*self.tally;
        Counters { requests: read(requests), failed: read(failed), bytes: read(bytes) }
    }
}

#[derive(Debug)]
pub(super) struct Shared(HttpClient);

impl HttpConnector for Shared {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}

/// Counts every attempt, which object_store's own retries hide.
#[derive(Debug)]
struct Counted {
    client: HttpClient,
    tally: Arc<Tally>,
}

#[async_trait]
impl HttpService for Counted {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.tally.requests.fetch_add(1, Ordering::Relaxed);
        let response = self.client.execute(request).await;
        let failed = match &response {
            Ok(response) => {
                let status = response.status().as_u16();
                status >= 500 || status == 429 || status == 408
            }
            Err(_) => true,
        };
        self.tally.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
        response
    }
}
