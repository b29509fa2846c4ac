//! A Redis or Valkey server that nodes share: address, connections, bounds on waiting, errors.
//!
//! Rule: no error and no text here shows the user or the password of an address.

use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisError, RedisResult};

/// The longest wait for the server to answer or to be reached.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Attempts to reach it.
const RETRIES: usize = 2;

/// Replies of a server to a client that may not do this.
const DENIALS: [&str; 3] = ["NOAUTH", "WRONGPASS", "NOPERM"];

/// Reply of a server whose key holds a value of another type.
const OTHER_TYPE: &str = "WRONGTYPE";

/// A server. It is reached when it is needed.
pub struct Server {
    client: Client,
    shared: ConnectionManager,
    /// Address without credentials.
    address: String,
}

impl Server {
    /// Returns the server at `url`, which nothing is sent to yet.
    ///
    /// # Errors
    /// `Invalid` if the URL names no server.
    pub fn new(url: &str) -> Result<Self> {
        let invalid = |error: RedisError| {
            Error::new(ErrorKind::Invalid, format!("invalid address of a Redis server: {error}"))
                .advise("give it as redis://[user:password@]host:port[/database], or rediss:// with TLS")
        };
        let info = url.into_connection_info().map_err(invalid)?;
        let address = info.addr().to_string();
        let client = Client::open(info).map_err(invalid)?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(PATIENCE))
            .set_connection_timeout(Some(PATIENCE))
            .set_number_of_retries(RETRIES);
        let shared = client.get_connection_manager_lazy(config).map_err(invalid)?;
        Ok(Self { client, shared, address })
    }

    /// Returns the connection that all callers share. It connects again by itself.
    #[must_use]
    pub fn connection(&self) -> ConnectionManager {
        self.shared.clone()
    }

    /// Opens a connection for a request that is answered within `within`: one that waits answers
    /// nobody else meanwhile.
    ///
    /// # Errors
    /// The server cannot be reached, or rejects the credentials.
    pub async fn connect(&self, within: Duration) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(within));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Returns the address without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the error for a failed request: `PermissionDenied` if the server rejects the
    /// credentials or the command, `Invalid` if a key holds another type, else `Unavailable`.
    #[must_use]
    pub fn failed(&self, error: &RedisError) -> Error {
        let code = error.code().unwrap_or_default();
        let is_denial =
            error.kind() == redis::ErrorKind::AuthenticationFailed || DENIALS.contains(&code);
        // A script's error names the type's error in its text, by some servers.
        let is_type = code == OTHER_TYPE || error.to_string().contains(OTHER_TYPE);
        let (kind, advice) = if is_denial {
            (ErrorKind::PermissionDenied, "correct the user and the password in the address")
        } else if is_type {
            (ErrorKind::Invalid, "give Forebay a database of its own, or remove the foreign key")
        } else {
            (ErrorKind::Unavailable, "check that it runs and that this node can reach it")
        };
        Error::new(kind, format!("the Redis server failed: {error}"))
            .at("redis", &self.address)
            .advise(advice)
    }
}
