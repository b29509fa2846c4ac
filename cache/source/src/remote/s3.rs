//! Shards in S3 and in everything that speaks it.
//!
//! Its rule: what the options leave open is settled here, once and aloud: no region or credential
//! is guessed where a wrong guess would surface later as a riddle.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use object_store::ObjectStore;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;

use super::refusal::Refusals;
use super::{Reach, Store, Wire, http};
use crate::Options;

/// The region that servers other than Amazon's expect in signatures when they do not care.
const ANY_REGION: &str = "us-east-1";

/// The variables that hold a key pair.
const KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// The variables by which a platform lends credentials, and object_store's names for them.
const LENT: [(&str, AmazonS3ConfigKey); 5] = [
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", AmazonS3ConfigKey::ContainerAuthorizationTokenFile),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", AmazonS3ConfigKey::ContainerCredentialsFullUri),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", AmazonS3ConfigKey::ContainerCredentialsRelativeUri),
    ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile),
];

/// One bucket as one client reaches it.
pub(crate) struct S3 {
    bucket: String,
    store: Arc<AmazonS3>,
    reach: Arc<Reach>,
}

impl S3 {
    pub(crate) fn new(bucket: &str, options: &Options, wire: &Arc<Wire>) -> Result<Self> {
        if bucket.is_empty() {
            return Err(invalid("the URL names no bucket").advise("write s3://bucket/key"));
        }
        let custom = options.get("AWS_ENDPOINT_URL_S3").or(options.get("AWS_ENDPOINT_URL"));
        let region = options.get("AWS_REGION").or(options.get("AWS_DEFAULT_REGION"));
        let region = match (region, custom) {
            (Some(region), _) => region,
            (None, Some(_)) => ANY_REGION,
            (None, None) => {
                return Err(invalid("no region is set for Amazon S3").advise(
                    "set AWS_REGION, or AWS_ENDPOINT_URL for a store that is not Amazon's",
                ));
            }
        };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(region)
            .with_virtual_hosted_style_request(options.is_on("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"))
            .with_http_connector(wire.connector())
            .with_retry(wire.retry());
        if let Some(url) = custom {
            let origin = http::endpoint(url)?;
            let encrypted = origin.starts_with("https:");
            if !encrypted
                && options.get("AWS_ALLOW_HTTP").is_some()
                && !options.is_on("AWS_ALLOW_HTTP")
            {
                return Err(invalid("the endpoint is not encrypted and AWS_ALLOW_HTTP forbids it"));
            }
            builder = builder.with_endpoint(url.trim_end_matches('/')).with_allow_http(!encrypted);
        }
        let endpoint = match custom {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("https://s3.{region}.amazonaws.com"),
        };
        builder = with_credentials(builder, options, custom.is_some())?;
        let store = builder.build().map_err(|error| {
            invalid("the options for S3 do not fit together").at("reason", error_name(&error))
        })?;
        let access_advice = access_advice(options);
        let reach = Reach::new(wire, Refusals { endpoint, access_advice });
        Ok(Self { bucket: bucket.to_owned(), store: Arc::new(store), reach })
    }

    /// Where in the bucket the object behind `url` lies.
    fn location(&self, url: &str) -> Result<Path> {
        let at = |error: Error| error.at("url", url);
        let rest = url.strip_prefix("s3://").and_then(|rest| rest.strip_prefix(&self.bucket));
        let key = rest.and_then(|rest| rest.strip_prefix('/')).filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| at(invalid("the URL names no object of this bucket")))?;
        Path::parse(key).map_err(|error| at(invalid(&format!("the key cannot be used: {error}"))))
    }
}

impl Store for S3 {
    fn locate(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path)> {
        Ok((self.store.clone(), self.location(url)?))
    }

    fn reach(&self) -> &Arc<Reach> {
        &self.reach
    }
}

fn with_credentials(
    mut builder: AmazonS3Builder,
    options: &Options,
    custom: bool,
) -> Result<AmazonS3Builder> {
    if options.is_on("AWS_SKIP_SIGNATURE") {
        return Ok(builder.with_skip_signature(true));
    }
    if let (Some(access), Some(secret)) = (options.get(KEYS[0]), options.get(KEYS[1])) {
        builder = builder.with_access_key_id(access).with_secret_access_key(secret);
        return Ok(match options.get(KEYS[2]) {
            Some(token) => builder.with_token(token),
            None => builder,
        });
    }
    let mut lent = false;
    for (name, key) in LENT {
        if let Some(value) = options.get(name) {
            builder = builder.with_config(key, value);
            lent = true;
        }
    }
    // Amazon's own machines lend credentials without a variable; elsewhere asking for them would
    // only end in a long silence.
    let half = options.get(KEYS[0]).is_some() || options.get(KEYS[1]).is_some();
    if half || (custom && !lent) {
        let error = Error::new(ErrorKind::PermissionDenied, "no credentials are set for the store");
        return Err(error.advise(access_advice(options)));
    }
    Ok(builder)
}

fn access_advice(options: &Options) -> String {
    let state = options.which_are_set(&KEYS);
    format!(
        "check the credentials and the bucket's policy: {state}; AWS_SKIP_SIGNATURE=true reads public buckets"
    )
}

/// Which part of the options object_store complains about, without their values.
fn error_name(error: &object_store::Error) -> &'static str {
    match error {
        object_store::Error::UnknownConfigurationKey { .. } => "unknown key",
        _ => "bad value",
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
