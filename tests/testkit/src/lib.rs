//! Real servers, real shards and power cuts for tests.
//!
//! Nothing here imitates a protocol. `s3s` over `hyper` answers requests, faults are injected
//! where a network has them, and tests wait for conditions, never for time.
//!
//! Only tests, benches and the example depend on this crate.

mod in_memory;
mod origin;
mod pause;
mod power;
mod proxy;
mod random;
mod random_faults;
mod servers;
mod tally;
mod tar;
mod unsynced;
mod unsynced_files;

pub use forebay_skip::{Requirement, is_root, skip};

pub use in_memory::InMemory;
pub use origin::{ACCESS_KEY, Counts, S3Server, SECRET_KEY};
pub use pause::{living_threads, pause};
pub use power::Power;
pub use proxy::{Fault, FaultProxy, RetryAfter, Traffic, When};
pub use random::{Random, for_seeds, say};
pub use random_faults::{DiskFault, RandomFaults};
pub use servers::{Azurite, Bucket, Ceph, Certificate, Moto, Nginx, Redis, tool};
pub use tar::{field, image, label, shard};
pub use unsynced::Unsynced;
pub use unsynced_files::{Lost, UnsyncedFiles};
