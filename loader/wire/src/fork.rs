//! Identity of this process among its forks.
//!
//! After a fork, everything made before it belongs to another process. Objects with threads,
//! sockets or locks record their [`Generation`] when made, and stay unused in a later one: in the
//! child the threads do not exist, and the sockets are the parent's.
//!
//! `pthread_atfork` raises the count in the child before `fork` returns there. Reading it costs no
//! system call, and process ids may repeat without harm.
//!
//! ```
//! use forebay_wire::fork::Generation;
//! let made = Generation::now();
//! assert!(made.is_now());
//! ```

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Forks between the first process that asked and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

static REGISTERED: Once = Once::new();

/// Identity of a process among its forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    /// Returns that of this process.
    #[must_use]
    pub fn now() -> Self {
        REGISTERED.call_once(|| {
            // SAFETY: the handler is a plain function of this library, which is never unloaded; it
            // only raises a counter, which is allowed in a child of a process with threads.
            let registered = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
            // It fails only for lack of a few bytes of memory, at the first use of the library.
            assert_eq!(registered, 0, "no memory to register a fork handler");
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// True if it is that of this process.
    #[must_use]
    pub fn is_now(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// Returns that of its child.
    #[must_use]
    pub fn child(self) -> Self {
        Self(self.0 + 1)
    }

    /// Forks between the first process that asked and this one.
    #[must_use]
    pub fn forks(self) -> u64 {
        self.0
    }
}

extern "C" fn in_the_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The child answers by its exit status: after a fork of a multithreaded process it may do no
    /// more.
    fn in_a_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing but the body, which allocates nothing, and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = if body() { 0 } else { 1 };
            // SAFETY: it ends the child at once.
            unsafe { libc::_exit(code) }
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: `status` is there for the result, and the child is this process's.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn each_forked_child_is_another_generation() {
        let made = Generation::now();
        assert!(in_a_child(|| {
            let own = Generation::now();
            !made.is_now()
                && own != made
                && own == made.child()
                && own.is_now()
                && in_a_child(|| !own.is_now() && Generation::now() != made)
        }));
        assert!(made.is_now());
        assert_eq!(Generation::now(), made);
    }
}
