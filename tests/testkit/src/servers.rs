//! Servers that others wrote, started by tests: what Forebay is proven against.
//!
//! Each runs on free ports of 127.0.0.1 with everything it writes in a folder of its own, and is
//! gone with whatever it started when it is dropped, or when the process that started it ends, however
//! that comes. A server that is not installed is an error that says how to get it, never a skipped test.

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
