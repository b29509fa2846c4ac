//! All engines, for tests that hold on each.
//!
//! A test is written once and runs on every engine.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::print_stderr, reason = "a test that fails says on which engine")]

use forebay_uring::{Arena, Engine, EngineChoice, EngineConfig, Region};

/// One mebibyte.
pub(crate) const MIB: usize = 1 << 20;

/// The engines that were built, the one for production first.
pub(crate) const CHOICES: &[EngineChoice] = &[
    EngineChoice::Ring,
    EngineChoice::Threads,
    #[cfg(feature = "tokio-uring")]
    EngineChoice::TokioUring,
];

/// An engine that does `depth` operations at once.
pub(crate) fn start(choice: EngineChoice, depth: u32) -> Engine {
    let name = format!("{choice:?}").to_lowercase();
    Engine::start(EngineConfig { name, choice, depth, near: None }).expect("the engine starts")
}

/// Runs a case on each engine.
pub(crate) async fn on_each<F: AsyncFn(Engine)>(depth: u32, case: F) {
    for choice in CHOICES {
        eprintln!("on {choice:?}");
        case(start(*choice, depth)).await;
    }
}

/// An arena over at least `len` bytes.
pub(crate) fn arena(len: usize) -> Arena {
    Arena::new(Region::create("test", len).expect("there is memory"))
}

/// Bytes that differ from place to place, so that a misplaced block shows.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let word = |i: u64| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len as u64).step_by(8).flat_map(word).take(len).collect()
}
