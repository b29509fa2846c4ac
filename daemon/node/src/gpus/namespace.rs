//! Checks that the process ids from NVIDIA's driver belong to this process's namespace.
//!
//! Where that is uncertain, no process is matched by its number.

use std::fs;

/// Linux's name of the initial process namespace: `PROC_PID_INIT_INO` of its sources, fixed since
/// 3.8.
const FIRST: &str = "pid:[4026531836]";

/// Drivers from this release on number processes as whoever asks sees them, and leave out those
/// that it does not see: `os_find_ns_pid` of the kernel module, in its sources since they are
/// published. Before, numbers are the node's.
const TRANSLATES: u32 = 515;

/// Returns true if the ids from a driver of this release are in this namespace.
pub(super) fn is_shared(driver: &str) -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid");
    is_shared_in(namespace.ok().as_deref().and_then(|link| link.to_str()), driver)
}

fn is_shared_in(namespace: Option<&str>, driver: &str) -> bool {
    let release = driver.split('.').next().and_then(|major| major.parse::<u32>().ok());
    namespace == Some(FIRST) || release.is_some_and(|release| release >= TRANSLATES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_driver_is_trusted_only_in_the_first_pid_namespace() {
        let elsewhere = Some("pid:[4026532214]");
        assert!(is_shared_in(Some(FIRST), "470.57.02") && is_shared_in(Some(FIRST), ""));
        assert!(is_shared_in(elsewhere, "515.43.04") && is_shared_in(None, "580.65.06"));
        assert!(!is_shared_in(elsewhere, "510.108.03") && !is_shared_in(elsewhere, "unknown"));
        assert!(!is_shared_in(None, "470.57.02"));
    }
}
