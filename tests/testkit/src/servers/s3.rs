//! A bucket of an S3 store, filled by Amazon's client, not the one under test.

use std::net::SocketAddr;
use std::time::Duration;

use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::error::DisplayErrorContext;
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::{Client, Config};
use forebay_error::{Doing, Error, ErrorKind, Result};
use tokio::runtime::Runtime;

/// A bucket.
pub struct Bucket {
    runtime: Runtime,
    client: Client,
    name: String,
}

impl Bucket {
    /// Creates a bucket at the store on `address`, for the given key pair.
    ///
    /// # Errors
    /// If the store rejects it.
    pub fn make(address: SocketAddr, name: &str, keys: (&str, &str)) -> Result<Self> {
        let bucket = Self::open(address, name, keys)?;
        let made = bucket.client.create_bucket().bucket(name).send();
        bucket.runtime.block_on(made).map_err(|error| refused(&error))?;
        Ok(bucket)
    }

    /// Opens an existing bucket.
    ///
    /// # Errors
    /// If no runtime starts.
    pub fn open(address: SocketAddr, name: &str, (access, secret): (&str, &str)) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .doing("start a runtime")?;
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(format!("http://{address}"))
            .credentials_provider(Credentials::new(access, secret, None, None, "test"))
            .force_path_style(true)
            .build();
        Ok(Self { runtime, client: Client::from_conf(config), name: name.to_owned() })
    }

    /// A presigned link to an object, valid for this many seconds.
    ///
    /// # Errors
    /// If it cannot be signed.
    pub fn link(&self, key: &str, seconds: u64) -> Result<String> {
        let config = PresigningConfig::expires_in(Duration::from_secs(seconds));
        let config = config.map_err(|error| refused(&error))?;
        let link = self.client.get_object().bucket(&self.name).key(key).presigned(config);
        let link = self.runtime.block_on(link).map_err(|error| refused(&error))?;
        Ok(link.uri().to_owned())
    }

    /// Creates or replaces an object.
    ///
    /// # Errors
    /// If the store rejects it.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let put = self.client.put_object().bucket(&self.name).key(key);
        let put = put.body(bytes.to_vec().into()).send();
        self.runtime.block_on(put).map_err(|error| refused(&error))?;
        Ok(())
    }
}

fn refused<E: std::error::Error>(error: &E) -> Error {
    let what = format!("the store refuses a test's request: {}", DisplayErrorContext(error));
    Error::new(ErrorKind::Unavailable, what)
}
