//! Head of a reply to a request for an object: what the server said, and the form in which
//! object_store takes it.
//!
//! object_store rejects replies that make sense: the whole object in place of a range, a length
//! that only the end tells, an object without ETag or time. Such a reply is noted as it came, then
//! its head is worded as object_store expects it. The body stays as it is.

use std::ops::Range;

use object_store::HeaderValue;
use object_store::client::HttpResponse;
use reqwest::StatusCode;

/// The time that stands for none, as object_store takes it.
const NO_TIME: HeaderValue = HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT");

/// The ETag that stands for none.
const NO_ETAG: HeaderValue = HeaderValue::from_static("");

/// Head of a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    /// Length of the whole object; `None` if only its end tells it.
    pub(super) len: Option<u64>,
    /// Bytes of the object that follow; `None` for all of them.
    pub(super) range: Option<Range<u64>>,
    /// `Content-Range`, as it came.
    pub(super) content_range: Option<String>,
    /// True if a range was asked for.
    pub(super) asked_part: bool,
}

impl Head {
    /// True if the server sends the whole object where a part was asked for.
    pub(super) fn ignores_ranges(&self) -> bool {
        self.asked_part && self.range.is_none()
    }

    /// Notes the head of `response` to a request for the range `asked`, and words it for
    /// object_store.
    pub(super) fn take(asked: Option<&Range<u64>>, response: &mut HttpResponse) -> Self {
        drop_unreadable(response);
        let status = response.status();
        let text = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let content_range = text("content-range");
        let length = text("content-length").and_then(|length| length.trim().parse::<u64>().ok());
        let mut head =
            Self { status: status.as_u16(), asked_part: asked.is_some(), ..Self::default() };
        if !status.is_success() {
            return Self { content_range, ..head };
        }
        let part = content_range.as_deref().and_then(part_of);
        head.content_range = content_range;
        match (status, part) {
            (StatusCode::PARTIAL_CONTENT, Some((range, total))) => {
                set(response, "content-length", range.end - range.start);
                (head.range, head.len) = (Some(range), Some(total));
            }
            (StatusCode::PARTIAL_CONTENT, None) => {
                // Refused by object_store, with the header.
                head.range = Some(0..0);
                set(response, "content-length", 0);
            }
            _ => {
                head.len = length;
                if let Some(Range { start, end }) = asked {
                    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                    let range = format!("bytes {start}-{}/{end}", end.saturating_sub(1));
                    if let Ok(range) = HeaderValue::try_from(range) {
                        response.headers_mut().insert("content-range", range);
                    }
                }
                // Whether so many bytes come is seen as they come.
                set(response, "content-length", length.unwrap_or(0));
            }
        }
        head
    }
}

/// First byte, end and total length of a `Content-Range`.
fn part_of(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let range = first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?;
    (range.start < range.end).then_some((range, total.parse().ok()?))
}

/// The range of a `Range` header: `bytes=A-B`.
pub(super) fn range_of(value: &HeaderValue) -> Option<Range<u64>> {
    let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}

/// Removes headers that are no text, as a file's name in UTF-8 is, and supplies what object_store
/// demands of a store.
fn drop_unreadable(response: &mut HttpResponse) {
    let headers = response.headers_mut();
    let unreadable = |(name, value): (&reqwest::header::HeaderName, &HeaderValue)| {
        value.to_str().is_err().then(|| name.clone())
    };
    let names: Vec<_> = headers.iter().filter_map(unreadable).collect();
    for name in names {
        headers.remove(name);
    }
    headers.entry("etag").or_insert(NO_ETAG);
    let time = headers.get("last-modified").and_then(|time| time.to_str().ok());
    if time.is_none_or(|time| httpdate::parse_http_date(time).is_err()) {
        headers.insert("last-modified", NO_TIME);
    }
}

fn set(response: &mut HttpResponse, name: &'static str, number: u64) {
    response.headers_mut().insert(name, HeaderValue::from(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(
        status: u16,
        asked: Option<&Range<u64>>,
        headers: &[(&'static str, &str)],
    ) -> (Head, HttpResponse) {
        let mut response = HttpResponse::new(bytes::Bytes::new().into());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            response.headers_mut().insert(*name, value);
        }
        (Head::take(asked, &mut response), response)
    }

    #[test]
    fn whole_reply_to_a_range_is_noted_and_reworded() {
        let (noted, reply) = head(200, Some(&(0..8)), &[("content-length", "100")]);
        assert!(noted.ignores_ranges());
        assert_eq!((noted.len, noted.range), (Some(100), None));
        assert_eq!(reply.status(), 206);
        assert_eq!(reply.headers()["content-range"], "bytes 0-7/8");
        let (empty, _) = head(200, Some(&(0..8)), &[("content-length", "0")]);
        assert_eq!(empty.len, Some(0));
        let (stream, reply) = head(200, None, &[]);
        assert_eq!((stream.len, stream.ignores_ranges()), (None, false));
        assert_eq!(reply.headers()["content-length"], "0");
    }

    #[test]
    fn parts_tell_length_and_range() {
        let (part, reply) = head(206, Some(&(5..9)), &[("content-range", "bytes 5-8/20")]);
        assert_eq!((part.len, part.range.clone()), (Some(20), Some(5..9)));
        assert_eq!(reply.headers()["content-length"], "4");
        for odd in ["bytes 5-8/*", "bytes 8-5/20", "5-8/20", "bytes a-b/c"] {
            let (noted, _) = head(206, Some(&(5..9)), &[("content-range", odd)]);
            assert_eq!((noted.len, noted.content_range.as_deref()), (None, Some(odd)));
        }
    }

    #[test]
    fn unreadable_headers_are_dropped_and_missing_ones_supplied() {
        let (_, reply) =
            head(200, None, &[("content-disposition", "name=\u{e9}"), ("last-modified", "soon")]);
        assert!(!reply.headers().contains_key("content-disposition"));
        assert_eq!(reply.headers()["etag"], "");
        assert_eq!(reply.headers()["last-modified"], NO_TIME);
    }
}
