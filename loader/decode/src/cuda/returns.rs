//! Return of memory that was lent to a framework.
//!
//! A consumer of DLPack names one stream, and may use the memory by others: JAX's stream for
//! exchange is not the one it computes on. So the memory is free after all work of the device that
//! was queued when it was dropped. A thread of its own waits for that: the consumer may drop it
//! anywhere, in a callback of the driver's included, where no call to the driver is allowed.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};

use forebay_error::{Error, ErrorKind, Result};

use super::driver::Driver;
use super::memory::Memory;

/// Memory on its way back. Clones share one thread, which starts with the first that is lent.
#[derive(Debug, Clone)]
pub(super) struct Returns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    driver: Arc<Driver>,
    thread: OnceLock<Sender<Message>>,
}

#[derive(Debug)]
enum Message {
    Memory(Memory),
    /// Answered once everything before it is back, or cannot be.
    Flush(SyncSender<()>),
}

impl Returns {
    pub(super) fn new(driver: &Arc<Driver>) -> Self {
        Self(Arc::new(Shared { driver: driver.clone(), thread: OnceLock::new() }))
    }

    /// Starts the thread, unless it runs.
    ///
    /// # Errors
    /// `Unavailable` if the system denies it.
    pub(super) fn start(&self) -> Result<()> {
        if self.0.thread.get().is_some() {
            return Ok(());
        }
        let (sender, receiver) = channel();
        let driver = self.0.driver.clone();
        let thread = std::thread::Builder::new().name("fb-gpu-return".into());
        thread.spawn(move || run(&driver, &receiver)).map_err(|error| {
            let message = format!("failed to start the thread that takes GPU memory back: {error}");
            Error::new(ErrorKind::Unavailable, message).advise("raise the limit on processes")
        })?;
        // Of two that start at once, the thread of the second ends at once.
        let _ = self.0.thread.set(sender);
        Ok(())
    }

    /// Takes `memory` back after all work queued by now.
    ///
    /// The line is as long as the consumer has tensors; it is emptied whenever memory is short.
    pub(super) fn take(&self, memory: Memory) {
        match self.0.thread.get() {
            // A thread that ended drops it, as here: after all work of the device.
            Some(sender) => drop(sender.send(Message::Memory(memory))),
            None => drop(memory),
        }
    }

    /// Waits until everything lent and dropped is back.
    pub(super) fn flush(&self) {
        let Some(sender) = self.0.thread.get() else { return };
        let (back, wait) = sync_channel(1);
        if sender.send(Message::Flush(back)).is_ok() {
            // An error is the end of the thread, which keeps nothing.
            let _ = wait.recv();
        }
    }
}

fn run(driver: &Arc<Driver>, receiver: &Receiver<Message>) {
    let mut waiting = Vec::new();
    while let Ok(first) = receiver.recv() {
        let mut flushes = Vec::new();
        for message in std::iter::once(first).chain(receiver.try_iter()) {
            match message {
                Message::Memory(memory) => waiting.push(memory),
                Message::Flush(back) => flushes.push(back),
            }
        }
        match driver.synchronize() {
            Ok(true) => {
                waiting.iter_mut().for_each(Memory::is_unused);
                waiting.clear();
            }
            // While a graph is captured nothing can be waited for: the next one tries again.
            Ok(false) => {}
            // The memory is gone with the device's context.
            Err(_) => waiting.clear(),
        }
        for back in flushes {
            let _ = back.send(());
        }
    }
}
