//! Time for the plan to find samples: at any position of an epoch, and one after another.
//! A look-up starts from nothing, as a resumed job does; the following ones come after it.
//! ```text
//! cargo bench --workspace --bench plan
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_engine::plan::{self, Known, Located, Mix, Sequence};
use forebay_wire::message::{Order, Shuffle};

/// Positions looked up one after another: so many that a clock's tick is nothing.
const IN_A_ROW: u64 = 1 << 20;

/// Looks ahead, one with each batch.
const LOOKS_AHEAD: u64 = 100;

/// As many open shards as a session looks at.
const OPEN_MAX: u64 = 1024;

/// Looks samples up in orders over many shards.
#[derive(Parser)]
struct Arguments {
    /// Shards of the data set.
    #[arg(long, default_value_t = 1_000_000)]
    shards: u32,
    /// Samples of each shard.
    #[arg(long, default_value_t = 1000)]
    samples: u64,
    /// Times the data set is played in an epoch; the position looked up is in the last.
    #[arg(long, default_value_t = 10)]
    passes: u64,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let counts = vec![arguments.samples; arguments.shards as usize];
    let total = arguments.samples * u64::from(arguments.shards);
    println!("{} shards of {} samples", arguments.shards, arguments.samples);
    println!("{:<10} {:>12} {:>14} {:>14}", "shuffle", "resume ms", "sample ns", "look-ahead µs");
    for shuffle in [Shuffle::None, Shuffle::Window, Shuffle::Global] {
        let order = Order {
            shuffle,
            epoch_samples: Some(total * arguments.passes),
            ..Order::shuffled(64, 1, 256)
        };
        let lanes = plan::lanes(&order, arguments.shards, true).unwrap();
        // In the last pass, past its middle.
        let at = total * (arguments.passes - 1) + total / 5 * 3;
        let known = |_| Known::AtLeast(0);
        let own = counts.clone();
        let (resume, mut sequence) = timed(|| {
            let mut sequence = Sequence::new(&order, arguments.shards, Some(own), lanes, 0);
            assert!(matches!(sequence.locate(at, &known), Located::Sample { .. }));
            sequence
        });
        let (row, ()) = timed(|| {
            for position in at..(at + IN_A_ROW).min(total * arguments.passes) {
                black_box(sequence.locate(position, &known));
            }
        });
        let limit = usize::try_from(sequence.open(|_| true).min(OPEN_MAX)).unwrap() + 8;
        let (ahead, ()) = timed(|| {
            for look in 0..LOOKS_AHEAD {
                black_box(sequence.upcoming(at + look * 256, limit, |_| true));
            }
        });
        println!(
            "{:<10} {:>12.1} {:>14.0} {:>14.0}",
            format!("{shuffle:?}"),
            resume.as_secs_f64() * 1e3,
            row.as_secs_f64() * 1e9 / IN_A_ROW as f64,
            ahead.as_secs_f64() * 1e6 / LOOKS_AHEAD as f64,
        );
    }
    mixture(total);
}

/// Mixtures by repeat have no shorter period than their epoch.
fn mixture(total: u64) {
    // Four streams; the rarest has one sample in a thousand. Odd, so that nothing divides them.
    let parts = [total / 10 * 7 + 1, total / 5 + 3, total / 10 - 5, total / 1000 + 1];
    let mut mix = Mix::new(&parts).unwrap();
    let at = total / 5 * 3;
    let (jump, _) = timed(|| black_box(mix.at(at)));
    let (row, ()) = timed(|| {
        for position in at..at + IN_A_ROW {
            black_box(mix.at(position));
        }
    });
    println!(
        "a mixture of {} streams: {jump:.1?} to a position, {:.1} ns to the next",
        parts.len(),
        row.as_secs_f64() * 1e9 / IN_A_ROW as f64
    );
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed(), done)
}
