//! Shards in S3 and in compatible stores.
//!
//! Missing options are resolved here, once, and reported: a region or a credential is not guessed
//! where a wrong guess would surface later as an unrelated error.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use object_store::aws::{AmazonS3Builder, AwsCredential, Checksum};

use super::StoreClient;
use super::bucket::{Bucket, unfit};
use super::refusal::Refusals;
use super::s3_attributes::{Access, Attributes, Signer};
use super::wire::Direction;
use crate::{Options, network};

/// The region that servers other than Amazon's expect in signatures when they do not care.
const ANY_REGION: &str = "us-east-1";

/// The variable that says if requests carry checksums, as Amazon's tools read it.
const CHECKSUMS: &str = "AWS_REQUEST_CHECKSUM_CALCULATION";

/// The variables that hold a key pair.
const KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// The bucket `name`.
pub(crate) fn open(name: &str, store_client: &StoreClient<'_>) -> Result<Bucket> {
    let options = store_client.options;
    if name.is_empty() {
        return Err(invalid("the URL names no bucket").advise("write s3://bucket/key"));
    }
    let custom = options.get("AWS_ENDPOINT_URL_S3").or(options.get("AWS_ENDPOINT_URL"));
    let custom = custom.map(|url| url.trim_end_matches('/'));
    let region = region(options, custom.is_some())?;
    let connector = store_client.connector()?;
    let requester_pays = options.get("AWS_REQUEST_PAYER").is_some();
    let virtual_host = options.is_on("AWS_VIRTUAL_HOSTED_STYLE_REQUEST");
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(name)
        .with_region(region)
        .with_virtual_hosted_style_request(virtual_host)
        .with_request_payer(requester_pays)
        .with_http_connector(connector.clone())
        .with_retry(store_client.wire.without_retries());
    if let Some(url) = custom {
        let encrypted = network::endpoint(url)?.starts_with("https:");
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
    let signer = signer(store_client, custom.is_some())?;
    let builder = match &signer {
        None => builder.with_skip_signature(true),
        Some(Signer::Pair(key)) => {
            let AwsCredential { key_id, secret_key, token } = &**key;
            let builder = builder.with_access_key_id(key_id).with_secret_access_key(secret_key);
            token.iter().fold(builder, |builder, token| builder.with_token(token))
        }
        Some(Signer::Lent(identity)) => builder.with_credentials(Arc::new(identity.clone())),
    };
    let builder = match store_client.direction {
        Direction::Reads => builder,
        Direction::Writes => for_writes(builder, options, custom.is_some())?,
    };
    let store = builder.build().map_err(|error| unfit("S3", &error))?;
    let identity = match &signer {
        Some(Signer::Lent(identity)) => Some(identity.clone()),
        Some(Signer::Pair(_)) | None => None,
    };
    let access_advice = access_advice(options);
    let has_own_host = virtual_host;
    let refusals = Refusals {
        endpoint,
        region: Some(region.to_owned()),
        access_advice,
        identity,
        has_own_host,
        ..Refusals::default()
    };
    let without = custom.map(|url| without_bucket(url, name));
    let access = Access {
        region,
        endpoint: without.as_deref(),
        virtual_host,
        requester_pays,
        signer,
        client: connector.client().clone(),
    };
    let bucket = Bucket::new(store_client, store, refusals).conditional(custom.is_none());
    Ok(bucket.telling(Attributes::new(name, access)))
}

/// A client that writes. No hash of the bytes is signed, which would take a core; where the store
/// knows CRC-64/NVME, it compares what arrived.
fn for_writes(
    builder: AmazonS3Builder,
    options: &Options,
    custom: bool,
) -> Result<AmazonS3Builder> {
    // Not all that speak S3 know how to delete several objects at once.
    let builder = builder.with_unsigned_payload(true).with_disable_bulk_delete(true);
    let has_checksums = match options.get(CHECKSUMS).map(str::to_ascii_lowercase).as_deref() {
        Some("when_supported") => true,
        Some("when_required") => false,
        Some(_) => {
            return Err(invalid("invalid AWS_REQUEST_CHECKSUM_CALCULATION")
                .advise("set it to when_supported or when_required"));
        }
        None => !custom,
    };
    Ok(match has_checksums {
        true => builder.with_checksum_algorithm(Checksum::CRC64NVME),
        false => builder,
    })
}

/// The region to sign for. Amazon's own is never guessed.
fn region(options: &Options, custom: bool) -> Result<&str> {
    // It becomes a part of a host's name.
    let is_word = |region: &&str| region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    match options.get("AWS_REGION").or(options.get("AWS_DEFAULT_REGION")) {
        Some(region) if is_word(&region) => Ok(region),
        Some(_) => {
            Err(invalid("invalid region name").advise("set AWS_REGION to a name like eu-west-1"))
        }
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
    network::endpoint(&url)?;
    Ok(url)
}

/// The same without it, if it is there.
fn without_bucket(endpoint: &str, bucket: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let host = rest.strip_prefix(bucket).and_then(|rest| rest.strip_prefix('.')).unwrap_or(rest);
    format!("{scheme}://{host}")
}

/// Returns the signer of requests: the client's key pair, a lender, or none.
fn signer(store_client: &StoreClient<'_>, custom: bool) -> Result<Option<Signer>> {
    let options = store_client.options;
    if options.is_on("AWS_SKIP_SIGNATURE") {
        return Ok(None);
    }
    if let (Some(access), Some(secret)) = (options.get(KEYS[0]), options.get(KEYS[1])) {
        let token = options.get(KEYS[2]).map(str::to_owned);
        let (key_id, secret_key) = (access.to_owned(), secret.to_owned());
        return Ok(Some(Signer::Pair(Arc::new(AwsCredential { key_id, secret_key, token }))));
    }
    let half = options.get(KEYS[0]).is_some() || options.get(KEYS[1]).is_some();
    if half || !store_client.lending.is_open() {
        let error = Error::new(ErrorKind::PermissionDenied, "no credentials are set for the store");
        return Err(error.advise(access_advice(options)));
    }
    Ok(Some(Signer::Lent(match store_client.profile {
        Some(profile) => store_client.lending.to_profile(profile),
        None => store_client.lending.to_client(options, !custom),
    })))
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
