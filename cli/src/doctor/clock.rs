//! Checks that the clock is right, and cheap to read.
//!
//! A synchronised clock is accepted; for another one the consequences are listed.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_error::{Doing, Result};
use rtime_clock::adjtime::{Timex, adjtimex};

use super::finding::Finding;
use super::machine::Machine;

const CHECK: &str = "clock";
const SOURCE: &str = "clocksource";

/// 2026-01-01: no clock is right that shows a time before this release was made …
const EARLIEST: u64 = 1_767_225_600;

/// … nor, by all means, 2100-01-01.
const LATEST: u64 = 4_102_444_800;

/// The kernel's bound on the clock's error stops growing here, in microseconds: nobody has
/// synchronised it for hours. `STA_UNSYNC` says less: some daemons leave it set on a clock that
/// they keep.
const UNKNOWN_ERROR: i64 = 16_000_000;

/// Largest step of the clock during the check: more is not slewing.
const STEP: Duration = Duration::from_millis(500);

/// S3 refuses signatures whose time is off by more.
const SIGNATURES: Duration = Duration::from_secs(15 * 60);

/// Clocks that a processor reads by itself.
const CHEAP: [&str; 6] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "arch_sys_counter", "timebase"];

/// A moment by both clocks, to compare with a later one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    monotonic: Instant,
    realtime: SystemTime,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { monotonic: Instant::now(), realtime: SystemTime::now() }
    }

    /// Returns the difference of the clocks' progress between two moments.
    fn apart(self, later: Self) -> Duration {
        let steady = later.monotonic.duration_since(self.monotonic);
        let shown = later.realtime.duration_since(self.realtime);
        // A clock that went back went apart by what it went back, too.
        shown.map_or_else(|back| back.duration() + steady, |shown| shown.abs_diff(steady))
    }
}

/// State of the clock.
#[derive(Debug)]
pub(super) struct Facts {
    /// Seconds since 1970.
    seconds: u64,
    /// Kernel's bound on its error, in microseconds.
    error: Result<i64>,
    /// Size of a step during the check.
    stepped: Duration,
}

impl Facts {
    pub(super) fn since(began: Moment) -> Self {
        let now = Moment::now();
        let seconds = now.realtime.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut asked = Timex::new();
        let error = adjtimex(&mut asked).map(|_state| asked.0.maxerror);
        Self { seconds, error: error.doing("read the clock's state"), stepped: began.apart(now) }
    }
}

pub(super) fn check(machine: &Machine, facts: &Facts) -> Vec<Finding> {
    vec![realtime(facts), source(machine)]
}

fn realtime(facts: &Facts) -> Finding {
    let synchronise = "`timedatectl set-ntp true` (or start chronyd)";
    let limit = SIGNATURES.as_secs() / 60;
    let now = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(facts.seconds));
    if !(EARLIEST..LATEST).contains(&facts.seconds) {
        let found = format!(
            "it shows {now}: certificates will fail, and stores reject signatures that are off by {limit} minutes"
        );
        return Finding::wrong(CHECK, found, format!("{synchronise}, or `date -s`"));
    }
    if facts.stepped > STEP {
        let by = facts.stepped.as_secs_f64();
        let found = format!("it was stepped by {by:.1} s within the last seconds");
        return Finding::warn(
            CHECK,
            found,
            format!("find the process that sets it; {synchronise}"),
        );
    }
    match &facts.error {
        Err(error) => Finding::skipped(CHECK, format!("it shows {now}; {}", error.message())),
        Ok(error) if *error >= UNKNOWN_ERROR => Finding::warn(
            CHECK,
            format!(
                "it shows {now} and is not synchronised: stores reject signatures once it is off by {limit} minutes"
            ),
            synchronise,
        ),
        Ok(error) => {
            let milliseconds = *error as f64 / 1000.0;
            Finding::ok(CHECK, format!("synchronised, at most {milliseconds:.1} ms off"))
                .figure("error_us", *error)
        }
    }
}

fn source(machine: &Machine) -> Finding {
    let file = "devices/system/clocksource/clocksource0/current_clocksource";
    match machine.sys(file) {
        None => Finding::skipped(SOURCE, "the kernel does not report its clock source"),
        Some(source) if CHEAP.contains(&source.as_str()) => Finding::ok(SOURCE, source),
        Some(source) => Finding::warn(
            SOURCE,
            format!("{source}: each clock read is a system call or worse"),
            "see `dmesg | grep -i tsc` for why the processor's own was dropped; where it is known \
             to be steady, boot with tsc=reliable",
        ),
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::{Error, ErrorKind};

    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::*;

    fn of(seconds: u64, error: Result<i64>, stepped: u64) -> Finding {
        realtime(&Facts { seconds, error, stepped: Duration::from_millis(stepped) })
    }

    #[test]
    fn a_synchronised_clock_is_ok() {
        let finding = of(EARLIEST, Ok(2_500), 3);
        assert_eq!(finding.verdict, Verdict::Ok);
        assert!(finding.found.contains("2.5 ms"), "{finding:?}");
    }

    #[test]
    fn unsynchronised_clock_is_a_warning() {
        let finding = of(EARLIEST, Ok(UNKNOWN_ERROR), 0);
        assert_eq!(finding.verdict, Verdict::Warn);
        assert!(finding.found.contains("2026-01-01T00:00:00Z"), "{finding:?}");
        assert!(finding.mend.unwrap().contains("timedatectl"));
        assert_eq!(of(EARLIEST, Ok(1), 501).verdict, Verdict::Warn, "stepped");
    }

    #[test]
    fn implausible_date_is_wrong() {
        assert_eq!(of(EARLIEST - 1, Ok(1), 0).verdict, Verdict::Wrong);
        assert_eq!(of(LATEST, Ok(1), 0).verdict, Verdict::Wrong);
    }

    #[test]
    fn clock_unreadable_in_the_kernel_is_skipped() {
        let refused = Error::new(ErrorKind::PermissionDenied, "no");
        assert_eq!(of(EARLIEST, Err(refused), 0).verdict, Verdict::Skipped);
        assert_eq!(source(&Recorded::new().machine).verdict, Verdict::Skipped);
    }

    #[test]
    fn slow_clock_source_is_a_warning() {
        let of = |source_name: &str| {
            let file = "devices/system/clocksource/clocksource0/current_clocksource";
            source(&Recorded::new().sys(file, source_name).machine)
        };
        assert_eq!(of("tsc\n").verdict, Verdict::Ok);
        assert_eq!(of("hpet\n").verdict, Verdict::Warn);
    }

    #[test]
    fn clock_steps_are_measured() {
        let began = Moment::now();
        assert!(began.apart(Moment::now()) < STEP);
        let back = SystemTime::now() - Duration::from_secs(5);
        let later = Moment { monotonic: Instant::now(), realtime: back };
        assert!(began.apart(later) > Duration::from_secs(4));
        let facts = Facts::since(began);
        assert!(facts.seconds > EARLIEST && facts.error.is_ok());
    }
}
