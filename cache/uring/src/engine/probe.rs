//! Checks that io_uring is present, permitted and able.
//!
//! Only a trial counts. A ring is set up, asked for its operations and made to complete one,
//! because containers forbid io_uring in more ways than one.

use std::io;

use forebay_error::{Doing, Error, ErrorKind, Result};
use io_uring::{Builder, IoUring, Probe, opcode};

use super::counters::{Counting, add};

/// A set of set-up flags: their names and how to ask for them.
type Rung = (&'static [&'static str], fn(&mut Builder));

/// From the best set down; a kernel that does not know a flag answers EINVAL to the set.
/// Deferred task work (6.1) lets completions arrive only when the thread asks for them, and in
/// batches; cooperative (5.19) at least spares interrupts; the last works on every kernel.
const RUNGS: [Rung; 4] = [
    (&["single_issuer", "coop_taskrun", "defer_taskrun"], |builder| {
        builder.setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun();
    }),
    (&["single_issuer", "coop_taskrun"], |builder| {
        builder.setup_single_issuer().setup_coop_taskrun();
    }),
    (&["coop_taskrun"], |builder| {
        builder.setup_coop_taskrun();
    }),
    (&[], |_| {}),
];

/// Operations the engine needs from the kernel.
const OPERATIONS: [(u8, &str); 5] = [
    (opcode::Read::CODE, "read"),
    (opcode::Write::CODE, "write"),
    (opcode::ReadFixed::CODE, "read_fixed"),
    (opcode::WriteFixed::CODE, "write_fixed"),
    (opcode::Fsync::CODE, "fsync"),
];

/// Sets a ring up for the calling thread and proves that it works. Returns the flags in use too.
pub(super) fn set_up(entries: u32, counting: &Counting) -> Result<(IoUring, Vec<&'static str>)> {
    let (mut ring, flags) = climb_down(entries, counting)?;
    check_operations(&ring, counting)?;
    complete_one(&mut ring, counting)?;
    Ok((ring, flags))
}

fn climb_down(entries: u32, counting: &Counting) -> Result<(IoUring, Vec<&'static str>)> {
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for (flags, ask) in RUNGS {
        let mut builder = IoUring::builder();
        // A forked child must not be able to touch the parent's ring.
        builder.dontfork();
        ask(&mut builder);
        add(&counting.system_calls, 1);
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, flags.to_vec())),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => return Err(explain(&error)),
        }
    }
    Err(explain(&refused))
}

/// The likely cause of a refusal, and what to do about it.
pub(super) fn explain(error: &io::Error) -> Error {
    let advice = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run `sysctl -w kernel.io_uring_disabled=0`, or allow io_uring in the container's seccomp profile"
        }
        Some(libc::ENOSYS) => "use Linux 5.19 or newer, or allow io_uring in the container",
        Some(libc::ENOMEM) => "raise the memlock limit (systemd: LimitMEMLOCK=infinity)",
        _ => "choose the thread pool, or see the errno",
    };
    Error::from_io("set up io_uring", error).advise(advice)
}

fn check_operations(ring: &IoUring, counting: &Counting) -> Result<()> {
    let mut probe = Probe::new();
    add(&counting.system_calls, 1);
    ring.submitter().register_probe(&mut probe).doing("probe io_uring's operations")?;
    match OPERATIONS.iter().find(|(code, _)| !probe.is_supported(*code)) {
        None => Ok(()),
        Some((_, name)) => {
            Err(Error::new(ErrorKind::Unavailable, "io_uring lacks an operation")
                .at("operation", name))
        }
    }
}

fn complete_one(ring: &mut IoUring, counting: &Counting) -> Result<()> {
    let nop = opcode::Nop::new().build();
    // SAFETY: a no-op refers to no memory and no descriptor.
    unsafe { ring.submission().push(&nop) }
        .map_err(|_| Error::new(ErrorKind::Unavailable, "a new io_uring is full"))?;
    add(&counting.system_calls, 1);
    ring.submit_and_wait(1).doing("run a no-op on io_uring")?;
    match ring.completion().next().map(|completion| completion.result()) {
        Some(0) => Ok(()),
        other => Err(Error::new(ErrorKind::Unavailable, "io_uring did not complete a no-op")
            .at("result", format!("{other:?}"))),
    }
}
