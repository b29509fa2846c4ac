//! Files over plain HTTP: GET and HEAD with one byte range and `If-Match`.

use std::io::SeekFrom;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderValue, IF_MATCH, LAST_MODIFIED, RANGE,
};
use hyper::{Method, Request, Response, StatusCode};
use s3s::StdError;
use s3s::dto::{Timestamp, TimestampFormat};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::answer::empty_or;
use super::body::Answer;
use super::etag;

/// Bytes of one read from the file.
const CHUNK_BYTES: u64 = 256 << 10;

pub(super) async fn serve(dir: &Path, key: &str, request: &Request<Incoming>) -> Response<Answer> {
    let refused = |status| empty_or(status, Bytes::new());
    if key.split('/').any(|part| part == "..") {
        return refused(StatusCode::BAD_REQUEST);
    }
    let (Some(etag), Ok(file)) = (etag::of_file(dir, key).await, File::open(dir.join(key)).await)
    else {
        return refused(StatusCode::NOT_FOUND);
    };
    let etag = format!("\"{etag}\"");
    let wanted = request.headers().get(IF_MATCH);
    if wanted.is_some_and(|wanted| wanted.as_bytes() != etag.as_bytes()) {
        return refused(StatusCode::PRECONDITION_FAILED);
    }
    let Ok(metadata) = file.metadata().await else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let len = metadata.len();
    let (status, range) = match request.headers().get(RANGE).map(|value| parse(value, len)) {
        None => (StatusCode::OK, 0..len),
        Some(Some(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(None) => return refused(StatusCode::RANGE_NOT_SATISFIABLE),
    };
    let length = range.end - range.start;
    let mut response = if *request.method() == Method::HEAD {
        refused(status)
    } else {
        empty_or(status, Bytes::new()).map(|_| stream(file, range.clone()))
    };
    let headers = response.headers_mut();
    let mut put = |name, text: String| {
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    };
    put(ETAG, etag);
    put(LAST_MODIFIED, metadata.modified().map_or_else(|_| String::new(), date));
    put(CONTENT_LENGTH, length.to_string());
    put(ACCEPT_RANGES, "bytes".to_owned());
    if status == StatusCode::PARTIAL_CONTENT {
        put(CONTENT_RANGE, format!("bytes {}-{}/{len}", range.start, range.end - 1));
    }
    response
}

/// Parses `bytes=A-B`, `bytes=A-` or `bytes=-N` within `len` bytes; `None` if it is empty.
fn parse(value: &HeaderValue, len: u64) -> Option<Range<u64>> {
    let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", suffix) => len.saturating_sub(suffix.parse().ok()?)..len,
        (first, "") => first.parse().ok()?..len,
        (first, last) => first.parse().ok()?..last.parse::<u64>().ok()?.saturating_add(1).min(len),
    };
    (range.start < range.end).then_some(range)
}

/// Formats a time for a header.
fn date(time: SystemTime) -> String {
    let mut text = Vec::new();
    let written = Timestamp::from(time).format(TimestampFormat::HttpDate, &mut text);
    written.map_or_else(|_| String::new(), |()| String::from_utf8_lossy(&text).into_owned())
}

fn stream(file: File, range: Range<u64>) -> Answer {
    let chunks = futures::stream::try_unfold((file, range), |(mut file, mut range)| async move {
        let want = (range.end - range.start).min(CHUNK_BYTES);
        if want == 0 {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(range.start)).await?;
        let mut chunk = BytesMut::with_capacity(want as usize);
        let got = (&mut file).take(want).read_buf(&mut chunk).await?;
        if got == 0 {
            return Err(StdError::from("the file became shorter while it was served"));
        }
        range.start += got as u64;
        Ok(Some((Frame::data(chunk.freeze()), (file, range))))
    });
    BodyExt::boxed_unsync(StreamBody::new(chunks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_clipped_to_the_file_and_empty_ones_rejected() {
        let parse = |text: &str| parse(&HeaderValue::from_str(text).unwrap(), 100);
        assert_eq!(parse("bytes=0-9"), Some(0..10));
        assert_eq!(parse("bytes=90-200"), Some(90..100));
        assert_eq!(parse("bytes=90-"), Some(90..100));
        assert_eq!(parse("bytes=-10"), Some(90..100));
        assert_eq!(parse("bytes=-200"), Some(0..100));
        for bad in ["bytes=100-", "bytes=9-0", "bytes=-0", "bytes=a-b", "0-9"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
