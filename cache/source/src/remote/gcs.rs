//! Buckets in Google Cloud Storage and in what speaks its XML interface.
//!
//! Credentials are the client's, else what the machine has (application default
//! credentials, the metadata server); a server that is not Google's gets none of the machine's.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use object_store::StaticCredentialProvider;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};

use super::StoreClient;
use super::bucket::{Bucket, unfit};
use super::refusal::Refusals;
use crate::{Options, network};

/// Google's own address.
const ENDPOINT: &str = "https://storage.googleapis.com";

/// The variables that hold credentials.
const CREDENTIALS: [&str; 4] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
];

/// The bucket `name`.
pub(crate) fn open(name: &str, store_client: &StoreClient<'_>) -> Result<Bucket> {
    let options = store_client.options;
    if name.is_empty() {
        return Err(invalid("the URL names no bucket").advise("write gs://bucket/key"));
    }
    let (endpoint, custom) = endpoint(options)?;
    let builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(name)
        .with_base_url(&endpoint)
        .with_http_connector(store_client.connector()?)
        .with_retry(store_client.wire.without_retries());
    let store = with_credentials(builder, options, custom).build();
    let store = store.map_err(|error| {
        unfit("Google Cloud Storage", &error)
            .advise("check that the credentials file exists and is one of Google's")
    })?;
    let access_advice = format!(
        "check the credentials and the bucket's policy: {}; GOOGLE_SKIP_SIGNATURE=true reads public buckets",
        options.which_are_set(&CREDENTIALS)
    );
    let refusals = Refusals { endpoint, access_advice, ..Refusals::default() };
    Ok(Bucket::new(store_client, store, refusals).conditional(!custom))
}

/// Returns the endpoint, and true if it is configured.
fn endpoint(options: &Options) -> Result<(String, bool)> {
    let Some(chosen) = options.get("GOOGLE_BASE_URL") else { return Ok((ENDPOINT.into(), false)) };
    // STORAGE_EMULATOR_HOST is written without a scheme as often as with one.
    let url = if chosen.contains("://") { chosen.to_owned() } else { format!("http://{chosen}") };
    network::endpoint(&url)?;
    let url = url.trim_end_matches('/').to_owned();
    let custom = url != ENDPOINT;
    Ok((url, custom))
}

fn with_credentials(
    mut builder: GoogleCloudStorageBuilder,
    options: &Options,
    custom: bool,
) -> GoogleCloudStorageBuilder {
    let none_set = CREDENTIALS.iter().all(|name| options.get(name).is_none());
    if options.is_on("GOOGLE_SKIP_SIGNATURE") || (custom && none_set) {
        // Given outright, or object_store would look for the machine's.
        let nobody = StaticCredentialProvider::new(GcpCredential { bearer: String::new() });
        return builder.with_skip_signature(true).with_credentials(Arc::new(nobody));
    }
    if let Some(token) = options.get("GOOGLE_BEARER_TOKEN") {
        let bearer = token.to_owned();
        let token = StaticCredentialProvider::new(GcpCredential { bearer });
        return builder.with_credentials(Arc::new(token));
    }
    if let Some(key) = options.get("GOOGLE_SERVICE_ACCOUNT_KEY") {
        return builder.with_service_account_key(key);
    }
    if let Some(path) = options.get("GOOGLE_SERVICE_ACCOUNT") {
        return builder.with_service_account_path(path);
    }
    if let Some(path) = options.get("GOOGLE_APPLICATION_CREDENTIALS") {
        builder = builder.with_application_credentials(path);
    }
    builder
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
