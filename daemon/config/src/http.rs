//! Secrets of the API over TCP: its token, its certificates, the key.

mod tls;
mod token;

pub use tls::{Fingerprint, Tls, TlsFiles};
pub use token::Token;
