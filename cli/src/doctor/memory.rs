//! Checks that the machine has the memory the daemon may take.
//!
//! The daemon backs its memory at once, so all of it counts, not its present use.

use super::finding::{Finding, size};
use super::machine::Machine;
use super::plan::{Plan, SLABS_LEAST};

const CHECK: &str = "memory";

/// `in_memory`: bytes of tiers whose directories lie in memory, which count as the daemon's.
pub(super) fn check(machine: &Machine, plan: &Plan, in_memory: u64) -> Finding {
    let (Some(total), Some(available)) =
        (machine.meminfo("MemTotal"), machine.meminfo("MemAvailable"))
    else {
        return Finding::skipped(CHECK, "the kernel does not report the amount");
    };
    let need = plan.memory;
    let place = plan.place("daemon", 0, "memory");
    let least = plan.least().saturating_add(in_memory);
    let found = format!(
        "the daemon may take {} of {}, of which {} are available",
        size(need),
        size(total),
        size(available)
    );
    let finding = if need > total {
        let mend = format!("{place}: set memory below {}", size(total));
        Finding::wrong(CHECK, format!("{found}: more than there is"), mend)
    } else if in_memory > 0 && need <= least {
        let mend = format!("{place}: set memory to {} at least", size(least + SLABS_LEAST));
        Finding::wrong(CHECK, format!("{found}; tiers on tmpfs and frames use all of it"), mend)
    } else if need > available && !machine.has_daemon() {
        let mend = format!("free some memory, or {place}: set memory below {}", size(available));
        Finding::warn(CHECK, format!("{found}: other programs have it"), mend)
    } else {
        Finding::ok(CHECK, found)
    };
    finding.figure("total_bytes", total).figure("available_bytes", available)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::super::plan::test_plan;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn machine(total: u64, available: u64) -> Recorded {
        let (total, available) = (total >> 10, available >> 10);
        Recorded::new()
            .proc("meminfo", &format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n"))
    }

    #[test]
    fn planned_memory_is_compared_with_the_machines() {
        let text = "[daemon]\nmemory = '4GiB'\n\
                    [[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '2GiB'\n";
        let (plan, _folder) = test_plan(text);
        let of = |total, available, in_memory| {
            check(&machine(total, available).machine, &plan, in_memory)
        };
        assert_eq!(of(8 * GIB, 5 * GIB, 0).verdict, Verdict::Ok);
        let busy = of(8 * GIB, 3 * GIB, 0);
        assert_eq!(busy.verdict, Verdict::Warn);
        assert!(busy.mend.unwrap().contains("forebay.toml:2"));
        let runs = machine(8 * GIB, 3 * GIB).with_daemon(5);
        assert_eq!(check(&runs.machine, &plan, 0).verdict, Verdict::Ok, "it has its own");
        assert_eq!(of(3 * GIB, 3 * GIB, 0).verdict, Verdict::Wrong);
        assert_eq!(of(8 * GIB, 5 * GIB, 4 * GIB).verdict, Verdict::Wrong, "tmpfs");
        assert_eq!(check(&Recorded::new().machine, &plan, 0).verdict, Verdict::Skipped);
    }
}
