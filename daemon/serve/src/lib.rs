//! Listening: sockets, the language of each connection, the log, and the service manager.

mod greetings;
mod language;
mod listen;
pub mod logs;
pub mod supervisor;

pub use listen::{Listener, is_open, serve};
