//! Which of two languages a peer speaks: messages of trainers, or HTTP.
//!
//! One rule: nothing is taken from the socket, only looked at. A frame begins with its length, which is at most
//! [`MAX_FRAME`]; a request of HTTP begins with letters, which read as a length are always more.

use std::os::fd::AsFd;
use std::time::Duration;

use forebay_wire::frame::MAX_FRAME;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Bytes that tell.
const FIRST: usize = 4;

// Of the bytes that a method may begin with, those that make the smallest length: still no frame's.
const _: () = assert!(u32::from_le_bytes([b'A', b' ', b' ', b' ']) as usize > MAX_FRAME);

/// How long a peer may take to say its first word: both kinds speak first, and at once.
const SPEAKS_WITHIN: Duration = Duration::from_secs(10);

/// What a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// Frames of messages.
    Frames,
    /// HTTP/1.1.
    Http,
}

/// Listens for the first word; none if the peer says too little, or nothing in time.
pub(crate) async fn spoken(stream: &UnixStream) -> Option<Language> {
    tokio::time::timeout(SPEAKS_WITHIN, first_word(stream)).await.ok().flatten()
}

async fn first_word(stream: &UnixStream) -> Option<Language> {
    loop {
        // An error is the peer's end.
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

/// What is no length and no method either is for the side of frames, which says what is wrong with it.
fn language_of(first: [u8; FIRST]) -> Language {
    let may_begin_a_method = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b' ';
    if first[0].is_ascii_alphabetic() && first.iter().all(may_begin_a_method) {
        Language::Http
    } else {
        Language::Frames
    }
}
