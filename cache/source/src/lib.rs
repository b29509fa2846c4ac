//! Where shards come from: S3, HTTP and POSIX files behind one trait.
