//! Which process this is, among those that forks make of one.
//!
//! Its rule: a fork makes everything before it another process's. What has threads, sockets or locks notes
//! its [`Generation`] when it is made, and leaves them alone once that is not the present one: in the child
//! the threads are not there, and the sockets are the parent's.
//!
//! The count is raised by `pthread_atfork`, in the child, before `fork` returns there: asking costs no
//! system call, and no process id can come again.
//!
//! ```
//! use forebay_wire::fork::Generation;
//! let made = Generation::now();
//! assert!(made.is_now());
//! ```

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Forks between the process that first asked and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

static REGISTERED: Once = Once::new();

/// A process, as what was made in it knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    /// That of this process.
    #[must_use]
    pub fn now() -> Self {
        REGISTERED.call_once(|| {
            // SAFETY: the handler is a plain function of this library, which is never unloaded; it only
            // raises a counter, which is allowed in a child of a process with threads.
            let registered = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
            // It fails only for want of a few bytes of memory, at the first use of the library.
            assert_eq!(registered, 0, "there is no memory to note forks with");
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is that of this process.
    #[must_use]
    pub fn is_now(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// That of its child.
    #[must_use]
    pub fn child(self) -> Self {
        Self(self.0 + 1)
    }

    /// Forks between the process that first asked and this one.
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

    /// The child's answer comes as its exit status: after a fork of a process with threads it may do no more.
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
    fn a_child_is_another_process_and_so_is_its_child() {
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
