//! A connection that must keep moving: who takes no byte for too long is cut off, with the memory
//! that waits for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Time in which a peer must take a byte that waits for it.
const STALL: Duration = Duration::from_secs(10);

/// A stream whose writes must go on.
pub(crate) struct Paced<S> {
    stream: S,
    stall: Duration,
    /// End of the present stall; none while writes go on.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, stall: STALL, deadline: None }
    }

    fn stalls<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let end = Instant::now() + self.stall;
        let until = || Box::pin(tokio::time::sleep_until(end));
        let deadline = self.deadline.get_or_insert_with(until);
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.stalls(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.stalls(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.stalls(context, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn peer_that_takes_nothing_is_cut_off() {
        let (here, mut there) = tokio::io::duplex(4);
        let mut paced = Paced { stall: Duration::from_millis(20), ..Paced::new(here) };
        // It fits.
        paced.write_all(b"abcd").await.unwrap();
        let error = paced.write_all(b"e").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let mut taken = [0; 4];
        there.read_exact(&mut taken).await.unwrap();
        paced.write_all(b"fghi").await.unwrap();
    }
}
