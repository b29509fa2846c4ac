//! The caller's side of one read or write.
//!
//! This future owns nothing that the kernel may touch. Before the operation is queued it
//! holds the transfer, which the kernel has not seen; afterwards it holds a channel.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_error::{Error, Result};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, oneshot};

use super::fault::{self, Faults};
use super::flight::{Flight, Transfer};
use super::queue::Order;
use super::shared::Shared;
use crate::GRANULE;
use crate::cipher::FileCipher;
use crate::file::DiskFile;
use crate::span::Span;

/// One of many reads for [`crate::Engine::read_many`].
#[derive(Debug)]
pub struct Read {
    /// The file to read from.
    pub file: DiskFile,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Destination of the bytes; its length is the number to read.
    pub into: Span,
}

/// Result of a finished operation.
#[derive(Debug)]
pub struct Done {
    /// The span that was lent to the operation. Empty for frozen and lent memory, and if the
    /// engine's thread died, which `result` then says.
    pub span: Span,
    /// Bytes moved: less than the span's length only for a read that met the file's end. Of an
    /// encrypted file only whole blocks count. After an error the span's bytes are unspecified.
    pub result: Result<usize>,
}

/// A read or write under way; resolves to [`Done`].
///
/// It starts at once if the engine has a permit free, else when first polled. Dropping it before
/// the end does not stop what the kernel has begun: the engine keeps file and span until it is
/// over.
///
/// # Panics
/// When polled again after it resolved.
#[must_use = "an operation that finds the engine busy starts only when polled"]
pub struct Operation(OperationState);

enum OperationState {
    /// Decided without the engine.
    Ready(Option<Done>),
    /// In line for a permit.
    Waiting(Box<Waiting>),
    /// Handed over. The stub is an empty piece of the span, for the answer if the engine dies.
    Flying {
        answer: oneshot::Receiver<Done>,
        stub: Option<Span>,
        /// For bytes that are encrypted, with the offset of the first.
        decryption: Option<(FileCipher, u64)>,
    },
}

struct Waiting {
    permit: Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>,
    transfer: Option<Transfer>,
    shared: Arc<Shared>,
    faults: Option<Arc<dyn Faults>>,
}

impl Operation {
    /// An operation that ends before it begins.
    pub(super) fn failed(span: Span, error: Error) -> Self {
        Self(OperationState::Ready(Some(Done { span, result: Err(error) })))
    }

    /// An operation over what [`Transfer::new`] made. If a permit is free the order to queue is put
    /// into `ready`.
    pub(super) fn prepare(
        made: Result<Transfer, Done>,
        shared: &Arc<Shared>,
        faults: Option<&Arc<dyn Faults>>,
        ready: &mut Vec<Order>,
    ) -> Self {
        match made {
            Err(done) => Self(OperationState::Ready(Some(done))),
            Ok(transfer) => match shared.queue.try_permit() {
                Some(permit) => {
                    let (state, flight) = board(transfer, permit);
                    ready.extend(fault::clear(faults, flight, shared));
                    Self(state)
                }
                None => Self(OperationState::Waiting(Box::new(Waiting {
                    permit: Box::pin(shared.queue.permits().acquire_owned()),
                    transfer: Some(transfer),
                    shared: Arc::clone(shared),
                    faults: faults.cloned(),
                }))),
            },
        }
    }
}

/// Splits a transfer into the flight for the engine and the state of who awaits it.
fn board(mut transfer: Transfer, permit: OwnedSemaphorePermit) -> (OperationState, Flight) {
    let stub = Some(transfer.memory.stub());
    let decryption = transfer.decryption();
    let (reply, answer) = oneshot::channel();
    transfer.board(reply, Some(permit));
    (OperationState::Flying { answer, stub, decryption }, Flight::Transfer(transfer))
}

/// Decrypts the whole blocks that were read; a rest of one cannot be read.
fn decrypt(mut done: Done, decryption: Option<(FileCipher, u64)>) -> Done {
    if let (Some((cipher, offset)), Ok(read)) = (decryption, &done.result) {
        let whole = read / GRANULE * GRANULE;
        done.result = cipher.decrypt(offset, &mut done.span[..whole]).map(|()| whole);
    }
    done
}

impl Future for Operation {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done> {
        loop {
            match &mut self.0 {
                OperationState::Ready(done) => {
                    return Poll::Ready(done.take().expect("an operation resolves once"));
                }
                OperationState::Waiting(waiting) => {
                    let permit = ready!(waiting.permit.as_mut().poll(context));
                    let transfer = waiting.transfer.take().expect("a waiting transfer is there");
                    match permit {
                        Ok(permit) => {
                            let (state, flight) = board(transfer, permit);
                            let Waiting { shared, faults, .. } = &**waiting;
                            shared.queue.push(fault::clear(faults.as_ref(), flight, shared));
                            self.0 = state;
                        }
                        Err(_) => {
                            let done = Done {
                                span: transfer.memory.into_span(),
                                result: Err(super::closed()),
                            };
                            self.0 = OperationState::Ready(Some(done));
                        }
                    }
                }
                OperationState::Flying { answer, stub, decryption } => {
                    let answer = ready!(Pin::new(answer).poll(context));
                    let stub = stub.take().expect("an operation resolves once");
                    let decryption = decryption.take();
                    self.0 = OperationState::Ready(None);
                    let done = answer
                        .unwrap_or_else(|_| Done { span: stub, result: Err(super::closed()) });
                    // Here, so that the caller's next pass finds the bytes in its CPU's cache.
                    return Poll::Ready(decrypt(done, decryption));
                }
            }
        }
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            OperationState::Ready(Some(_)) => "Operation(ready)",
            OperationState::Ready(None) => "Operation(over)",
            OperationState::Waiting(_) => "Operation(waiting)",
            OperationState::Flying { .. } => "Operation(flying)",
        })
    }
}
