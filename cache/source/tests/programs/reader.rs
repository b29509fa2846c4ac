//! A reader as a program, for this crate's tests.

fn main() -> forebay_error::Result<()> {
    forebay_source::serve()
}
