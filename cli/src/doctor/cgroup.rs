//! Limits of the control group on the daemon: memory, processors, threads.

use std::fs;
use std::path::Path;

use forebay_config::control_groups::{ControlGroups, number};

use super::finding::{Finding, size};
use super::machine::Machine;
use super::plan::Plan;

/// The checks' names.
const MEMORY: &str = "cgroup_memory";
const CPU: &str = "cgroup_cpu";
const PIDS: &str = "cgroup_pids";

/// Memory that the daemon takes beside frames and slabs: 256 MiB of indexes of open shards, as much
/// for its heap, eight shards that are unpacked by windows of 8 MiB, and the processes that read
/// files.
const BESIDE: u64 = 512 << 20;

/// Processors without which the daemon is in the way of itself: one moves bytes, one compares
/// checksums.
const CPUS: f64 = 2.0;

/// Threads and processes that a busy daemon has: 512 for calls that block, 128 where there is no
/// io_uring, a few for each processor, 64 that read files for one user.
const THREADS: u64 = 1024;

pub(super) fn check(machine: &Machine, plan: &Plan) -> Vec<Finding> {
    let groups = Groups::of(machine);
    vec![groups.memory(machine, plan), groups.cpu(), groups.pids()]
}

/// Control groups of the process whose limits count.
struct Groups {
    groups: ControlGroups,
}

impl Groups {
    fn of(machine: &Machine) -> Self {
        let text = machine.process("cgroup").unwrap_or_default();
        Self { groups: ControlGroups::of(&text, &machine.sys_path("")) }
    }

    fn memory(&self, machine: &Machine, plan: &Plan) -> Finding {
        if !self.groups.knows("memory") {
            return Finding::skipped(MEMORY, "no control group is visible");
        }
        let (most, high) = (self.groups.memory_max(), self.groups.memory_high());
        let need = plan.memory;
        let raise = |group: &Path, what: &str| {
            let place = plan.place("daemon", 0, "memory");
            format!(
                "systemd: `systemctl set-property UNIT {what}={}`; a container: `docker run \
                 --memory`, in Kubernetes `resources.limits.memory`; or {place}: lower memory (the \
                 group: {})",
                need.saturating_add(BESIDE),
                group.display()
            )
        };
        let whose = machine.whose();
        let finding = match (&most, &high) {
            (Some((most, group)), _) if *most < need => Finding::wrong(
                MEMORY,
                format!(
                    "{whose} may have {}, of which frames and slabs alone take {}: it would be \
                     killed",
                    size(*most),
                    size(need)
                ),
                raise(group, "MemoryMax"),
            ),
            (Some((most, group)), _) if *most < need.saturating_add(BESIDE) => Finding::warn(
                MEMORY,
                format!(
                    "{whose} may have {}: {} for frames and slabs leave less than {} for the rest",
                    size(*most),
                    size(need),
                    size(BESIDE)
                ),
                raise(group, "MemoryMax"),
            ),
            (_, Some((high, group))) if *high < need.saturating_add(BESIDE) => Finding::warn(
                MEMORY,
                format!("{whose} is throttled above {}: it takes {}", size(*high), size(need)),
                raise(group, "MemoryHigh"),
            ),
            (Some((most, _)), _) => {
                Finding::ok(MEMORY, format!("{} allowed, {} taken", size(*most), size(need)))
            }
            (None, _) => Finding::ok(MEMORY, "no limit"),
        };
        finding.figure("max_bytes", most.map(|(most, _)| most))
    }

    fn cpu(&self) -> Finding {
        if !self.groups.knows("cpu") {
            return Finding::skipped(CPU, "no control group is visible");
        }
        let first = |group: &Path| {
            // No limit is −1, which is no number of ours.
            let quota = number(&group.join("cpu.cfs_quota_us"))?;
            share(quota, number(&group.join("cpu.cfs_period_us"))?)
        };
        let second = |group: &Path| {
            let text = fs::read_to_string(group.join("cpu.max")).ok()?;
            let (quota, period) = text.split_once(' ')?;
            share(quota.parse().ok()?, period.trim().parse().ok()?)
        };
        let found = [self.groups.tightest("cpu", first), self.groups.tightest("cpu", second)];
        let least = found.into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0));
        match least {
            None => Finding::ok(CPU, "no limit"),
            Some((cpus, _)) if cpus >= CPUS => {
                Finding::ok(CPU, format!("{cpus:.1} processors' time")).figure("cpus", cpus)
            }
            Some((cpus, group)) => Finding::warn(
                CPU,
                format!("{cpus:.1} processors' time: a busy cache needs at least {CPUS}"),
                format!(
                    "systemd: `systemctl set-property UNIT CPUQuota=`; a container: `docker run \
                     --cpus`, in Kubernetes `resources.limits.cpu` (the group: {})",
                    group.display()
                ),
            )
            .figure("cpus", cpus),
        }
    }

    fn pids(&self) -> Finding {
        if !self.groups.knows("pids") {
            return Finding::skipped(PIDS, "no control group is visible");
        }
        match self.groups.tightest("pids", |group| number(&group.join("pids.max"))) {
            None => Finding::ok(PIDS, "no limit"),
            Some((most, _)) if most >= THREADS => {
                Finding::ok(PIDS, format!("{most} threads and processes")).figure("max", most)
            }
            Some((most, group)) => Finding::warn(
                PIDS,
                format!("{most} threads and processes: a busy daemon has up to {THREADS}"),
                format!(
                    "systemd: `systemctl set-property UNIT TasksMax={}`; a container: `docker run \
                     --pids-limit` (the group: {})",
                    4 * THREADS,
                    group.display()
                ),
            )
            .figure("max", most),
        }
    }
}

/// Processors that a quota comes to.
fn share(quota: u64, period: u64) -> Option<f64> {
    (period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::super::plan::test_plan;
    use super::*;

    const PLAN: &str = "[daemon]\nmemory = '4GiB'\n\
                        [[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '2GiB'\n";

    /// Verdicts on memory, processors and threads.
    fn verdicts(recorded: &Recorded) -> [Verdict; 3] {
        let (plan, _folder) = test_plan(PLAN);
        let found = check(&recorded.machine, &plan);
        [found[0].verdict, found[1].verdict, found[2].verdict]
    }

    /// A machine of the second version, whose process is in a service's group.
    fn second(files: &[(&str, &str)]) -> Recorded {
        let recorded = Recorded::new()
            .proc("self/cgroup", "0::/system.slice/forebay.service\n")
            .sys("fs/cgroup/cgroup.controllers", "cpu memory pids\n")
            .sys("fs/cgroup/system.slice/forebay.service/memory.max", "max\n");
        let put = |recorded: Recorded, (file, text): &(&str, &str)| {
            recorded.sys(&format!("fs/cgroup/system.slice/{file}"), text)
        };
        files.iter().fold(recorded, put)
    }

    #[test]
    fn no_limit_is_ok_and_no_group_is_skipped() {
        assert_eq!(verdicts(&second(&[])), [Verdict::Ok; 3]);
        assert_eq!(verdicts(&Recorded::new()), [Verdict::Skipped; 3]);
    }

    #[test]
    fn tightest_ancestor_cgroup_decides() {
        let (own, above) = ("forebay.service/memory.max", "memory.max");
        let memory = |limits: &[(&str, &str)]| verdicts(&second(limits))[0];
        assert_eq!(memory(&[(own, "8589934592\n"), (above, "max\n")]), Verdict::Ok);
        assert_eq!(memory(&[(own, "8589934592\n"), (above, "4294967295\n")]), Verdict::Wrong);
        assert_eq!(memory(&[(own, "4294967296\n")]), Verdict::Warn, "nothing beside slabs");
        assert_eq!(memory(&[("forebay.service/memory.high", "4294967296\n")]), Verdict::Warn);
        let (plan, _folder) = test_plan(PLAN);
        let tight = second(&[(above, "1073741824\n")]);
        let mend = check(&tight.machine, &plan)[0].mend.clone().unwrap();
        assert!(mend.contains("MemoryMax=4831838208") && mend.contains("forebay.toml:2"), "{mend}");
        assert!(mend.ends_with("/sys/fs/cgroup/system.slice)"), "{mend}");
    }

    #[test]
    fn cpu_and_thread_limits_are_checked() {
        let of = |file: &str, text: &str| verdicts(&second(&[(file, text)]));
        assert_eq!(of("forebay.service/cpu.max", "max 100000\n")[1], Verdict::Ok);
        assert_eq!(of("forebay.service/cpu.max", "200000 100000\n")[1], Verdict::Ok);
        assert_eq!(of("forebay.service/cpu.max", "150000 100000\n")[1], Verdict::Warn);
        assert_eq!(of("cpu.max", "0 0\n")[1], Verdict::Ok, "a period of nothing is no limit");
        assert_eq!(of("pids.max", "max\n")[2], Verdict::Ok);
        assert_eq!(of("pids.max", "4915\n")[2], Verdict::Ok);
        assert_eq!(of("pids.max", "512\n")[2], Verdict::Warn);
    }

    #[test]
    fn cgroup_v1_is_read_by_controller() {
        let first = |limit: &str, quota: &str| {
            // The container's path is the machine's, and not to be seen inside.
            Recorded::new()
                .proc("self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n")
                .sys("fs/cgroup/memory/memory.limit_in_bytes", limit)
                .sys("fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", quota)
                .sys("fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
        };
        let open = first("9223372036854771712\n", "-1\n");
        assert_eq!(verdicts(&open), [Verdict::Ok, Verdict::Ok, Verdict::Skipped]);
        let tight = first("2147483648\n", "50000\n");
        assert_eq!(verdicts(&tight), [Verdict::Wrong, Verdict::Warn, Verdict::Skipped]);
    }
}
