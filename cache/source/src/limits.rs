//! The bounds on talking to a store.

use std::time::Duration;

/// Limits of one source; default: no limit but the process's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RateLimits {
    /// Bytes a second.
    pub bandwidth: Option<u64>,
    /// Requests in flight at once.
    pub connections: Option<usize>,
}

/// Limits on time and concurrency. [`Limits::default`] gives the values named here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Number of times a failed request is sent again. With backoff from 100 ms doubling up to 5 s,
    /// six retries span about 15 s: longer than a load balancer's restart.
    pub retries: usize,
    /// After this long no retry is begun, however many are left.
    pub retry_time: Duration,
    /// Time to establish a connection.
    pub connect_timeout: Duration,
    /// Longest silence of a connection, in headers or body, before it counts as broken.
    pub read_timeout: Duration,
    /// Requests in flight at once over all remote stores. 64 parts of 8 MiB fill 100 Gbit/s at 40
    /// ms a part, and stay below what one S3 prefix or a small server takes.
    pub connections: usize,
    /// No reply is late, and asked for a second time, before this: on a busy machine the scheduler
    /// alone may hold a thread for so long, and what an object store usually takes is not much
    /// less.
    pub late: Duration,
    /// Time for a file system to answer one open, stat or read of a part, before it counts as hung.
    /// A server that fails over is back within a minute; a slow one reads a part in less.
    pub file_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retries: 6,
            retry_time: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(30),
            connections: 64,
            late: Duration::from_millis(100),
            file_timeout: Duration::from_secs(60),
        }
    }
}
