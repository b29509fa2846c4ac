//! A reader as a program, for this crate's tests; with an argument, one that asks for credentials.

fn main() -> forebay_error::Result<()> {
    match std::env::args().nth(1) {
        None => forebay_source::serve(),
        Some(_) => forebay_source::lend(),
    }
}
