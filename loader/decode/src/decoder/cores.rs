//! CPUs of the decode threads.
//!
//! Only CPUs that the caller may use, and one each if that spreads threads evenly, which is
//! if there are as many. Fewer threads belong to one of several ranks, which would all choose the
//! same first CPUs; more are a user's wish. Those are left to the scheduler.

use forebay_error::{Doing, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the CPUs that this thread, and those it starts, may run on.
///
/// # Errors
/// The system call's error.
pub(super) fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).doing("read the CPUs that may decode")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Pins this thread to `cpu`.
pub(super) fn stay_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // Fails if the CPU was taken away meanwhile: then the thread runs where any other may.
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferPool;
    use crate::decoder::Decoder;

    /// Returns the CPUs of each thread of a decoder with `threads` threads.
    fn cpus(threads: usize) -> Vec<Vec<usize>> {
        let decoder = Decoder::new(Vec::new(), threads, &BufferPool::new(0), None).unwrap();
        decoder.threads.broadcast(|_| allowed().unwrap())
    }

    #[test]
    fn threads_get_one_cpu_each_if_counts_are_equal() {
        let all = allowed().unwrap();
        let each: Vec<Vec<usize>> = all.iter().map(|cpu| vec![*cpu]).collect();
        assert_eq!(cpus(all.len()), each);
        assert_eq!(cpus(all.len() + 1), vec![all.clone(); all.len() + 1], "more than there are");
        if all.len() > 1 {
            assert_eq!(cpus(all.len() - 1), vec![all.clone(); all.len() - 1], "fewer");
        }
        assert_eq!(allowed().unwrap(), all, "the caller stays free");
    }

    #[test]
    fn threads_stay_on_their_creators_cpus() {
        // On a thread of its own, whose affinity ends with it.
        std::thread::spawn(|| {
            let last = *allowed().unwrap().last().unwrap();
            stay_on(last);
            assert_eq!(cpus(1), [[last]]);
            assert_eq!(cpus(3), [[last], [last], [last]]);
        })
        .join()
        .unwrap();
    }
}
