//! Counters of an engine, counted where events happen.
//!
//! A system call is counted where it is made, so that calls per byte is a fact and not an estimate.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_histogram::{Histogram, Times};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One atomic per name, for operations a histogram of their times, and the plain copies of them
/// that callers see.
macro_rules! counters {
    (
        timed { $($(#[$timed_doc:meta])* $timed:ident,)* }
        plain { $($(#[$doc:meta])* $name:ident,)* }
    ) => {
        /// Counters of an engine since its start.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[schema(as = EngineCounters)]
        pub struct Counters {
            $($(#[$timed_doc])* pub $timed: u64,)*
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Durations of operations, from the request: the wait for a place in the queue is part of
        /// it.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Durations {
            $($(#[$timed_doc])* pub $timed: Times,)*
        }

        /// The live counts. Relaxed: each is exact by itself, none orders anything.
        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $(pub(crate) $timed: Histogram,)*
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counting {
            pub(crate) fn read(&self) -> Counters {
                Counters {
                    $($timed: self.$timed.read().count(),)*
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }

            pub(crate) fn durations(&self) -> Durations {
                Durations { $($timed: self.$timed.read(),)* }
            }
        }
    };
}

counters! {
    timed {
        /// Reads finished, well or not.
        reads,
        /// Writes finished, well or not.
        writes,
        /// Syncs finished, well or not.
        syncs,
    }
    plain {
        /// Calls into the kernel: io_uring_enter, io_uring_register and wake-up writes, or pread,
        /// pwrite and fdatasync in the pool.
        system_calls,
        /// Bytes read into spans.
        bytes_read,
        /// Bytes written from spans.
        bytes_written,
        /// Reads the kernel served in part and the engine asked for again.
        short_reads,
        /// Writes the kernel took in part and the engine handed on.
        short_writes,
        /// Operations that ended in an error.
        errors,
        /// Operations that used registered memory.
        fixed_ops,
    }
}

/// Adds to one count.
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
