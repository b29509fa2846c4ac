//! Frames: a length, a message, and the descriptors attached to it.
//!
//! Layout: `u32` little-endian length of the body, then the body in postcard. A frame's length is
//! checked against [`MAX_FRAME`] before anything is allocated for it, and descriptors are taken in
//! the order they were sent.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::metered;

/// Largest body accepted: a list of a million shard URLs of 200 bytes, with room to spare.
pub const MAX_FRAME: usize = 256 << 20;

/// Bytes that a received message may take in memory for each that its frame may have: a batch of
/// small samples takes 16, half of them in lists that have room to grow.
pub const DECODED_PER_BYTE: usize = 16;

/// Bytes of the length prefix.
const PREFIX: usize = 4;

/// Bytes requested by one `recvmsg`: a typical batch message (256 samples of two members) is 16
/// KiB.
const RECEIVE: usize = 64 << 10;

/// Descriptors attached to one frame at most: a command's output and its status socket.
const RIDERS: usize = 2;

/// Descriptors accepted with one `recvmsg`.
const DESCRIPTORS: usize = 4;

/// Descriptors kept until a message asks for them. Each comes with the frame that announces it, so
/// more than a few are an attack on the descriptor table.
const DESCRIPTORS_KEPT: usize = 8;

/// Encodes a message as one frame.
///
/// # Errors
/// `Invalid` if the message is larger than [`MAX_FRAME`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let mut frame = postcard::to_extend(message, vec![0; PREFIX]).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("failed to encode a message: {error}"))
    })?;
    let body = frame.len() - PREFIX;
    match u32::try_from(body) {
        Ok(len) if body <= MAX_FRAME => frame[..PREFIX].copy_from_slice(&len.to_le_bytes()),
        _ => {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the message is larger than the largest frame",
            )
            .at("bytes", body)
            .at("limit", MAX_FRAME));
        }
    }
    Ok(frame)
}

/// Decodes the body of a frame; `charge` is told the memory that the message takes, and may refuse.
///
/// # Errors
/// `Invalid` if the body is not a message of this protocol; the refusal of `charge`.
fn decode<T: DeserializeOwned>(
    body: &[u8],
    charge: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<T> {
    metered::decode(body, charge).map_err(|wrong| match wrong {
        metered::Wrong::Refused(error) => error,
        metered::Wrong::Message(error) => Error::new(
            ErrorKind::Invalid,
            format!("the other end sent a message outside this protocol: {error}"),
        ),
    })
}

/// Returns a charge that refuses a message beyond `limit` bytes.
pub fn within(limit: usize) -> impl FnMut(usize) -> Result<()> {
    let mut taken = 0_usize;
    move |bytes| {
        taken = taken.saturating_add(bytes);
        match taken > limit {
            false => Ok(()),
            true => {
                Err(Error::new(ErrorKind::Invalid, "the received message takes too much memory")
                    .at("limit", limit))
            }
        }
    }
}

/// Reads a frame's length, and rejects one beyond `limit`.
///
/// # Errors
/// `Invalid` if it is too long.
fn body_len(prefix: [u8; PREFIX], limit: usize) -> Result<usize> {
    let len = u32::from_le_bytes(prefix) as usize;
    if len > limit {
        return Err(Error::new(
            ErrorKind::Invalid,
            "the other end announced a frame beyond the limit",
        )
        .at("bytes", len)
        .at("limit", limit));
    }
    Ok(len)
}

/// Sends as much of `bytes` as the socket takes, with `riders` (at most two descriptors) attached
/// to the first of them.
///
/// # Errors
/// The system call's own, `WouldBlock` included.
pub fn send(socket: impl AsFd, bytes: &[u8], riders: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIDERS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !riders.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(riders)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Sends one message over a blocking socket; `doing` names the operation in errors.
///
/// # Errors
/// As [`encode`]; `Closed` if the other end is gone.
pub fn send_whole<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    riders: &[BorrowedFd<'_>],
    doing: &str,
) -> Result<()> {
    let frame = encode(message)?;
    let mut sent = 0;
    while sent < frame.len() {
        match send(&socket, &frame[sent..], if sent == 0 { riders } else { &[] }) {
            Ok(some) => sent += some,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).doing(doing),
        }
    }
    Ok(())
}

/// Receives frames and their descriptors from a blocking socket.
#[derive(Debug)]
pub struct Receiver {
    buffer: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    limit: usize,
}

impl Default for Receiver {
    fn default() -> Self {
        Self::limited(MAX_FRAME)
    }
}

impl Receiver {
    /// Makes a receiver that accepts no body beyond `limit` bytes.
    #[must_use]
    pub fn limited(limit: usize) -> Self {
        Self { buffer: Vec::new(), descriptors: VecDeque::new(), limit }
    }

    /// Accepts no body beyond `limit` bytes from now on.
    pub fn limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Takes bytes of a non-blocking socket until the next message's first byte and length are
    /// known, and leaves them for [`Receiver::try_receive`]. The first byte of an enum is the index
    /// of its variant.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn try_announced(&mut self, socket: impl AsFd) -> Result<Option<(u8, usize)>> {
        if !self.fill(&socket, PREFIX + 1)? {
            return Ok(None);
        }
        Ok(Some((self.buffer[PREFIX], body_len(self.prefix(), self.limit)?)))
    }

    fn prefix(&self) -> [u8; PREFIX] {
        let mut prefix = [0; PREFIX];
        prefix.copy_from_slice(&self.buffer[..PREFIX]);
        prefix
    }

    /// Blocks until one whole message has arrived.
    ///
    /// # Errors
    /// `Closed` at the end of the stream, `Unavailable` after the socket's receive timeout,
    /// `Invalid` for a frame outside the protocol.
    pub fn receive<T: DeserializeOwned>(&mut self, socket: impl AsFd) -> Result<T> {
        let late = || {
            Error::new(
                ErrorKind::Unavailable,
                "the other end sent no complete message in \
                                                          time",
            )
        };
        self.try_receive(socket)?.ok_or_else(late)
    }

    /// Takes the bytes that a non-blocking socket has; `None` while the message is incomplete.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn try_receive<T: DeserializeOwned>(&mut self, socket: impl AsFd) -> Result<Option<T>> {
        let mut charge = within(self.limit.saturating_mul(DECODED_PER_BYTE));
        self.try_receive_charged(socket, &mut charge)
    }

    /// The same; `charge` is told the memory that the message takes, piece by piece, and may refuse
    /// it.
    ///
    /// # Errors
    /// As [`Receiver::receive`]; the refusal of `charge`.
    pub fn try_receive_charged<T: DeserializeOwned>(
        &mut self,
        socket: impl AsFd,
        charge: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Option<T>> {
        if !self.fill(&socket, PREFIX)? {
            return Ok(None);
        }
        let len = body_len(self.prefix(), self.limit)?;
        if !self.fill(&socket, PREFIX + len)? {
            return Ok(None);
        }
        let message = decode(&self.buffer[PREFIX..PREFIX + len], charge);
        self.buffer.drain(..PREFIX + len);
        // A long message does not hold its memory for the rest of the connection.
        self.buffer.shrink_to(RECEIVE);
        message.map(Some)
    }

    /// Takes the oldest descriptor received.
    ///
    /// # Errors
    /// `Invalid` if the other end sent none.
    pub fn take_descriptor(&mut self) -> Result<OwnedFd> {
        self.descriptors.pop_front().ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the other end announced a descriptor and sent none")
        })
    }

    /// Takes every descriptor received.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        self.descriptors.drain(..).collect()
    }

    /// Receives until `wanted` bytes have arrived; false if the socket has no more for now.
    fn fill(&mut self, socket: impl AsFd, wanted: usize) -> Result<bool> {
        while self.buffer.len() < wanted {
            let have = self.buffer.len();
            // Grows by the bytes already received, not by the announced length: the sender has to
            // send bytes to make memory grow.
            self.buffer.resize(have + (wanted - have).clamp(RECEIVE, RECEIVE.max(have)), 0);
            let received = self.receive_some(&socket, have);
            self.buffer.truncate(have + *received.as_ref().unwrap_or(&0));
            match received {
                Ok(0) => {
                    return Err(Error::new(
                        ErrorKind::Closed,
                        "the other end closed the connection",
                    ));
                }
                Ok(_) if self.descriptors.len() > DESCRIPTORS_KEPT => {
                    self.descriptors.clear();
                    let message = "the other end sent unexpected descriptors";
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).doing("receive a message"),
            }
        }
        Ok(true)
    }

    fn receive_some(&mut self, socket: impl AsFd, have: usize) -> io::Result<usize> {
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut target = [IoSliceMut::new(&mut self.buffer[have..])];
        let received = recvmsg(socket, &mut target, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.descriptors.extend(rights);
            }
        }
        Ok(received.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::leases::{LogPosition, Mark, Sharing};
    use crate::message::{
        Bad, BadSample, BinRule, Binning, Chosen, Decoded, Extent, Mixture, Open, Order, Phase,
        Picked, Progress, Proportion, Request, Stream,
    };

    #[test]
    fn descriptor_arrives_with_its_frame() {
        let (near, far) = UnixStream::pair().unwrap();
        let memfd = rustix::fs::memfd_create("wire-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memfd, b"slab").unwrap();
        let rider = [memfd.as_fd()];
        for (message, riders) in [
            (Request::Pace { bandwidth: 1 }, &[][..]),
            (Request::Release { slab: 1, slot: 2 }, &rider),
        ] {
            let frame = encode(&message).unwrap();
            assert_eq!(send(&near, &frame, riders).unwrap(), frame.len());
        }
        let mut receiver = Receiver::default();
        assert!(matches!(receiver.receive(&far).unwrap(), Request::Pace { bandwidth: 1 }));
        assert!(matches!(receiver.receive(&far).unwrap(), Request::Release { slab: 1, slot: 2 }));
        let received = receiver.take_descriptor().unwrap();
        let mut text = [0; 4];
        rustix::io::pread(&received, &mut text, 0).unwrap();
        assert_eq!(&text, b"slab");
        assert_eq!(receiver.take_descriptor().unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn split_frame_is_reassembled() {
        let frame = encode(&Request::Hello { protocol: 1, release: "x".repeat(1000) }).unwrap();
        for cut in [1, 3, 4, 5, frame.len() - 1] {
            let (near, far) = UnixStream::pair().unwrap();
            let (head, tail) = (frame[..cut].to_vec(), frame[cut..].to_vec());
            let sender = std::thread::spawn(move || {
                send(&near, &head, &[]).unwrap();
                send(&near, &tail, &[]).unwrap();
            });
            let mut receiver = Receiver::default();
            assert!(matches!(receiver.receive(&far).unwrap(), Request::Hello { .. }));
            sender.join().unwrap();
            let closed = receiver.receive::<Request>(&far).unwrap_err();
            assert_eq!(closed.kind(), ErrorKind::Closed);
        }
    }

    #[test]
    fn hostile_frame_length_allocates_nothing() {
        for (len, kind) in [(u32::MAX, ErrorKind::Invalid), (MAX_FRAME as u32, ErrorKind::Closed)] {
            let (near, far) = UnixStream::pair().unwrap();
            send(&near, &len.to_le_bytes(), &[]).unwrap();
            drop(near);
            let mut receiver = Receiver::default();
            let error = receiver.receive::<Request>(&far).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(receiver.buffer.capacity() < 1 << 20);
        }
    }

    #[test]
    fn unrequested_descriptors_are_closed() {
        let (near, far) = UnixStream::pair().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let frame = encode(&Request::Hello { protocol: 1, release: "x".repeat(100) }).unwrap();
        for byte in &frame[..DESCRIPTORS_KEPT + 1] {
            send(&near, &[*byte], &[theirs.as_fd()]).unwrap();
        }
        let mut receiver = Receiver::default();
        let error = receiver.receive::<Request>(&far).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        // The last copy is gone, so the other end sees the end of the stream.
        drop(theirs);
        let mut byte = [0];
        assert_eq!(rustix::io::read(&ours, &mut byte).unwrap(), 0);
    }

    /// Requests with `count` of the smallest elements in each of their lists in turn.
    fn long_requests(count: usize) -> Vec<Request> {
        let texts = || vec![String::new(); count];
        let marks = || vec![Mark { turn: 0, upto: 0 }; count];
        let map = || (0..count).map(|number| (format!("{number:x}"), String::new())).collect();
        let open = || Open::new("", Vec::new(), Order::of_list(1));
        let bad = BadSample {
            kind: ErrorKind::Invalid,
            url: None,
            key: None,
            field: None,
            offset: None,
            message: String::new(),
        };
        let decoded = Decoded { by: String::new(), why: String::new(), rows: 0 };
        let chosen = Chosen { samples: 0, version: None, digest: None, passing: Vec::new() };
        let log = LogPosition { log: String::new(), position: 0, next: 0, open: marks() };
        let sharing = |from, acknowledged, received| Sharing {
            group: String::new(),
            rank: 0,
            world_size: 1,
            is_spread: false,
            epoch: 0,
            take: 0,
            member: 0,
            batch: 0,
            done: 0,
            from,
            log: None,
            acknowledged,
            received,
            number: 0,
            keeper: None,
        };
        let share = |sharing| Request::Share { run: 1, sharing: Box::new(sharing) };
        let bin = |lengths, buckets| {
            let rule = BinRule { budget: 1, lookahead: 1, is_packed: false, buckets };
            Request::Bin(Box::new(Binning { rule, lengths }))
        };
        let requests = [
            Request::Open(Box::new(Open { urls: texts(), ..open() })),
            Request::Open(Box::new(Open { counts: Some(vec![0; count]), ..open() })),
            Request::Open(Box::new(Open { origin: map(), ..open() })),
            Request::Open(Box::new(Open { fields: Some(vec![texts()]), ..open() })),
            Request::Open(Box::new(Open { fields: Some(vec![Vec::new(); count]), ..open() })),
            Request::Index { url: String::new(), origin: map() },
            Request::List { pattern: String::new(), origin: map() },
            Request::Mix(Mixture {
                streams: vec![Stream { shards: 0, proportion: Proportion::Weight(0.0) }; count],
                phases: Vec::new(),
            }),
            Request::Mix(Mixture {
                streams: Vec::new(),
                phases: vec![Phase { from: 0, weights: vec![0.0], glide: None }; count],
            }),
            Request::Pick {
                run: 1,
                samples: vec![Picked { position: 0, shard: 0, ordinal: 0 }; count],
            },
            Request::Extent(Extent { bytes: vec![0; count], ranks: (0, 1) }),
            Request::Bad(Bad { counts: vec![(ErrorKind::Invalid, 0); count], last: Vec::new() }),
            Request::Bad(Bad { counts: Vec::new(), last: vec![bad; count] }),
            Request::Progress(Box::new(Progress {
                decoded: vec![decoded; count],
                ..Progress::default()
            })),
            share(sharing(Some(log), Vec::new(), Vec::new())),
            share(sharing(None, marks(), Vec::new())),
            share(sharing(None, Vec::new(), marks())),
            Request::Acknowledge { run: 1, number: 1, batch: 0, marks: marks() },
            Request::Choose { shards: vec![chosen; count] },
            bin(vec![1; 2 * count], Vec::new()),
            bin(Vec::new(), vec![1; 2 * count]),
        ];
        requests.into()
    }

    /// Every list of a message is charged for the memory that it takes, at least.
    #[test]
    fn every_list_is_charged_for_its_memory() {
        const COUNT: usize = 1 << 12;
        for (long, short) in long_requests(COUNT).into_iter().zip(long_requests(0)) {
            let taken = |request: &Request| {
                let (mut taken, frame) = (0, encode(request).unwrap());
                let mut charge = |bytes| {
                    taken += bytes;
                    Ok(())
                };
                let decoded: Request = decode(&frame[PREFIX..], &mut charge).unwrap();
                assert_eq!(format!("{decoded:?}"), format!("{request:?}"));
                (taken, frame.len())
            };
            let (more, frame) = taken(&long);
            let (less, _) = taken(&short);
            let name = format!("{long:?}").chars().take(60).collect::<String>();
            assert!(more - less >= COUNT * size_of::<u64>(), "{name}: {more} of {frame}");
            let refused = decode::<Request>(&encode(&long).unwrap()[PREFIX..], &mut within(frame));
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
    }

    #[test]
    fn list_of_empty_texts_is_charged_24_times_its_frame() {
        let texts = vec![String::new(); 1 << 16];
        let open = Open::new("", texts, Order::of_list(1));
        let frame = encode(&Request::Open(Box::new(open))).unwrap();
        let limit = (1 << 16) * size_of::<String>();
        let decoded = |limit| decode::<Request>(&frame[PREFIX..], &mut within(limit));
        assert!(decoded(limit + 4096).is_ok());
        assert_eq!(decoded(limit).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn garbage_is_invalid_and_never_panics() {
        for seed in 0_u8..=255 {
            let body: Vec<u8> = (0..64_u8).map(|i| i.wrapping_mul(31).wrapping_add(seed)).collect();
            if let Err(error) = decode::<Request>(&body, &mut within(MAX_FRAME)) {
                assert_eq!(error.kind(), ErrorKind::Invalid);
            }
        }
    }
}
