//! S3's checksums of an object, from its upload.
//!
//! They are requested beside the bytes, never before them, and every result is counted. S3 has a
//! checksum of the whole object, or one per part of the upload, which takes a permission of its own
//! (`s3:GetObjectAttributes`).

mod smithy;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{
    BehaviorVersion, Config, Credentials, ProvideCredentials, Region, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::SdkError;
use aws_sdk_s3::types::{ChecksumMode, ChecksumType, ObjectAttributes, ObjectPart, RequestPayer};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_types::base64;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use forebay_error::{Error, ErrorKind, Result};
use object_store::aws::AwsCredential;

use crate::credentials::Identity;
use crate::origin_checksum::{Algorithm, Comparison, Piece};
use crate::queue::Rank;
use crate::remote::Route;
use crate::remote::attempts::{Again, Failed};
use crate::remote::link::{Blame, Target};
use crate::remote::refusal::Refusals;
use crate::stat::Stat;
use smithy::Smithy;

/// Pages of parts that are read: S3 has 10,000 parts per object, and 1,000 per page.
const PAGES_MAX: usize = 10;

/// Time for the store to answer: the bytes that arrive meanwhile wait in memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// Access to the bucket's attributes.
pub(super) struct Access<'a> {
    pub(super) region: &'a str,
    /// The endpoint without the bucket, if it is not Amazon's own.
    pub(super) endpoint: Option<&'a str>,
    pub(super) virtual_host: bool,
    pub(super) requester_pays: bool,
    pub(super) signer: Option<Signer>,
    pub(super) client: object_store::client::HttpClient,
}

/// Signer of requests.
#[derive(Clone)]
pub(super) enum Signer {
    /// The client's own key pair.
    Pair(Arc<AwsCredential>),
    /// Somebody whose credentials run out.
    Lent(Identity),
}

impl fmt::Debug for Signer {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pair(_) => "Pair",
            Self::Lent(_) => "Lent",
        })
    }
}

impl ProvideCredentials for Signer {
    fn provide_credentials<'a>(
        &'a self,
    ) -> aws_credential_types::provider::future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        use aws_credential_types::provider::error::CredentialsError;
        use aws_credential_types::provider::future::ProvideCredentials as Future;
        Future::new(async move {
            let key = match self {
                Self::Pair(key) => Arc::clone(key),
                Self::Lent(identity) => {
                    identity.get().await.map_err(CredentialsError::provider_error)?
                }
            };
            // The identity knows their expiry: the SDK has to ask it each time.
            let AwsCredential { key_id, secret_key, token } = &*key;
            Ok(Credentials::new(key_id, secret_key, token.clone(), None, "forebay"))
        })
    }
}

/// The attributes of the objects of a bucket.
pub(crate) struct Attributes {
    client: Client,
    bucket: String,
    payer: Option<RequestPayer>,
}

/// Answer to a HEAD.
struct Said {
    etag: Option<String>,
    /// True if the checksum is one of the parts' checksums.
    of_parts: bool,
    checksum: Option<(Algorithm, String)>,
}

impl Attributes {
    pub(super) fn new(bucket: &str, access: Access<'_>) -> Self {
        let mut config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(access.region.to_owned()))
            .http_client(Smithy(access.client))
            .force_path_style(access.endpoint.is_some() && !access.virtual_host)
            // Retries are decided here, as for every request.
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        config.set_endpoint_url(access.endpoint.map(str::to_owned));
        config = match access.signer {
            Some(signer) => config.credentials_provider(signer),
            None => config.allow_no_auth(),
        };
        let payer = access.requester_pays.then_some(RequestPayer::Requester);
        Self { client: Client::from_conf(config.build()), bucket: bucket.to_owned(), payer }
    }

    /// Returns the store's checksums of the version `stat`, if it has them; the result is counted.
    pub(crate) async fn of(&self, route: &Route, key: &str, stat: &Stat) -> Option<Comparison> {
        let tally = route.link.checksums();
        let late = |_| Err(Error::new(ErrorKind::Unavailable, "the store timed out"));
        let asked = tokio::time::timeout(PATIENCE, self.ask(route, key, stat)).await;
        match asked.unwrap_or_else(late) {
            Ok(Some((algorithm, pieces))) => Some(Comparison::new(algorithm, pieces, tally)),
            Ok(None) => {
                tally.none();
                None
            }
            Err(error) => {
                let bucket = &self.bucket;
                match tally.untold() {
                    true => tracing::warn!(
                        bucket, %error, "the store gives no checksums to compare bytes with; allow s3:GetObject and s3:GetObjectAttributes"
                    ),
                    false => tracing::debug!(bucket, %error, "the store gives no checksums"),
                }
                None
            }
        }
    }

    async fn ask(
        &self,
        route: &Route,
        key: &str,
        stat: &Stat,
    ) -> Result<Option<(Algorithm, Vec<Piece>)>> {
        let said = self.head(route, key).await?;
        let Some((algorithm, text)) = said.checksum else { return Ok(None) };
        if !is_of(said.etag.as_deref(), stat) {
            // Another version: that the bytes are not of this one shows itself.
            return Ok(None);
        }
        let pieces = match said.of_parts {
            false => {
                decode(&text, algorithm).map(|checksum| vec![Piece { len: stat.len, checksum }])
            }
            true => self.parts(route, key, stat, algorithm).await?,
        };
        let whole = |pieces: &Vec<Piece>| {
            pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.len)) == Some(stat.len)
        };
        Ok(pieces.filter(whole).map(|pieces| (algorithm, pieces)))
    }

    /// Returns true if the store says that it does not know an upload in parts; false if it knows
    /// it, or does not tell.
    pub(crate) async fn lacks_upload(&self, route: &Route, key: &str, upload: &str) -> bool {
        let parts = || {
            self.client
                .list_parts()
                .bucket(&self.bucket)
                .key(key)
                .upload_id(upload)
                .max_parts(1)
                .set_request_payer(self.payer.clone())
                .send()
        };
        let asked = Self::answered(route, self.target(key), parts);
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Err(error)) => error.kind() == ErrorKind::NotFound,
            Ok(Ok(_)) | Err(_) => false,
        }
    }

    /// A busy store of checksums holds no bytes up.
    fn target<'a>(&'a self, key: &'a str) -> Target<'a> {
        Target { folder: &self.bucket, url: key }
    }

    async fn head(&self, route: &Route, key: &str) -> Result<Said> {
        let head = || {
            self.client
                .head_object()
                .bucket(&self.bucket)
                .key(key)
                .checksum_mode(ChecksumMode::Enabled)
                .set_request_payer(self.payer.clone())
                .send()
        };
        let head = Self::answered(route, self.target(key), head).await?;
        let checksums = [
            (Algorithm::Crc64Nvme, &head.checksum_crc64_nvme),
            (Algorithm::Crc32c, &head.checksum_crc32_c),
            (Algorithm::Crc32, &head.checksum_crc32),
            (Algorithm::Sha256, &head.checksum_sha256),
        ];
        // The first is the cheapest of those that say most.
        let checksum = checksums
            .into_iter()
            .find_map(|(algorithm, text)| text.clone().map(|text| (algorithm, text)));
        // Servers that do not say which it is mark it by the number of parts: `…==-7`, or only the
        // ETag.
        let of_parts = match &head.checksum_type {
            Some(kind) => *kind == ChecksumType::Composite,
            None => {
                checksum.as_ref().is_some_and(|(_, text)| text.contains('-'))
                    || head.e_tag.as_deref().is_some_and(is_of_parts)
            }
        };
        Ok(Said { etag: head.e_tag, of_parts, checksum })
    }

    /// The checksums of the parts, if the store kept each.
    async fn parts(
        &self,
        route: &Route,
        key: &str,
        stat: &Stat,
        algorithm: Algorithm,
    ) -> Result<Option<Vec<Piece>>> {
        let (mut pieces, mut marker) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page = || {
                self.client
                    .get_object_attributes()
                    .bucket(&self.bucket)
                    .key(key)
                    .object_attributes(ObjectAttributes::Etag)
                    .object_attributes(ObjectAttributes::ObjectParts)
                    .set_part_number_marker(marker.clone())
                    .set_request_payer(self.payer.clone())
                    .send()
            };
            let page = Self::answered(route, self.target(key), page).await?;
            if !is_of(page.e_tag.as_deref(), stat) {
                return Ok(None);
            }
            let Some(parts) = page.object_parts else { return Ok(None) };
            for part in parts.parts() {
                let Some(piece) = piece(part, algorithm) else { return Ok(None) };
                pieces.push(piece);
            }
            match parts.next_part_number_marker.filter(|_| parts.is_truncated == Some(true)) {
                Some(next) => marker = Some(next),
                None => return Ok(Some(pieces)),
            }
        }
        Ok(None)
    }

    /// The answer to a request, tried again as all are.
    async fn answered<T, E, F>(
        route: &Route,
        target: Target<'_>,
        request: impl Fn() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let once = async || {
            let answers = route.refusals.answers();
            request().await.map_err(|error| failed(&error, &route.refusals, answers))
        };
        // First in its turn: bytes that are here wait for the answer.
        route.asked(Some(&Rank::now(0)), target, once).await
    }
}

/// Converts an error; its text is composed from harmless facts.
fn failed<E>(error: &SdkError<E, HttpResponse>, refusals: &Refusals, answers: u64) -> Failed {
    let status = error.raw_response().map(|response| response.status().as_u16());
    let Some(status) = status else {
        return Failed::for_now(Error::new(ErrorKind::Unavailable, "the store does not answer"));
    };
    let kind = match status {
        401 | 403 => ErrorKind::PermissionDenied,
        404 => ErrorKind::NotFound,
        408 | 429 | 500.. => ErrorKind::Unavailable,
        _ => ErrorKind::Invalid,
    };
    // Not built is no fault that passes.
    let again = match kind {
        _ if refusals.renewed_after(status, answers) => Again::Renewed,
        ErrorKind::Unavailable if status != 501 => Again::Later(None),
        _ => Again::Never,
    };
    let error = Error::new(kind, "the store rejected the call").at("status", status);
    let blame = match again {
        Again::Later(_) => Blame::Folder,
        Again::Never | Again::Renewed | Again::Once => Blame::Object,
    };
    Failed { error, again, blame, status: Some(status) }
}

/// Returns true if an ETag, quoted or not, is that of a version.
fn is_of(etag: Option<&str>, stat: &Stat) -> bool {
    etag.is_none_or(|etag| etag.trim_matches('"') == stat.version.trim_matches('"'))
}

/// Returns true if an ETag is that of a multipart upload: an MD5 in hex and the number of parts.
fn is_of_parts(etag: &str) -> bool {
    let Some((md5, parts)) = etag.trim_matches('"').split_once('-') else { return false };
    let is_hex = md5.len() == 32 && md5.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex && !parts.is_empty() && parts.bytes().all(|byte| byte.is_ascii_digit())
}

fn piece(part: &ObjectPart, algorithm: Algorithm) -> Option<Piece> {
    let text = match algorithm {
        Algorithm::Crc64Nvme => part.checksum_crc64_nvme(),
        Algorithm::Crc32c => part.checksum_crc32_c(),
        Algorithm::Crc32 => part.checksum_crc32(),
        Algorithm::Sha256 => part.checksum_sha256(),
    };
    let len = u64::try_from(part.size()?).ok()?;
    Some(Piece { len, checksum: decode(text?, algorithm)? })
}

fn decode(text: &str, algorithm: Algorithm) -> Option<Vec<u8>> {
    base64::decode(text).ok().filter(|bytes| bytes.len() == algorithm.width())
}
