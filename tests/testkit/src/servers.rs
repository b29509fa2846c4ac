//! Third-party servers that tests start.
//!
//! Each server runs on free ports of 127.0.0.1 and writes into a folder of its own. It ends
//! with its children when it is dropped, or when the test's process ends in any way. A missing
//! server is an error with advice, never a skipped test.

mod azurite;
mod ceph;
mod certificate;
mod moto;
mod nginx;
mod redis;
mod s3;
mod service;

pub use azurite::Azurite;
pub use ceph::Ceph;
pub use certificate::Certificate;
pub use moto::Moto;
pub use nginx::Nginx;
pub use redis::Redis;
pub use s3::Bucket;
pub use service::tool;
