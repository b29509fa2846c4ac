//! Limits on replies that are held in memory as a whole. A hostile or broken store sends without
//! end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forebay_error::{Error, ErrorKind};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame};
use object_store::client::{HttpError, HttpErrorKind, HttpResponse, HttpResponseBody};

/// Bytes of a whole reply, at most. The longest valid one is a page of a listing: a thousand keys
/// of 1,024 bytes, each byte escaped to six characters at most, beside half a KiB of dates and tags
/// for each.
const REPLY_BYTES: usize = 16 << 20;

/// Bytes of an error document that are read: stores send some hundreds, proxies a page.
const ERROR_BYTES: usize = 256 << 10;

/// Returns the reply with a limit on its body, unless that is an object, which is read as a stream.
pub(super) fn bounded(reply: HttpResponse, is_object: bool) -> HttpResponse {
    match reply.status().is_success() {
        false => cut(reply),
        true if is_object => reply,
        true => whole(reply),
    }
}

/// Returns the reply with an error in place of what exceeds [`REPLY_BYTES`].
fn whole(reply: HttpResponse) -> HttpResponse {
    let (head, body) = reply.into_parts();
    let body = Limited::new(body, REPLY_BYTES).map_err(|error| match error.downcast() {
        Ok(own) => *own,
        Err(_) => {
            let long = Error::new(ErrorKind::Invalid, "a store's reply is too long to be one")
                .at("limit", REPLY_BYTES)
                .advise("check that the URL names an object store");
            HttpError::new(HttpErrorKind::Unknown, long)
        }
    });
    HttpResponse::from_parts(head, HttpResponseBody::new(body))
}

/// Returns the reply with the first [`ERROR_BYTES`] of its body.
fn cut(reply: HttpResponse) -> HttpResponse {
    let (head, body) = reply.into_parts();
    HttpResponse::from_parts(head, HttpResponseBody::new(Cut { body, left: ERROR_BYTES }))
}

/// The beginning of a body.
struct Cut {
    body: HttpResponseBody,
    left: usize,
}

impl Body for Cut {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)?) else {
            return Poll::Ready(None);
        };
        let mut left = self.left;
        let frame = frame.map_data(|mut data| {
            data.truncate(left);
            left -= data.len();
            data
        });
        self.left = left;
        Poll::Ready(Some(Ok(frame)))
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// A reply of so many bytes, in frames of 10,000.
    fn reply(len: usize) -> HttpResponse {
        let frames = (0..len)
            .step_by(10_000)
            .map(move |at| Ok(Frame::data(Bytes::from(vec![7; (len - at).min(10_000)]))));
        let body = StreamBody::new(stream::iter(frames.collect::<Vec<_>>()));
        HttpResponse::new(HttpResponseBody::new(body))
    }

    async fn read(reply: HttpResponse) -> Result<Vec<u8>, HttpError> {
        Ok(reply.into_body().bytes().await?.to_vec())
    }

    #[tokio::test]
    async fn error_documents_are_cut() {
        for (len, kept) in [
            (0, 0),
            (ERROR_BYTES - 1, ERROR_BYTES - 1),
            (ERROR_BYTES, ERROR_BYTES),
            (ERROR_BYTES + 1, ERROR_BYTES),
            (9 * ERROR_BYTES, ERROR_BYTES),
        ] {
            assert_eq!(read(cut(reply(len))).await.unwrap(), vec![7; kept], "{len}");
        }
    }

    #[tokio::test]
    async fn whole_replies_are_bounded() {
        assert_eq!(read(whole(reply(REPLY_BYTES))).await.unwrap().len(), REPLY_BYTES);
        let error = read(whole(reply(REPLY_BYTES + 1))).await.unwrap_err();
        let mut cause = std::error::Error::source(&error);
        let own = std::iter::from_fn(|| {
            let this = cause?;
            cause = this.source();
            Some(this)
        });
        let own = own.filter_map(|cause| cause.downcast_ref::<Error>()).next().unwrap();
        assert_eq!(own.kind(), ErrorKind::Invalid);
    }
}
