//! On which pages the daemon's memory comes to lie.
//!
//! The pages that a piece of memory got decide; what the kernel is set to only explains why.

use forebay_error::Result;
use forebay_uring::{CHUNK, PageReport};

use super::finding::{Finding, size};
use super::machine::Machine;
use super::plan::{advice, without_advice};

const CHECK: &str = "huge_pages";

/// The pool of reserved pages of 2 MiB.
const POOL: &str = "kernel/mm/hugepages/hugepages-2048kB";

/// Kernel's setting for huge pages of shared memory, which includes memfds.
const SHARED: &str = "kernel/mm/transparent_hugepage/shmem_enabled";

/// `need`: bytes that the daemon would map.
pub(super) fn check(machine: &Machine, need: u64, tried: &Result<PageReport>) -> Finding {
    let pages = match tried {
        Ok(pages) => pages,
        Err(error) => {
            let mend = advice(error, "free some memory");
            return Finding::wrong(CHECK, without_advice(error), mend);
        }
    };
    let pool = |file: &str| {
        machine.sys_number(format!("{POOL}/{file}")).map_or(0, |n| n.saturating_mul(CHUNK as u64))
    };
    let (reserved, free) = (pool("nr_hugepages"), pool("free_hugepages"));
    // A daemon that runs has taken its own already.
    let usable = if machine.has_daemon() { reserved } else { free };
    let shared = machine.sys(SHARED).and_then(|text| chosen(&text));
    let shared = shared.unwrap_or_else(|| "absent".to_owned());
    let state = format!("pool of {}, shmem_enabled is {shared}", size(reserved));
    let finding = if pages.hugetlb > 0 && usable < need {
        Finding::warn(
            CHECK,
            format!(
                "reserved huge pages hold {} of the {} to map; the rest is on ordinary memory",
                size(usable),
                size(need)
            ),
            reserve(need),
        )
    } else if pages.small == 0 {
        let how = if pages.hugetlb > 0 { "reserved" } else { "joined by MADV_COLLAPSE" };
        Finding::ok(CHECK, format!("memory lies on pages of 2 MiB, {how} ({state})"))
    } else {
        let (why, mend) = if shared == "deny" {
            let path = machine.sys_path(SHARED);
            ("shmem_enabled denies them", format!("`echo never > {}`", path.display()))
        } else if shared == "absent" {
            ("the kernel is built without transparent ones", reserve(need))
        } else if machine.kernel_is_before(6, 1) {
            ("MADV_COLLAPSE came with Linux 6.1", reserve(need))
        } else {
            let compact = "`sysctl -w vm.compact_memory=1`, or reserve them at boot:";
            ("memory is fragmented", format!("{compact} {}", reserve(need)))
        };
        Finding::warn(
            CHECK,
            format!(
                "{} of {} tried lie on pages of 4 KiB: {why}; each read costs more CPU ({state})",
                size(pages.small as u64),
                size((pages.small + pages.collapsed + pages.hugetlb) as u64)
            ),
            mend,
        )
    };
    finding.figure("pool_bytes", reserved).figure("pool_free_bytes", free)
}

fn reserve(need: u64) -> String {
    let pages = need.div_ceil(CHUNK as u64);
    format!("`sysctl -w vm.nr_hugepages={pages}`, and keep it in /etc/sysctl.d/60-forebay.conf")
}

/// The word in brackets: what is chosen of what could be.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use forebay_error::{Error, ErrorKind};

    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::*;

    const NEED: u64 = 1 << 30;

    fn pages(hugetlb: usize, collapsed: usize, small: usize) -> Result<PageReport> {
        Ok(PageReport {
            hugetlb: hugetlb * CHUNK,
            collapsed: collapsed * CHUNK,
            small: small * CHUNK,
        })
    }

    fn machine(shared: &str, reserved: u64, free: u64, kernel: &str) -> Recorded {
        Recorded::new()
            .sys(SHARED, &format!("{shared}\n"))
            .sys(&format!("{POOL}/nr_hugepages"), &format!("{reserved}\n"))
            .sys(&format!("{POOL}/free_hugepages"), &format!("{free}\n"))
            .proc("sys/kernel/osrelease", kernel)
    }

    #[test]
    fn transparent_and_reserved_huge_pages_are_ok() {
        let recorded = machine("always within_size advise [never] deny force", 0, 0, "6.8.0");
        let joined = check(&recorded.machine, NEED, &pages(0, 4, 0));
        assert_eq!(joined.verdict, Verdict::Ok);
        assert!(joined.found.contains("never"), "{joined:?}");
        let recorded = machine("[never]", 512, 512, "5.15.0");
        assert_eq!(check(&recorded.machine, NEED, &pages(4, 0, 0)).verdict, Verdict::Ok);
    }

    #[test]
    fn reserved_pool_must_hold_all_memory_unless_daemon_runs() {
        let recorded = machine("[never]", 512, 511, "6.8.0");
        let short = check(&recorded.machine, NEED, &pages(4, 0, 0));
        assert_eq!(short.verdict, Verdict::Warn);
        assert!(short.mend.unwrap().contains("vm.nr_hugepages=512"));
        let recorded = recorded.with_daemon(7);
        assert_eq!(check(&recorded.machine, NEED, &pages(4, 0, 0)).verdict, Verdict::Ok);
    }

    #[test]
    fn small_pages_are_reported_with_their_reason() {
        for (shared, kernel, why, cure) in [
            ("never [deny]", "6.8.0", "denies", "echo never"),
            ("", "6.8.0", "built without", "nr_hugepages=512"),
            ("[never]", "5.15.0", "6.1", "nr_hugepages=512"),
            ("[never]", "6.8.0", "fragmented", "compact_memory"),
        ] {
            let recorded = machine(shared, 0, 0, kernel);
            let finding = check(&recorded.machine, NEED, &pages(0, 3, 1));
            assert_eq!(finding.verdict, Verdict::Warn);
            assert!(finding.found.contains(why), "{finding:?}");
            assert!(finding.mend.as_deref().unwrap().contains(cure), "{finding:?}");
        }
    }

    #[test]
    fn missing_memory_is_wrong() {
        let full = Err(Error::new(ErrorKind::Full, "not enough memory for a region"));
        assert_eq!(check(&Recorded::new().machine, NEED, &full).verdict, Verdict::Wrong);
    }
}
