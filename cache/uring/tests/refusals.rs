//! Real refusals by the kernel: io_uring itself, and the registration of memory.
//!
//! A refusal changes the engine or the speed, never an operation's result.

use forebay_error::ErrorKind;
use forebay_uring::{
    Arena, Engine, EngineChoice, EngineConfig, EngineKind, EngineReport, GRANULE, Open, Region,
};
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

/// Runs `case` on a thread whose limits and filters die with it.
fn on_own_thread<T: Send + 'static>(case: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(case).join().expect("the case passes")
}

/// Attaches a region, reads a file into it and returns the engine's report.
fn read_a_file(engine: &Engine) -> EngineReport {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let arena = Arena::new(Region::create("test", 1).expect("there is memory"));
        let registered = engine.attach(arena.region()).await.expect("the engine runs");
        assert!(!registered);
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"as ever").expect("the file is written");
        let file = engine.open(file.path(), Open::Read).await.expect("the file opens");
        let span = arena.lease(GRANULE).await.expect("there is room");
        let done = engine.read(&file, 0, span).await;
        assert_eq!(done.result.expect("the read goes well"), 7);
        assert_eq!(&done.span[..7], b"as ever");
        engine.report()
    })
}

/// Gives up the right to lock memory without limit, for the calling thread and those it starts.
fn obey_memlock() {
    let mut sets = rustix::thread::capabilities(None).expect("capabilities can be read");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    rustix::thread::set_capabilities(None, sets).expect("a capability can be given up");
    let little = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
    rustix::process::setrlimit(Resource::Memlock, little).expect("a limit can be lowered");
}

#[test]
fn a_low_memlock_limit_leaves_memory_unregistered() {
    let report = on_own_thread(|| {
        obey_memlock();
        let config = EngineConfig { choice: EngineChoice::Ring, ..EngineConfig::default() };
        read_a_file(&Engine::start(config).expect("a ring needs no locked memory"))
    });
    assert_eq!(report.kind, EngineKind::Ring);
    assert_eq!((report.registered_bytes, report.unregistered_bytes), (0, 2 << 20));
    assert!(report.refusal.expect("a refusal has a reason").contains("memlock"));
    assert_eq!(report.counters.fixed_ops, 0);
}

/// Makes io_uring_setup answer EPERM, as a container's seccomp profile does, for the calling thread
/// and those it starts.
fn forbid_io_uring() {
    let code = |code: u32| u16::try_from(code).expect("BPF codes are 16 bits");
    let step = |operation, k, jf| libc::sock_filter { code: code(operation), jt: 0, jf, k };
    // seccomp_data starts with the call's number.
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls read their arguments only while they run; the program and its filter live
    // on this stack until then.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

#[test]
fn forbidden_io_uring_falls_back_to_threads_with_a_reason() {
    let (report, refused) = on_own_thread(|| {
        forbid_io_uring();
        let engine = Engine::start(EngineConfig::default()).expect("there is always a pool");
        let config = EngineConfig { choice: EngineChoice::Ring, ..EngineConfig::default() };
        (read_a_file(&engine), Engine::start(config).expect_err("the ring alone was asked for"))
    });
    let EngineKind::Threads { reason } = report.kind else { panic!("{:?}", report.kind) };
    assert!(reason.contains("Operation not permitted"), "{reason}");
    assert!(reason.contains("kernel.io_uring_disabled"), "{reason}");
    assert!(report.ring_flags.is_empty());
    assert_eq!(report.unregistered_bytes, 2 << 20);
    assert!(report.refusal.expect("a refusal has a reason").contains("thread pool"));
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn auto_uses_io_uring_where_allowed() {
    let engine = Engine::start(EngineConfig::default()).unwrap();
    assert_eq!(engine.kind(), EngineKind::Ring);
    let json = serde_json::to_value(engine.report()).unwrap();
    assert_eq!(json["kind"], "ring");
    assert!(json["ring_flags"].is_array());
}

#[cfg(feature = "tokio-uring")]
#[test]
fn forbidden_tokio_uring_is_an_error() {
    let refused = on_own_thread(|| {
        forbid_io_uring();
        let choice = EngineChoice::TokioUring;
        Engine::start(EngineConfig { choice, ..EngineConfig::default() })
            .expect_err("there is none")
    });
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("kernel.io_uring_disabled"), "{refused}");
}
