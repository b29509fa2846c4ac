//! Disk I/O that owns its memory: io_uring on a dedicated thread, aligned registered spans, and a thread pool where io_uring is forbidden.
