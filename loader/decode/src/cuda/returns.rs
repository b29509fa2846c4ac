//! Return of memory that was lent to a framework.
//!
//! A consumer of DLPack names one stream, and may use the memory by others: JAX's stream for
//! exchange is not the one it computes on. So the memory is free after all work of the device that
//! was queued when it was dropped. A thread of its own waits for that: the consumer may drop it
//! anywhere, in a callback of the driver's included, where no call to the driver is allowed.
//! Waiting for all work makes a graph invalid that is captured meanwhile, so it is done once much
//! memory is to come back, or there is no other, and not for each tensor.

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
    /// Bytes that may wait.
    waiting_max: usize,
    thread: OnceLock<Sender<Message>>,
}

#[derive(Debug)]
enum Message {
    Memory(Memory),
    /// Answered once everything before it is back, or cannot be.
    Flush(SyncSender<()>),
}

impl Returns {
    /// Makes a way back on which `waiting_max` bytes may wait.
    pub(super) fn new(driver: &Arc<Driver>, waiting_max: usize) -> Self {
        let (driver, thread) = (driver.clone(), OnceLock::new());
        Self(Arc::new(Shared { driver, waiting_max, thread }))
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
        let (driver, max) = (self.0.driver.clone(), self.0.waiting_max);
        let thread = std::thread::Builder::new().name("fb-gpu-return".into());
        thread.spawn(move || run(&driver, max, &receiver)).map_err(|error| {
            let message = format!("failed to start the thread that takes GPU memory back: {error}");
            Error::new(ErrorKind::Unavailable, message).advise("raise the limit on processes")
        })?;
        // Of two that start at once, the thread of the second ends at once.
        let _ = self.0.thread.set(sender);
        Ok(())
    }

    /// Takes `memory` back after all work queued by now.
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

fn run(driver: &Arc<Driver>, waiting_max: usize, receiver: &Receiver<Message>) {
    let mut waiting = Vec::new();
    while let Ok(first) = receiver.recv() {
        let mut flushes = Vec::new();
        for message in std::iter::once(first).chain(receiver.try_iter()) {
            match message {
                Message::Memory(memory) => waiting.push(memory),
                Message::Flush(back) => flushes.push(back),
            }
        }
        let bytes: usize = waiting.iter().map(Memory::room).sum();
        if flushes.is_empty() && bytes <= waiting_max {
            continue;
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
