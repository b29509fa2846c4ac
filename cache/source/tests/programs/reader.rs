//! A reader as a program, for this crate's tests, where layouts go by a name that any file may have
//! one under. With the argument `client` it waits for its client for ever; with another, it asks
//! for credentials.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use forebay_error::{Doing, Error, ErrorKind};
use forebay_source::Opener;

/// Tells the client that it waits, then waits for an answer.
fn wait_for_client(mut client: UnixStream) -> forebay_error::Result<Opener> {
    client.write_all(&[0]).doing("greet the client")?;
    client.read_exact(&mut [0]).doing("hear the client")?;
    Err(Error::new(ErrorKind::Invalid, "these clients never answer"))
}

fn main() -> forebay_error::Result<()> {
    let no_client = |_| Err(Error::new(ErrorKind::Invalid, "these tests have no clients"));
    match std::env::args().nth(1).as_deref() {
        None => forebay_source::serve_layouts_of("user.lustre.lov", no_client),
        Some("client") => forebay_source::serve_layouts_of("user.lustre.lov", wait_for_client),
        Some(_) => forebay_source::lend(),
    }
}
