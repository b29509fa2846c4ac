//! Detects a client's protocol: messages of trainers, or HTTP.
//!
//! The bytes are peeked at, not consumed. A frame begins with its length, which is at most
//! [`MAX_FRAME`]; an HTTP request begins with letters, which always make a larger length.

use std::os::fd::AsFd;
use std::time::Duration;

use forebay_wire::frame::MAX_FRAME;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Bytes that tell.
const FIRST: usize = 4;

// The smallest length that a method's bytes can make is still too large for a frame.
const _: () = assert!(u32::from_le_bytes([b'A', b' ', b' ', b' ']) as usize > MAX_FRAME);

/// Time for a client's first bytes: both kinds speak first, and at once.
const SPEAKS_WITHIN: Duration = Duration::from_secs(10);

/// Protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// Frames of messages.
    Frames,
    /// HTTP/1.1.
    Http,
}

/// Listens for the first word; none if the client says too little, or nothing in time.
pub(crate) async fn spoken(stream: &UnixStream) -> Option<Language> {
    tokio::time::timeout(SPEAKS_WITHIN, first_word(stream)).await.ok().flatten()
}

async fn first_word(stream: &UnixStream) -> Option<Language> {
    loop {
        // An error is the client's end.
        let ready = stream.ready(Interest::READABLE).await.ok()?;
        let mut first = [0; FIRST];
        let seen = stream.try_io(Interest::READABLE, || {
            let (seen, _) =
                recv(stream.as_fd(), &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
            // A part of it says nothing: `ready` is to wait until there is more.
            let is_over = seen == FIRST || seen == 0 || ready.is_read_closed();
            if is_over { Ok(seen) } else { Err(std::io::ErrorKind::WouldBlock.into()) }
        });
        match seen {
            Ok(FIRST) => return Some(language_of(first)),
            Ok(_) => return None,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Bytes that are neither a length nor a method go to the frame decoder, which reports the error.
fn language_of(first: [u8; FIRST]) -> Language {
    let may_begin_a_method = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b' ';
    if first[0].is_ascii_alphabetic() && first.iter().all(may_begin_a_method) {
        Language::Http
    } else {
        Language::Frames
    }
}
