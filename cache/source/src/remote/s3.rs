//! Shards in S3 and in everything that speaks it.
//!
//! Its rule: what the options leave open is settled here, once and aloud: no region or credential
//! is guessed where a wrong guess would surface later as a riddle.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use object_store::aws::AmazonS3Builder;

use super::bucket::{Bucket, unfit};
use super::refusal::Refusals;
use super::{Reach, http};
use crate::Options;
use crate::credentials::Identity;

/// The region that servers other than Amazon's expect in signatures when they do not care.
const ANY_REGION: &str = "us-east-1";

/// The variables that hold a key pair.
const KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// The bucket `name`.
pub(crate) fn open(name: &str, reach: &Reach<'_>) -> Result<Bucket> {
    let options = reach.options;
    if name.is_empty() {
        return Err(invalid("the URL names no bucket").advise("write s3://bucket/key"));
    }
    let custom = options.get("AWS_ENDPOINT_URL_S3").or(options.get("AWS_ENDPOINT_URL"));
    let custom = custom.map(|url| url.trim_end_matches('/'));
    let region = region(options, custom.is_some())?;
    let virtual_host = options.is_on("AWS_VIRTUAL_HOSTED_STYLE_REQUEST");
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(name)
        .with_region(region)
        .with_virtual_hosted_style_request(virtual_host)
        .with_request_payer(options.get("AWS_REQUEST_PAYER").is_some())
        .with_http_connector(reach.connector()?)
        .with_retry(reach.wire.retry());
    if let Some(url) = custom {
        let encrypted = http::endpoint(url)?.starts_with("https:");
        if !encrypted && options.get("AWS_ALLOW_HTTP").is_some() && !options.is_on("AWS_ALLOW_HTTP")
        {
            return Err(invalid("the endpoint is not encrypted and AWS_ALLOW_HTTP forbids it"));
        }
        let url = if virtual_host { with_bucket(url, name)? } else { url.to_owned() };
        builder = builder.with_endpoint(url).with_allow_http(!encrypted);
    }
    let endpoint = match custom {
        Some(url) => url.to_owned(),
        None => format!("https://s3.{region}.amazonaws.com"),
    };
    let (builder, identity) = with_credentials(builder, reach, custom.is_some())?;
    let store = builder.build().map_err(|error| unfit("S3", &error))?;
    let refusals = Refusals { endpoint, access_advice: access_advice(options), identity };
    Ok(Bucket::new(reach, store, refusals))
}

/// The region to sign for. Amazon's own is never guessed.
fn region(options: &Options, custom: bool) -> Result<&str> {
    match options.get("AWS_REGION").or(options.get("AWS_DEFAULT_REGION")) {
        Some(region) => Ok(region),
        None if custom => Ok(ANY_REGION),
        None => Err(invalid("no region is set for Amazon S3")
            .advise("set AWS_REGION, or AWS_ENDPOINT_URL for a store that is not Amazon's")),
    }
}

/// The endpoint with the bucket as the first part of its host.
fn with_bucket(endpoint: &str, bucket: &str) -> Result<String> {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let is_there = rest.strip_prefix(bucket).is_some_and(|rest| rest.starts_with('.'));
    let url = match is_there {
        true => endpoint.to_owned(),
        false => format!("{scheme}://{bucket}.{rest}"),
    };
    http::endpoint(&url)?;
    Ok(url)
}

/// Signs requests with the client's key pair, or with what is lent, or not at all; who lends is told.
fn with_credentials(
    mut builder: AmazonS3Builder,
    reach: &Reach<'_>,
    custom: bool,
) -> Result<(AmazonS3Builder, Option<Identity>)> {
    let options = reach.options;
    if options.is_on("AWS_SKIP_SIGNATURE") {
        return Ok((builder.with_skip_signature(true), None));
    }
    if let (Some(access), Some(secret)) = (options.get(KEYS[0]), options.get(KEYS[1])) {
        builder = builder.with_access_key_id(access).with_secret_access_key(secret);
        if let Some(token) = options.get(KEYS[2]) {
            builder = builder.with_token(token);
        }
        return Ok((builder, None));
    }
    let half = options.get(KEYS[0]).is_some() || options.get(KEYS[1]).is_some();
    if half || !reach.lending.is_open() {
        let error = Error::new(ErrorKind::PermissionDenied, "no credentials are set for the store");
        return Err(error.advise(access_advice(options)));
    }
    let identity = match reach.profile {
        Some(profile) => reach.lending.to_profile(profile),
        None => reach.lending.to_client(options, !custom),
    };
    Ok((builder.with_credentials(Arc::new(identity.clone())), Some(identity)))
}

fn access_advice(options: &Options) -> String {
    let state = options.which_are_set(&[&KEYS[..], &["AWS_PROFILE"]].concat());
    format!(
        "check the credentials and the bucket's policy: {state}; AWS_SKIP_SIGNATURE=true reads public buckets"
    )
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
