//! Real servers and real shards for tests.
