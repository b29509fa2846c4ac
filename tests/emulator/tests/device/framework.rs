//! Driver calls that a framework makes beside Forebay's.

use forebay_decode::DeviceTensor;

/// Driver calls made by the tests themselves, as by a framework.
pub(crate) struct Framework(libloading::Library);

impl Framework {
    /// The first device is current, as in a process with torch.
    pub(crate) fn new() -> Self {
        // SAFETY: it runs nothing when it is opened.
        let framework = Self(unsafe { libloading::Library::new("libcuda.so") }.unwrap());
        framework.set_current(1);
        framework
    }

    /// Makes a device's context current; its number is one more than the device's.
    pub(crate) fn set_current(&self, context: usize) {
        self.call("cuCtxSetCurrent", |set: &extern "C" fn(usize) -> i32| {
            assert_eq!(set(context), 0);
        });
    }

    pub(crate) fn current(&self) -> usize {
        let mut context = 0;
        let status = self
            .call("cuCtxGetCurrent", |get: &extern "C" fn(&mut usize) -> i32| get(&mut context));
        assert_eq!(status, 0);
        context
    }

    /// The host's time on the emulator's clock.
    pub(crate) fn clock(&self) -> u64 {
        self.call("forebay_emulator_clock", |clock: &extern "C" fn() -> u64| clock())
    }

    pub(crate) fn capture(&self, captures: bool) {
        let name = "forebay_emulator_capture";
        self.call(name, |capture: &extern "C" fn(bool)| capture(captures));
    }

    pub(crate) fn call<A, R>(&self, name: &str, call: impl FnOnce(&A) -> R) -> R {
        // SAFETY: callers name the type of the function.
        call(&*unsafe { self.0.get::<A>(name) }.unwrap())
    }

    pub(crate) fn allocate(&self, len: usize) -> u64 {
        let mut at = 0_u64;
        let status = self
            .call("cuMemAlloc_v2", |allocate: &extern "C" fn(&mut u64, usize) -> i32| {
                allocate(&mut at, len)
            });
        assert_eq!(status, 0);
        at
    }

    pub(crate) fn stream(&self) -> u64 {
        let mut stream = 0;
        let status = self.call("cuStreamCreate", |create: &extern "C" fn(&mut u64, u32) -> i32| {
            create(&mut stream, 1)
        });
        assert_eq!(status, 0);
        stream
    }

    /// Makes work of one stream wait for what is in line on another.
    pub(crate) fn order(&self, before: u64, after: u64) {
        let mut event = 0_u64;
        self.call("cuEventCreate", |create: &extern "C" fn(&mut u64, u32) -> i32| {
            assert_eq!(create(&mut event, 0), 0);
        });
        self.call("cuEventRecord", |record: &extern "C" fn(u64, u64) -> i32| {
            assert_eq!(record(event, before), 0);
        });
        self.call("cuStreamWaitEvent", |wait: &extern "C" fn(u64, u64, u32) -> i32| {
            assert_eq!(wait(after, event, 0), 0);
        });
    }

    /// Puts a copy in line, as a framework's kernel that reads a tensor.
    pub(crate) fn copy(&self, to: u64, from: u64, len: usize, stream: u64) {
        type Copy = extern "C" fn(u64, u64, usize, u64) -> i32;
        let status = self.call("cuMemcpyDtoDAsync_v2", |copy: &Copy| copy(to, from, len, stream));
        assert_eq!(status, 0);
    }

    pub(crate) fn fail_events(&self, fail: bool) {
        let name = "forebay_emulator_fail_events";
        self.call(name, |fail_events: &extern "C" fn(bool)| fail_events(fail));
    }

    /// Copies so far from memory that was registered.
    pub(crate) fn registered_copies(&self) -> u64 {
        let name = "forebay_emulator_registered_copies";
        self.call(name, |copies: &extern "C" fn() -> u64| copies())
    }

    pub(crate) fn synchronize(&self) {
        self.call("cuCtxSynchronize", |wait: &extern "C" fn() -> i32| assert_eq!(wait(), 0));
    }

    /// Reads an address of the emulator: its device memory is the process's.
    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        self.synchronize();
        // SAFETY: it was allocated, and as long.
        unsafe { std::slice::from_raw_parts(at as *const u8, len) }.to_vec()
    }

    /// A tensor copied to memory of the framework's, on a stream of its own.
    pub(crate) fn take(&self, tensor: DeviceTensor) -> (u64, usize) {
        let len = tensor.len();
        let at = self.allocate(len);
        // SAFETY: it was allocated just now, and the stream, too.
        unsafe { tensor.copy_to(at, self.stream()) }.unwrap();
        (at, len)
    }
}
