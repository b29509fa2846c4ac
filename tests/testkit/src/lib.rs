//! Real servers, real shards and power cuts for tests.
//!
//! Nothing here imitates a protocol. Requests are answered by `s3s` over `hyper`, faults are
//! made where a network would make them, and a test waits for conditions, never for time.
//!
//! Only tests, benches and the demonstration depend on this crate; nothing that ships does.

mod dice;
mod origin;
mod power;
mod proxy;
mod servers;
mod tally;
mod tar;
mod unsynced;
mod unsynced_files;
mod weather;

pub use forebay_skip::{Requirement, is_root, skip};

pub use dice::{Dice, for_seeds, say};
pub use origin::{ACCESS_KEY, Counts, S3Server, SECRET_KEY};
pub use power::Power;
pub use proxy::{Fault, FaultProxy, RetryAfter, Traffic, When};
pub use servers::{Azurite, Bucket, Ceph, Certificate, Moto, Nginx, Redis, tool};
pub use tar::{field, image, label, shard};
pub use unsynced::Unsynced;
pub use unsynced_files::{Lost, UnsyncedFiles};
pub use weather::{Sky, Weather};
