//! Checks that the engines may register the daemon's memory.
//!
//! The check counts as the kernel does: every engine's registration by itself, against the soft
//! limit of its process, unless a capability of the machine exempts it.

use forebay_error::Result;
use forebay_store::frame_bytes;
use forebay_uring::{EngineKind, EngineReport};

use super::finding::{Finding, size};
use super::machine::Machine;
use super::plan::Plan;

const CHECK: &str = "memlock";

/// The limit's name in `/proc/PID/limits`.
const LIMIT: &str = "Max locked memory";

pub(super) fn check(machine: &Machine, plan: &Plan, engine: &Result<EngineReport>) -> Finding {
    if !engine.as_ref().is_ok_and(|report| report.kind == EngineKind::Ring) {
        return Finding::skipped(CHECK, "only io_uring registers memory");
    }
    let disks = plan.on_disk().count() as u64;
    if disks == 0 {
        return Finding::skipped(CHECK, "no tier on a disk, no engine");
    }
    let each = plan.registered();
    let need = each.saturating_mul(disks);
    let frames = frame_bytes(usize::try_from(each).unwrap_or(usize::MAX)) as u64;
    let frames = frames.saturating_mul(disks);
    let whose = machine.whose();
    let wanted = match disks {
        1 => format!("{} to register", size(need)),
        _ => format!("{} to register, for {disks} disks", size(need)),
    };
    let finding = if machine.may_lock_any() {
        Finding::ok(CHECK, format!("{whose} has CAP_IPC_LOCK: no limit applies; {wanted}"))
    } else {
        let Some(limit) = machine.limit(LIMIT) else {
            return Finding::skipped(CHECK, "the kernel does not report the limit");
        };
        let told = finding_of(limit.soft, need, &format!("{whose} may lock"), &wanted, frames);
        told.figure("limit_bytes", (limit.soft != u64::MAX).then_some(limit.soft))
    };
    finding.figure("needed_bytes", need)
}

fn finding_of(limit: u64, need: u64, may: &str, wanted: &str, frames: u64) -> Finding {
    if limit == u64::MAX {
        return Finding::ok(CHECK, format!("{may} any amount; {wanted}"));
    }
    let found = format!("{may} {}; {wanted}", size(limit));
    if limit >= need {
        return Finding::ok(CHECK, found);
    }
    let left_out = if limit < frames { "nothing will be" } else { "not all jobs' memory will be" };
    Finding::warn(
        CHECK,
        format!("{found}; {left_out}, and each read pins its pages anew"),
        "systemd: `systemctl edit UNIT`, [Service] LimitMEMLOCK=infinity; a shell: `ulimit -l \
         unlimited`, which a line `USER - memlock unlimited` in /etc/security/limits.conf allows; \
         a container: `docker run --ulimit memlock=-1`",
    )
}

#[cfg(test)]
mod tests {
    use forebay_uring::{Engine, EngineChoice, EngineConfig};

    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::super::plan::test_plan;
    use super::*;

    const PLAN: &str = "[daemon]\nmemory = '4GiB'\n\
        [[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '1GiB'\n\
        [[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '2GiB'\n\
        [[tier]]\nname = 'b'\npath = '/mnt/b'\ncapacity = '2GiB'\n";

    fn engine(kind: EngineKind) -> Result<EngineReport> {
        let choice = EngineChoice::Threads;
        let engine = Engine::start(EngineConfig { choice, ..EngineConfig::default() })?;
        Ok(EngineReport { kind, ..engine.report() })
    }

    fn of(limit: &str, capabilities: &str) -> Finding {
        let (plan, _folder) = test_plan(PLAN);
        let recorded = Recorded::new()
            .proc("self/limits", &format!("Max locked memory         {limit} {limit} bytes\n"))
            .proc("self/status", &format!("CapEff:\t{capabilities}\n"));
        check(&recorded.machine, &plan, &engine(EngineKind::Ring))
    }

    #[test]
    fn each_disk_engine_registers_all_but_tier_memory() {
        let finding = of("unlimited", "0");
        assert_eq!(finding.verdict, Verdict::Ok);
        assert_eq!(finding.figures["needed_bytes"], 6_u64 << 30, "{finding:?}");
        assert_eq!(of("6442450944", "0").verdict, Verdict::Ok);
    }

    #[test]
    fn low_limit_is_a_warning_with_a_remedy() {
        let some = of("6442450943", "0");
        assert_eq!(some.verdict, Verdict::Warn);
        assert!(some.found.contains("not all"), "{some:?}");
        // Two disks' frames, of 272 MiB each.
        assert!(of("570425344", "0").found.contains("not all"));
        assert!(of("570425343", "0").found.contains("nothing"));
        let none = of("8388608", "0");
        assert!(none.found.contains("8.0 MiB") && none.found.contains("nothing"), "{none:?}");
        let mend = none.mend.unwrap();
        assert!(mend.contains("LimitMEMLOCK=infinity") && mend.contains("ulimit -l"), "{mend}");
    }

    #[test]
    fn lock_capability_lifts_the_limit() {
        assert_eq!(of("8388608", "0000000000004000").verdict, Verdict::Ok);
        assert_eq!(of("8388608", "0000000000002000").verdict, Verdict::Warn);
    }

    #[test]
    fn check_is_skipped_without_registered_memory() {
        let (plan, _folder) = test_plan(PLAN);
        let machine = Recorded::new().machine;
        let threads = engine(EngineKind::Threads { reason: "chosen".to_owned() });
        assert_eq!(check(&machine, &plan, &threads).verdict, Verdict::Skipped);
        let ring = engine(EngineKind::Ring);
        assert_eq!(check(&machine, &plan, &ring).verdict, Verdict::Skipped, "no limits told");
        let (plan, _folder) = test_plan(&PLAN[..PLAN.find("[[tier]]\nname = 'a'").unwrap()]);
        assert_eq!(check(&machine, &plan, &ring).verdict, Verdict::Skipped, "no disk");
    }
}
