//! Checks that the daemon may open enough files.
//!
//! The hard limit counts: the daemon raises its soft limit to it when it starts.

use forebay_store::OPEN_SHARDS;

use super::finding::Finding;
use super::machine::Machine;
use super::plan::Plan;

const CHECK: &str = "descriptors";

/// The limit's name in `/proc/PID/limits`.
const LIMIT: &str = "Max open files";

/// Descriptors of the process beside shards, without any job: rings, memory, its log, its sockets,
/// the pipes of its readers.
const OWN: u64 = 128;

/// Descriptors of jobs: for each of the 128 jobs that one user may have, a socket, two slabs and
/// the shards in flight.
const JOBS: u64 = 1024;

pub(super) fn check(machine: &Machine, plan: &Plan) -> Finding {
    let Some(limit) = machine.limit(LIMIT) else {
        return Finding::skipped(CHECK, "the kernel does not report the limit");
    };
    let shards = (plan.tiers.len() as u64).saturating_mul(OPEN_SHARDS as u64);
    let (least, enough) = (shards + OWN, shards + OWN + JOBS);
    let whose = machine.whose();
    let found = match limit.hard {
        u64::MAX => format!("{whose} may open any number of files; {enough} are enough"),
        hard => format!("{whose} may open {hard} files; {enough} are enough"),
    };
    let mend = "systemd: `systemctl edit UNIT`, [Service] LimitNOFILE=65536; a shell: a line \
                `USER - nofile 65536` in /etc/security/limits.conf; a container: `docker run \
                --ulimit nofile=65536`";
    let finding = if limit.hard >= enough {
        Finding::ok(CHECK, found)
    } else if limit.hard >= least {
        Finding::warn(CHECK, format!("{found}: many concurrent jobs will be rejected"), mend)
    } else {
        Finding::wrong(CHECK, format!("{found}: open shards alone need {least}"), mend)
    };
    finding.figure("limit", (limit.hard != u64::MAX).then_some(limit.hard)).figure("enough", enough)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::super::plan::test_plan;
    use super::*;

    #[test]
    fn hard_descriptor_limit_is_checked() {
        let (plan, _folder) =
            test_plan("[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '2GiB'\n");
        let of = |soft: &str, hard: &str| {
            let limits = format!("Max open files            {soft}      {hard}      files\n");
            check(&Recorded::new().proc("self/limits", &limits).machine, &plan)
        };
        assert_eq!(of("1024", "524288").verdict, Verdict::Ok);
        assert_eq!(of("1024", "unlimited").verdict, Verdict::Ok);
        let few = of("1024", "1024");
        assert_eq!(few.verdict, Verdict::Warn);
        assert!(few.mend.unwrap().contains("LimitNOFILE"));
        assert_eq!(of("256", "256").verdict, Verdict::Wrong);
        assert_eq!(check(&Recorded::new().machine, &plan).verdict, Verdict::Skipped);
    }
}
