//! I/O engine the daemon would run, and the obstacles to io_uring.
//!
//! The started engine decides; the kernel's settings only explain.

use forebay_error::Result;
use forebay_uring::{EngineKind, EngineReport};

use super::finding::Finding;
use super::machine::Machine;
use super::plan::{advice, without_advice};

const CHECK: &str = "io_uring";

/// The flag by which completions come in batches (Linux 6.1): it spares an interrupt each.
const BEST: &str = "defer_taskrun";

/// A file that keeps a kernel setting over restarts.
const SYSCTL: &str = "/etc/sysctl.d/60-forebay.conf";

pub(super) fn check(machine: &Machine, engine: &Result<EngineReport>) -> Finding {
    let kernel = machine.kernel();
    let report = match engine {
        Ok(report) => report,
        Err(error) => {
            let found = format!("the daemon cannot start its engine: {}", without_advice(error));
            return Finding::wrong(CHECK, found, mend(machine, &advice(error, NEWER)));
        }
    };
    let finding = match &report.kind {
        EngineKind::Ring if report.ring_flags.iter().any(|flag| flag == BEST) => {
            Finding::ok(CHECK, format!("works on Linux {kernel}: {}", report.ring_flags.join(", ")))
        }
        EngineKind::Ring => Finding::warn(
            CHECK,
            format!("works on Linux {kernel}, but without {BEST}: each completion interrupts"),
            "use Linux 6.1 or newer",
        ),
        EngineKind::Threads { reason } if reason.starts_with("chosen") => {
            let found = format!("not used: {} threads are {reason}", report.in_flight_limit);
            return Finding::skipped(CHECK, found);
        }
        EngineKind::Threads { reason } => {
            let (why, said) = reason.split_once("; ").unwrap_or((reason, NEWER));
            let found = format!(
                "not usable on Linux {kernel}: {why}; the daemon would use {} threads, at more CPU \
                 a read",
                report.in_flight_limit
            );
            Finding::warn(CHECK, found, mend(machine, said))
        }
        // Only tests and benchmarks can choose another.
        #[allow(unreachable_patterns, reason = "a feature adds kinds")]
        kind => Finding::ok(CHECK, format!("{kind:?}")),
    };
    finding.figure("kernel", kernel).figure("in_flight_limit", report.in_flight_limit)
}

const NEWER: &str = "use Linux 5.19 or newer";

/// Returns the remedy that makes io_uring usable; `otherwise` if the kernel does not tell the
/// obstacle.
fn mend(machine: &Machine, otherwise: &str) -> String {
    let disabled = machine.proc("sys/kernel/io_uring_disabled");
    match disabled.as_deref() {
        Some("2") => format!(
            "`sysctl -w kernel.io_uring_disabled=0`, and to keep it: \
             `echo kernel.io_uring_disabled=0 > {SYSCTL}`"
        ),
        Some("1") => format!(
            "`sysctl -w kernel.io_uring_group=$(id -g)` as the daemon's group (or \
             kernel.io_uring_disabled=0), and keep it in {SYSCTL}"
        ),
        _ if machine.is_filtered() => "allow io_uring_setup, io_uring_enter and io_uring_register \
             in the container's seccomp profile: `docker run --security-opt seccomp=FILE`, in \
             Kubernetes `seccompProfile: {type: Localhost, localhostProfile: FILE}`"
            .to_owned(),
        _ => otherwise.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::{Error, ErrorKind};
    use forebay_uring::{Counters, Durations, EngineReport};

    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::*;

    fn report(kind: EngineKind, ring_flags: &[&'static str]) -> Result<EngineReport> {
        Ok(EngineReport {
            name: "doctor".to_owned(),
            kind,
            in_flight_limit: 128,
            ring_flags: ring_flags.iter().map(|flag| (*flag).to_owned()).collect(),
            node: None,
            registered_bytes: 0,
            unregistered_bytes: 0,
            refusal: None,
            files: 0,
            registered_files: 0,
            buffered_files: 0,
            counters: Counters::default(),
            durations: Durations::default(),
        })
    }

    fn threads(reason: &str) -> Result<EngineReport> {
        report(EngineKind::Threads { reason: reason.to_owned() }, &[])
    }

    const REFUSED: &str = "failed to set up io_uring: Operation not permitted (os error 1); run it";

    #[test]
    fn ring_is_ok_and_an_old_kernel_is_a_warning() {
        let new = Recorded::new().proc("sys/kernel/osrelease", "6.8.0-45-generic\n");
        let good = check(&new.machine, &report(EngineKind::Ring, &["single_issuer", BEST]));
        assert_eq!(good.verdict, Verdict::Ok);
        assert!(good.found.contains("6.8.0-45-generic"), "{good:?}");
        let old = check(&new.machine, &report(EngineKind::Ring, &["coop_taskrun"]));
        assert_eq!((old.verdict, old.mend.unwrap().contains("6.1")), (Verdict::Warn, true));
    }

    #[test]
    fn threads_chosen_by_configuration_are_skipped() {
        let recorded = Recorded::new();
        let chosen = check(&recorded.machine, &threads("chosen by configuration"));
        assert_eq!(chosen.verdict, Verdict::Skipped);
    }

    #[test]
    fn forbidden_io_uring_is_a_warning_with_its_remedy() {
        let disabled = |value: &str| {
            let recorded = Recorded::new().proc("sys/kernel/io_uring_disabled", value);
            check(&recorded.machine, &threads(REFUSED))
        };
        for (value, cure) in
            [("2\n", "io_uring_disabled=0"), ("1\n", "io_uring_group"), ("0\n", "run it")]
        {
            let finding = disabled(value);
            assert_eq!(finding.verdict, Verdict::Warn);
            assert!(finding.found.contains("Operation not permitted"), "{finding:?}");
            assert!(finding.mend.as_deref().unwrap().contains(cure), "{finding:?}");
        }
        let contained = Recorded::new()
            .proc("sys/kernel/io_uring_disabled", "0\n")
            .proc("self/status", "Seccomp:\t2\n");
        let finding = check(&contained.machine, &threads(REFUSED));
        assert!(finding.mend.unwrap().contains("seccomp="));
    }

    #[test]
    fn requested_but_unavailable_ring_is_wrong() {
        let error = Error::new(ErrorKind::PermissionDenied, "no").advise("do this");
        let finding = check(&Recorded::new().machine, &Err(error));
        assert_eq!((finding.verdict, finding.mend.unwrap().as_str()), (Verdict::Wrong, "do this"));
    }
}
