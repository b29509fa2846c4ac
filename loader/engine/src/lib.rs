//! From bytes to batches: the plan, and the session that fills slots by it.
//!
//! ```text
//!   filter    expression over columns → samples of each shard   before the plan  filter.rs
//!   lengths   tokens of each sample, for batches by tokens      before the plan  lengths.rs
//!   plan      position → (shard, sample)                        pure, no I/O     plan.rs
//!   lease     shards that ranks take from a shared queue, and return             lease.rs
//!   session   one job: its runs, its slots, its look-ahead                       session.rs
//!     ├─ producer   batch k → located samples → slot           in batch order    session/producer.rs
//!     ├─ assembly   runs of neighbouring samples → O_DIRECT reads into the slot  session/assembly.rs
//!     ├─ slots      the slab: spans lent to the trainer                          session/slots.rs
//!     └─ ahead      shards needed soon: fetched and claimed                      session/ahead.rs
//! ```

pub mod filter;
pub mod lease;
pub mod lengths;
pub mod plan;
pub mod session;
