//! Answers to requests: counted, rejected or served, with faults on the body.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use forebay_error::{Error, ErrorKind, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_RANGE};
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;

use super::body::{Answer, faulted};
use super::counts::Counts;
use super::faults::Faults;
use super::{etag, plain};
use crate::tally::Tally;

/// State shared by all requests.
pub(super) struct Origin {
    dir: PathBuf,
    s3: S3Service,
    /// Lock around the recording of ETags: no request finds half a record.
    recording: tokio::sync::Mutex<()>,
    pub(super) counts: Tally<Counts>,
    pub(super) faults: Faults,
}

impl Origin {
    pub(super) fn new(dir: &Path, access: &str, secret: &str) -> Result<Self> {
        let files = FileSystem::new(dir).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("the directory cannot be served: {error:?}"))
                .at("path", dir.display())
        })?;
        let mut s3 = S3ServiceBuilder::new(files);
        s3.set_auth(SimpleAuth::from_single(access, secret));
        Ok(Self {
            dir: dir.to_owned(),
            s3: s3.build(),
            recording: tokio::sync::Mutex::new(()),
            counts: Tally::default(),
            faults: Faults::new(),
        })
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, Infallible> {
        let path = percent_decode_str(request.uri().path()).decode_utf8_lossy().into_owned();
        let key = path.trim_start_matches('/').to_owned();
        let get = *request.method() == Method::GET;
        self.counts.add(|counts| {
            counts.requests += 1;
            match *request.method() {
                Method::GET => *counts.gets.entry(key.clone()).or_default() += 1,
                Method::HEAD => *counts.heads.entry(key.clone()).or_default() += 1,
                _ => {}
            }
        });
        if let Some(status) = self.faults.refusal(&key) {
            return Ok(refused(status));
        }
        let response = self.serve(request, &key).await;
        if !get || !response.status().is_success() {
            return Ok(response);
        }
        let at = first_byte(&response);
        Ok(response.map(|body| faulted(body, &self, &key, at)))
    }

    async fn serve(&self, request: Request<Incoming>, key: &str) -> Response<Answer> {
        let signed = request.headers().contains_key(AUTHORIZATION)
            || request.uri().query().is_some_and(|query| query.contains("X-Amz-Signature"));
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if reads && !signed {
            return plain::serve(&self.dir, key, &request).await;
        }
        if reads && self.is_folder(key) {
            return refused(StatusCode::NOT_FOUND);
        }
        if reads {
            let _recording = self.recording.lock().await;
            etag::record(&self.dir, key).await;
        }
        let is_of_upload = request.uri().query().is_some_and(|query| query.contains("uploadId="));
        match self.s3.call(request.map(s3s::Body::from)).await {
            // `s3s-fs` calls an upload that it does not have denied.
            Ok(response) if is_of_upload && response.status() == StatusCode::FORBIDDEN => {
                rejected(StatusCode::NOT_FOUND, "NoSuchUpload")
            }
            Ok(response) => response.map(BodyExt::boxed_unsync),
            Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Returns true for the beginning of other keys, which is no object; `s3s-fs` fails to read it
    /// as a file.
    fn is_folder(&self, key: &str) -> bool {
        key.contains('/') && !key.ends_with('/') && self.dir.join(key).is_dir()
    }
}

/// A rejection in the form of S3.
fn refused(status: StatusCode) -> Response<Answer> {
    let code = match status {
        StatusCode::FORBIDDEN => "AccessDenied",
        StatusCode::NOT_FOUND => "NoSuchKey",
        StatusCode::SERVICE_UNAVAILABLE => "SlowDown",
        _ => "InternalError",
    };
    rejected(status, code)
}

/// A rejection in the form of S3, by its code.
fn rejected(status: StatusCode, code: &str) -> Response<Answer> {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    empty_or(status, Bytes::from(text))
}

/// A response with a body in memory.
pub(super) fn empty_or(status: StatusCode, body: Bytes) -> Response<Answer> {
    let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// The object offset at which a body starts.
fn first_byte(response: &Response<Answer>) -> u64 {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let first = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
    first.and_then(|first| first.parse().ok()).unwrap_or(0)
}
