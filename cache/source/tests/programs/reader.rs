//! A reader as a program, for this crate's tests, where layouts go by a name that any file may have
//! one under; with an argument, one that asks for credentials.

use forebay_error::{Error, ErrorKind};

fn main() -> forebay_error::Result<()> {
    let no_client = |_| Err(Error::new(ErrorKind::Invalid, "these tests have no clients"));
    match std::env::args().nth(1) {
        None => forebay_source::serve_layouts_of("user.lustre.lov", no_client),
        Some(_) => forebay_source::lend(),
    }
}
