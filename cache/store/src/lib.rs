//! Where shards rest: one NVMe directory, filled once, read by record, recovered after a crash.
