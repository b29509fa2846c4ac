//! A GPU's batches, on a machine without one: the real kernels and the real decoder on the
//! emulator, which does everything as late as it may.

#![allow(unsafe_code, reason = "frameworks' memory and streams are addresses")]
#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod emulated;

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};

use forebay_decode::{
    Backend, BufferPool, Column, Crop, DType, Decoded, Decoder, Device, DeviceTensor, FieldKind,
    FieldSpec, ImageSpec, Layout, PadValue, Ragged, RawSpec, Record, WithNvjpeg,
};
use forebay_error::ErrorKind;
use forebay_wire::slab::Slab;
use rustix::fs::MemfdFlags;

use emulated::{is_emulated, nvjpeg};

/// Bytes between one file and the next, as headers of a tar.
const GAP: usize = 512;

/// The decoder of a device that has all.
const FIRST: &str = "nvjpeg_engines";

fn open() -> Arc<Device> {
    Device::open(0, Some(&nvjpeg())).unwrap()
}

/// A device to which files are copied before they are decoded.
fn open_with_copies() -> Arc<Device> {
    let nvjpeg = WithNvjpeg { backend: Some(Backend::Engines), ..nvjpeg() };
    Device::open(0, Some(&nvjpeg)).unwrap()
}

fn data(name: &str) -> Vec<u8> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../loader/decode/tests/data");
    std::fs::read(home.join(name)).unwrap()
}

/// A JPEG with a comment.
fn saying(name: &str, comment: &str) -> Vec<u8> {
    let mut file = data(name);
    let mut segment = vec![0xff, 0xfe, 0, (comment.len() + 2) as u8];
    segment.extend_from_slice(comment.as_bytes());
    file.splice(2..2, segment);
    file
}

/// Samples as they lie in a slab.
struct Samples {
    slab: Arc<Slab>,
    /// Each one's fields: their names, and from where to where they lie.
    fields: Vec<Vec<(&'static str, usize, usize)>>,
}

impl Samples {
    fn new(samples: &[Vec<(&'static str, Vec<u8>)>]) -> Self {
        Self::from(0, samples)
    }

    /// The first of them `at` so many bytes, of which nothing is stored.
    fn from(mut at: usize, samples: &[Vec<(&'static str, Vec<u8>)>]) -> Self {
        let file = rustix::fs::memfd_create("samples", MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(file);
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        let mut fields = Vec::new();
        for sample in samples {
            let mut places = Vec::new();
            for (name, bytes) in sample {
                file.write_all(&[0xee; GAP]).unwrap();
                file.write_all(bytes).unwrap();
                places.push((*name, at + GAP, at + GAP + bytes.len()));
                at += GAP + bytes.len();
            }
            fields.push(places);
        }
        let slab = Slab::map(OwnedFd::from(file), at as u64).unwrap();
        Self { slab, fields }
    }

    /// Decodes them by `decoder`, from `position` on.
    fn decode(&self, decoder: &Decoder, position: u64) -> Decoded {
        let all = self.slab.get(0, self.slab.len() as u64).unwrap();
        let fields: Vec<Vec<(&str, &[u8])>> = self
            .fields
            .iter()
            .map(|sample| sample.iter().map(|(name, from, to)| (*name, &all[*from..*to])).collect())
            .collect();
        let records: Vec<Record<'_>> = fields
            .iter()
            .enumerate()
            .map(|(index, fields)| Record {
                key: "k",
                url: "s3://b/a.tar",
                stream: 0,
                position: position + index as u64,
                offset: None,
                fields,
                has: &[],
            })
            .collect();
        decoder.decode(&records, all, 5, 1).unwrap()
    }
}

fn image(spec: ImageSpec) -> FieldSpec {
    FieldSpec::new("image", "jpg;png", FieldKind::Image(spec))
}

fn label() -> FieldSpec {
    FieldSpec::new("label", "cls", FieldKind::Int { path: None })
}

fn crops() -> ImageSpec {
    ImageSpec {
        size: Some((24, 31)),
        crop: Crop::Random { scale: (0.1, 1.0), ratio: (0.75, 1.25) },
        flip: true,
        dtype: DType::Float32,
        mean: Some([0.5, 0.25, 0.125]),
        std: Some([0.5, 0.25, 0.125]),
        ..ImageSpec::default()
    }
}

fn decoder(fields: Vec<FieldSpec>, device: Option<&Arc<Device>>) -> Decoder {
    Decoder::new(fields, 2, &BufferPool::new(1 << 24), device.cloned()).unwrap()
}

/// Driver calls made by the tests themselves, as by a framework.
struct Framework(libloading::Library);

impl Framework {
    /// The first device is current, as in a process with torch.
    fn new() -> Self {
        // SAFETY: it runs nothing when it is opened.
        let framework = Self(unsafe { libloading::Library::new("libcuda.so") }.unwrap());
        framework.set_current(1);
        framework
    }

    /// Makes a device's context current; its number is one more than the device's.
    fn set_current(&self, context: usize) {
        self.call("cuCtxSetCurrent", |set: &extern "C" fn(usize) -> i32| {
            assert_eq!(set(context), 0);
        });
    }

    fn current(&self) -> usize {
        let mut context = 0;
        let status = self
            .call("cuCtxGetCurrent", |get: &extern "C" fn(&mut usize) -> i32| get(&mut context));
        assert_eq!(status, 0);
        context
    }

    /// The host's time on the emulator's clock.
    fn clock(&self) -> u64 {
        self.call("forebay_emulator_clock", |clock: &extern "C" fn() -> u64| clock())
    }

    fn capture(&self, captures: bool) {
        let name = "forebay_emulator_capture";
        self.call(name, |capture: &extern "C" fn(bool)| capture(captures));
    }

    fn call<A, R>(&self, name: &str, call: impl FnOnce(&A) -> R) -> R {
        // SAFETY: callers name the type of the function.
        call(&*unsafe { self.0.get::<A>(name) }.unwrap())
    }

    fn allocate(&self, len: usize) -> u64 {
        let mut at = 0_u64;
        let status = self
            .call("cuMemAlloc_v2", |allocate: &extern "C" fn(&mut u64, usize) -> i32| {
                allocate(&mut at, len)
            });
        assert_eq!(status, 0);
        at
    }

    fn stream(&self) -> u64 {
        let mut stream = 0;
        let status = self.call("cuStreamCreate", |create: &extern "C" fn(&mut u64, u32) -> i32| {
            create(&mut stream, 1)
        });
        assert_eq!(status, 0);
        stream
    }

    /// Makes work of one stream wait for what is in line on another.
    fn order(&self, before: u64, after: u64) {
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
    fn copy(&self, to: u64, from: u64, len: usize, stream: u64) {
        type Copy = extern "C" fn(u64, u64, usize, u64) -> i32;
        let status = self.call("cuMemcpyDtoDAsync_v2", |copy: &Copy| copy(to, from, len, stream));
        assert_eq!(status, 0);
    }

    fn fail_events(&self, fail: bool) {
        let name = "forebay_emulator_fail_events";
        self.call(name, |fail_events: &extern "C" fn(bool)| fail_events(fail));
    }

    /// Copies so far from memory that was registered.
    fn registered_copies(&self) -> u64 {
        let name = "forebay_emulator_registered_copies";
        self.call(name, |copies: &extern "C" fn() -> u64| copies())
    }

    fn synchronize(&self) {
        self.call("cuCtxSynchronize", |wait: &extern "C" fn() -> i32| assert_eq!(wait(), 0));
    }

    /// Reads an address of the emulator: its device memory is the process's.
    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        self.synchronize();
        // SAFETY: it was allocated, and as long.
        unsafe { std::slice::from_raw_parts(at as *const u8, len) }.to_vec()
    }

    /// A tensor copied to memory of the framework's, on a stream of its own.
    fn take(&self, tensor: DeviceTensor) -> (u64, usize) {
        let len = tensor.len();
        let at = self.allocate(len);
        // SAFETY: it was allocated just now, and the stream, too.
        unsafe { tensor.copy_to(at, self.stream()) }.unwrap();
        (at, len)
    }
}

fn on_device(column: Column) -> DeviceTensor {
    match column {
        Column::OnDevice(tensor) => tensor,
        other => panic!("{other:?} is not on the device"),
    }
}

fn on_host(column: &Column) -> &[u8] {
    match column {
        Column::Tensor(tensor) => tensor.buffer.as_bytes(),
        other => panic!("{other:?} is not on the host"),
    }
}

/// Returns one or two of each way to store an image.
fn mixed() -> Vec<Vec<(&'static str, Vec<u8>)>> {
    let files = [
        "wide-420.jpg",
        "gray.jpg",
        "wide-progressive.jpg",
        "tall-444.jpg",
        "exif-6.jpg",
        "tall-422.jpg",
        "cmyk.jpg",
        "tall-440.jpg",
        "tiny-3-420.jpg",
        "gray.jpg",
    ];
    let jpeg = files.iter().map(|name| ("jpg", data(name)));
    let images = jpeg.chain([("png", data("rgb.png"))]);
    let sample = |(index, image): (usize, (&'static str, Vec<u8>))| {
        vec![image, ("cls", format!("{}", index * 7).into_bytes())]
    };
    images.enumerate().map(sample).collect()
}

/// Batch after batch, as a loader does that runs ahead: each must be what the CPU makes.
fn assert_batches(device: &Arc<Device>, spec: &ImageSpec, decoded_by: &str) {
    let (framework, samples) = (Framework::new(), Samples::new(&mixed()));
    device.copy_from(&samples.slab);
    let fields = || vec![image(spec.clone()), label()];
    let (gpu, cpu) = (decoder(fields(), Some(device)), decoder(fields(), None));
    let mut taken = Vec::new();
    for batch in 0..6 {
        let found = samples.decode(&gpu, batch * 100);
        assert!(found.bad.is_empty() && found.done.is_some(), "{:?}", found.bad);
        let routes: Vec<_> = found.routes.iter().map(|(route, count)| (*route, *count)).collect();
        assert_eq!(
            routes,
            [
                (("cpu", "colors"), 1),
                (("cpu", "format"), 1),
                (("cpu", "scans"), 1),
                ((decoded_by, "plain"), 8),
            ]
        );
        let columns =
            found.outputs.into_iter().map(|output| framework.take(on_device(output.column)));
        taken.push(columns.collect::<Vec<_>>());
    }
    for (batch, columns) in taken.iter().enumerate() {
        let expected = samples.decode(&cpu, batch as u64 * 100);
        assert_eq!(expected.routes.into_iter().collect::<Vec<_>>(), [(("cpu", "no_device"), 11)]);
        for ((at, len), output) in columns.iter().zip(&expected.outputs) {
            assert!(
                framework.read(*at, *len) == on_host(&output.column),
                "{batch} {}",
                output.name
            );
        }
    }
}

#[test]
fn gpu_batches_equal_cpu_batches() {
    if is_emulated("gpu_batches_equal_cpu_batches", &[]) {
        assert_batches(&open(), &crops(), FIRST);
        assert_batches(&open_with_copies(), &crops(), "nvjpeg_engines");
    }
}

#[test]
fn gpu_views_layouts_and_turns_equal_the_cpus() {
    if is_emulated("gpu_views_layouts_and_turns_equal_the_cpus", &[]) {
        let spec = ImageSpec {
            views: Some(3),
            layout: Layout::Nhwc,
            dtype: DType::Bfloat16,
            exif: true,
            ..crops()
        };
        assert_batches(&open(), &spec, FIRST);
    }
}

#[test]
fn device_without_jpeg_engines_decodes_on_its_cores() {
    if is_emulated("device_without_jpeg_engines_decodes_on_its_cores", &[("ENGINES", "0")]) {
        let spec = ImageSpec { dtype: DType::Uint8, mean: None, std: None, ..crops() };
        assert_batches(&open(), &spec, "nvjpeg_cores");
    }
}

#[test]
fn unregistered_memory_is_copied_through_pinned_memory() {
    if is_emulated("unregistered_memory_is_copied_through_pinned_memory", &[("READ_ONLY", "0")]) {
        assert_batches(&open_with_copies(), &crops(), "nvjpeg_engines");
    }
}

/// Some drivers register no such memory, or stop in the midst of it.
#[test]
fn memory_that_is_not_registered_is_copied_by_the_cpu() {
    let name = "memory_that_is_not_registered_is_copied_by_the_cpu";
    if is_emulated(name, &[("REGISTERS", "0")]) {
        assert_batches(&open_with_copies(), &crops(), "nvjpeg_engines");
        assert_eq!(Framework::new().registered_copies(), 0);
    }
}

#[test]
fn half_registered_memory_is_unregistered() {
    if !is_emulated("half_registered_memory_is_unregistered", &[("REGISTERS", "1")]) {
        return;
    }
    let (device, framework) = (open_with_copies(), Framework::new());
    let photo = || vec![("jpg", data("wide-420.jpg"))];
    let gpu = decoder(vec![image(crops())], Some(&device));
    // A slab of two pieces, and a small one, for which there is room again.
    let samples = Samples::from(64 << 30, &[photo()]);
    device.copy_from(&samples.slab);
    assert_eq!(samples.decode(&gpu, 0).kept, [0]);
    assert_eq!(framework.registered_copies(), 0);
    let samples = Samples::new(&[photo()]);
    device.copy_from(&samples.slab);
    assert_eq!(samples.decode(&gpu, 0).kept, [0]);
    assert_eq!(framework.registered_copies(), 1);
}

/// A container without the driver's video libraries has engines that do not start.
#[test]
fn cores_decode_if_the_engines_do_not_start() {
    if is_emulated("cores_decode_if_the_engines_do_not_start", &[("CREATE_FAILS", "2")]) {
        let spec = ImageSpec { dtype: DType::Uint8, mean: None, std: None, ..crops() };
        assert_batches(&open(), &spec, "nvjpeg_cores");
    }
}

/// A release too new for the driver loads, and does not start.
#[test]
fn next_nvjpeg_is_tried_if_one_does_not_start() {
    if !is_emulated("next_nvjpeg_is_tried_if_one_does_not_start", &[("CREATE_FAILS", "3")]) {
        return;
    }
    let one = nvjpeg();
    let paths = [one.paths.clone(), one.paths].concat();
    let device = Device::open(0, Some(&WithNvjpeg { paths, backend: None })).unwrap();
    let samples = Samples::new(&mixed()[..1]);
    let found = samples.decode(&decoder(vec![image(crops())], Some(&device)), 0);
    assert_eq!(found.routes.into_keys().collect::<Vec<_>>(), [(FIRST, "plain")]);
}

/// A handle without states is no decoder: the next backend is tried.
#[test]
fn cores_decode_if_the_engines_have_no_states() {
    if is_emulated("cores_decode_if_the_engines_have_no_states", &[("STATES_FAIL", "6")]) {
        let spec = ImageSpec { dtype: DType::Uint8, mean: None, std: None, ..crops() };
        assert_batches(&open(), &spec, "nvjpeg_cores");
    }
}

#[test]
fn nvjpeg_that_does_not_start_is_reported_with_all_tried() {
    let name = "nvjpeg_that_does_not_start_is_reported_with_all_tried";
    if is_emulated(name, &[("CREATE_FAILS", "9")]) {
        let error = Device::open(0, Some(&nvjpeg())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let tried = error.place("tried").unwrap();
        for number in ["3", "4", "5"] {
            assert!(tried.contains(&format!("backend {number}")), "{tried}");
        }
    }
}

#[test]
fn named_backend_decodes() {
    if !is_emulated("named_backend_decodes", &[]) {
        return;
    }
    let (framework, samples) = (Framework::new(), Samples::new(&mixed()));
    let cpu = decoder(vec![image(crops()), label()], None);
    let backends = [
        (Backend::Engines, "nvjpeg_engines", 1),
        (Backend::EnginesFromHost, "nvjpeg_engines", 0),
        (Backend::Cores, "nvjpeg_cores", 1),
    ];
    for (backend, name, copies) in backends {
        let nvjpeg = WithNvjpeg { backend: Some(backend), ..nvjpeg() };
        let device = Device::open(0, Some(&nvjpeg)).unwrap();
        device.copy_from(&samples.slab);
        let gpu = decoder(vec![image(crops()), label()], Some(&device));
        for batch in 0..5 {
            let before = framework.registered_copies();
            let found = samples.decode(&gpu, batch);
            assert_eq!(found.routes[&(name, "plain")], 8);
            assert_eq!(framework.registered_copies() - before, copies, "of files");
            let expected = samples.decode(&cpu, batch);
            for (output, expected) in found.outputs.into_iter().zip(&expected.outputs) {
                let (at, len) = framework.take(on_device(output.column));
                assert!(framework.read(at, len) == on_host(&expected.column), "{name} {batch}");
            }
        }
    }
}

/// Drivers register so much at most, and do not copy what lies in two pieces.
#[test]
fn large_slab_is_registered_in_pieces() {
    if !is_emulated("large_slab_is_registered_in_pieces", &[]) {
        return;
    }
    const PIECE: usize = 64 << 30;
    let (device, framework) = (open_with_copies(), Framework::new());
    let fields = || vec![image(crops())];
    let (gpu, cpu) = (decoder(fields(), Some(&device)), decoder(fields(), None));
    let photo = data("wide-420.jpg");
    let apart = || vec![("apart", vec![0; 1 << 20]), ("jpg", photo.clone())];
    let first = GAP + photo.len() + GAP + (1 << 20) + GAP + photo.len() / 2;
    let samples = Samples::from(PIECE - first, &[vec![("jpg", photo.clone())], apart(), apart()]);
    device.copy_from(&samples.slab);
    let before = framework.registered_copies();
    let (found, expected) = (samples.decode(&gpu, 0), samples.decode(&cpu, 0));
    assert_eq!(
        framework.registered_copies() - before,
        2,
        "the one that lies in both goes through pinned memory"
    );
    let (at, len) = framework.take(on_device(found.outputs.into_iter().next().unwrap().column));
    assert!(framework.read(at, len) == on_host(&expected.outputs[0].column));
}

/// A loader's threads have no current device. A slab whose copies wait in line stays registered
/// until they are done, whichever thread brings the next slab.
#[test]
fn replaced_slab_is_unregistered_after_its_copies() {
    if !is_emulated("replaced_slab_is_unregistered_after_its_copies", &[]) {
        return;
    }
    let fields = || vec![array("wide", "npy", Ragged::List, None)];
    let device = Device::open(0, None).unwrap();
    let (gpu, cpu) = (decoder(fields(), Some(&device)), decoder(fields(), None));
    let slab = |byte: u8| {
        let array = npy("|u1", "False", "(4096,)", &[byte; 4096]);
        Samples::new(&[vec![("npy", array)]])
    };
    let slabs = [slab(1), slab(2), slab(3)];
    let decoded: Vec<_> = slabs
        .iter()
        .map(|samples| {
            let decode = || {
                device.copy_from(&samples.slab);
                samples.decode(&gpu, 0)
            };
            std::thread::scope(|scope| scope.spawn(decode).join().unwrap())
        })
        .collect();
    let framework = Framework::new();
    assert_eq!(framework.registered_copies(), slabs.len() as u64);
    for (found, samples) in decoded.into_iter().zip(&slabs) {
        let expected = samples.decode(&cpu, 0);
        let (at, len) = framework.take(on_device(found.outputs.into_iter().next().unwrap().column));
        assert!(framework.read(at, len) == on_host(&expected.outputs[0].column));
    }
}

/// The end of copies is unknown after an error: the slab that they read stays.
#[test]
fn slab_stays_registered_if_the_end_of_its_copies_is_unknown() {
    let name = "slab_stays_registered_if_the_end_of_its_copies_is_unknown";
    if !is_emulated(name, &[]) {
        return;
    }
    let (device, framework) = (Device::open(0, None).unwrap(), Framework::new());
    let gpu = decoder(vec![array("wide", "npy", Ragged::List, None)], Some(&device));
    let slab = |byte| {
        let array = npy("|u1", "False", "(4096,)", &[byte; 4096]);
        Samples::new(&[vec![("npy", array)]])
    };
    let (first, second) = (slab(1), slab(2));
    device.copy_from(&first.slab);
    let copied = first.decode(&gpu, 0);
    framework.fail_events(true);
    device.copy_from(&second.slab);
    device.copy_from_none();
    framework.fail_events(false);
    let tensor = on_device(copied.outputs.into_iter().next().unwrap().column);
    let (at, len) = framework.take(tensor);
    assert_eq!(framework.read(at, len), [1; 4096]);
    // The second slab went through pinned memory if at all; now it takes the place of the first.
    assert_eq!(framework.registered_copies(), 1);
    drop(first.decode(&gpu, 1));
    assert_eq!(framework.registered_copies(), 2, "the first is still registered");
    device.copy_from(&second.slab);
    drop(second.decode(&gpu, 2));
    assert_eq!(framework.registered_copies(), 3);
}

/// A device has no more batches in flight than overlap, however many threads begin them.
#[test]
fn batches_in_flight_are_bounded() {
    if !is_emulated("batches_in_flight_are_bounded", &[]) {
        return;
    }
    // One each of the copies, the engines and the kernels.
    const IN_FLIGHT: usize = 3;
    const THREADS: usize = 8;
    let device = Device::open(0, None).unwrap();
    let gpu = decoder(vec![array("wide", "npy", Ragged::List, None)], Some(&device));
    let array = npy("|u1", "False", "(4096,)", &[1; 4096]);
    let samples = Samples::new(&[vec![("npy", array)]]);
    let begun: Vec<Decoded> = (0..6).map(|batch| samples.decode(&gpu, batch)).collect();
    let is_over = |decoded: &Decoded| decoded.done.as_ref().unwrap().is_over();
    let over: Vec<bool> = begun.iter().map(is_over).collect();
    assert_eq!(over, [true, true, true, false, false, false], "and as many overlap");

    let begun = Mutex::new(begun);
    let begin = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (begun, begin, samples, gpu) = (&begun, &begin, &samples, &gpu);
            scope.spawn(move || {
                begin.wait();
                for batch in 0..16 {
                    let decoded = samples.decode(gpu, thread * 100 + batch);
                    let mut begun = begun.lock().unwrap();
                    begun.push(decoded);
                    let in_flight = begun.iter().filter(|decoded| !is_over(decoded)).count();
                    assert!(in_flight <= IN_FLIGHT, "{in_flight}");
                }
            });
        }
    });
}

/// A decoder that fails on every batch is left alone in the end.
#[test]
fn decoder_that_always_fails_is_left_alone() {
    if !is_emulated("decoder_that_always_fails_is_left_alone", &[]) {
        return;
    }
    // As documented for decoders of a GPU.
    const FAILURES: u64 = 8;
    let (device, framework) = (open(), Framework::new());
    let gpu = decoder(vec![image(crops())], Some(&device));
    let (good, bad) = (data("wide-420.jpg"), saying("wide-420.jpg", "nvjpeg: fail"));
    let [good, bad] = [good, bad].map(|file| Samples::new(&[vec![("jpg", file)]]));
    let route = |samples: &Samples| {
        let found = samples.decode(&gpu, 0);
        assert_eq!(found.kept, [0]);
        framework.take(on_device(found.outputs.into_iter().next().unwrap().column));
        found.routes.into_keys().next().unwrap()
    };
    let failed = ("cpu", "failed");
    // Rare failures have no such end.
    for _ in 0..FAILURES {
        assert_eq!([route(&bad), route(&good)], [failed, (FIRST, "plain")]);
    }
    for _ in 1..FAILURES {
        assert_eq!(route(&bad), failed);
    }
    assert_eq!(route(&good), (FIRST, "plain"), "one too few in a row");
    for _ in 0..FAILURES {
        assert_eq!(route(&bad), failed);
    }
    assert_eq!(route(&good), failed, "the decoder is asked no more");
}

#[test]
fn cpu_decodes_images_the_gpu_rejects_or_fails() {
    if !is_emulated("cpu_decodes_images_the_gpu_rejects_or_fails", &[]) {
        return;
    }
    let (device, framework) = (open(), Framework::new());
    let (gpu, cpu) =
        (decoder(vec![image(crops())], Some(&device)), decoder(vec![image(crops())], None));
    let routes = |comment| {
        let files = [saying("wide-420.jpg", comment), data("tall-444.jpg")];
        let samples = Samples::new(&files.map(|file| vec![("jpg", file)]));
        let (found, expected) = (samples.decode(&gpu, 0), samples.decode(&cpu, 0));
        let routes: Vec<_> = found.routes.into_iter().collect();
        let (at, len) = framework.take(on_device(found.outputs.into_iter().next().unwrap().column));
        assert!(framework.read(at, len) == on_host(&expected.outputs[0].column), "{comment}");
        routes
    };
    let plain = ("nvjpeg_engines", "plain");
    assert_eq!(routes("nvjpeg: refuse"), [(("cpu", "refused"), 1), (plain, 1)]);
    assert_eq!(routes("nvjpeg: fail"), [(("cpu", "failed"), 2)]);
    assert_eq!(routes("nothing"), [(plain, 2)]);

    let mut indexed = Vec::new();
    assert!(forebay_jpeg::add_index(&saying("wide-420.jpg", "nvjpeg: refuse"), &mut indexed) > 0);
    let middle = ImageSpec { crop: Crop::Center { resize: None }, ..crops() };
    let samples = Samples::new(&[vec![("jpg", indexed)]]);
    let found = samples.decode(&decoder(vec![image(middle)], Some(&device)), 0);
    assert_eq!(found.routes.into_iter().collect::<Vec<_>>(), [(("cpu_index", "refused"), 1)]);
}

/// A NumPy file of version 1, whose elements begin where the widest loads do in it.
fn npy(descr: &str, order: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let text = format!("{text:<117}\n");
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), elements].concat()
}

fn array(name: &str, source: &str, ragged: Ragged, raw: Option<RawSpec>) -> FieldSpec {
    FieldSpec::new(name, source, FieldKind::Npy { ragged, raw })
}

fn raw(shape: &[Option<usize>]) -> Option<RawSpec> {
    Some(RawSpec { dtype: DType::Uint16, shape: shape.to_vec() })
}

#[test]
fn arrays_are_gathered_from_one_copy_of_the_batch() {
    if !is_emulated("arrays_are_gathered_from_one_copy_of_the_batch", &[]) {
        return;
    }
    let (device, framework) = (open(), Framework::new());
    let fields = || {
        let mut odd = array("odd", "bin", Ragged::List, raw(&[Some(3)]));
        odd.optional = true;
        let none = array("none", "none", Ragged::List, None);
        vec![image(crops()), array("wide", "npy", Ragged::List, None), odd, none, label()]
    };
    let (gpu, cpu) = (decoder(fields(), Some(&device)), decoder(fields(), None));
    let samples: Vec<_> = (0..7_u8)
        .map(|index| {
            let elements: Vec<u8> = (0..96).map(|at| at ^ (index * 31)).collect();
            let broken = if index == 4 { &elements[1..] } else { &elements[..] };
            let mut sample = vec![
                ("jpg", data("wide-420.jpg")),
                ("npy", npy("<f4", "False", "(6, 4)", broken)),
                ("none", npy("<f4", "False", "(0, 3)", &[])),
                ("cls", vec![b'0' + index]),
            ];
            // Lies as unevenly as bytes may.
            if index != 2 {
                sample.push(("bin", elements[..6].to_vec()));
            }
            sample
        })
        .collect();
    let samples = Samples::new(&samples);
    device.copy_from(&samples.slab);
    let mut taken = Vec::new();
    for batch in 0..4 {
        let before = framework.registered_copies();
        let found = samples.decode(&gpu, batch * 10);
        assert_eq!(framework.registered_copies() - before, 1, "from the slab");
        assert_eq!(found.kept, [0, 1, 2, 3, 5, 6]);
        let routes: Vec<_> = found.routes.into_iter().collect();
        let gathered = 6 + 5 + 6;
        assert_eq!(routes, [(("gather", "plain"), gathered), (("nvjpeg_engines", "plain"), 6)]);
        let columns = found.outputs.into_iter().map(|output| {
            let tensor = on_device(output.column);
            (tensor.dtype, tensor.shape.clone(), output.present, framework.take(tensor))
        });
        taken.push(columns.collect::<Vec<_>>());
    }
    for (batch, columns) in taken.into_iter().enumerate() {
        let expected = samples.decode(&cpu, batch as u64 * 10);
        assert_eq!(expected.routes.into_iter().collect::<Vec<_>>(), [(("cpu", "no_device"), 23)]);
        for ((dtype, shape, present, (at, len)), output) in
            columns.into_iter().zip(expected.outputs)
        {
            let Column::Tensor(tensor) = output.column else { panic!("{}", output.name) };
            assert_eq!((dtype, shape, present), (tensor.dtype, tensor.shape, output.present));
            assert!(framework.read(at, len) == tensor.buffer.as_bytes(), "{batch} {}", output.name);
        }
    }
}

/// Returns the rows of a CPU column with rows of different shapes.
fn tensors(column: &Column) -> Vec<(DType, &[usize], &[u8])> {
    let all: Vec<_> = match column {
        Column::Tensors(tensors) => tensors.iter().collect(),
        Column::Padded { values, lengths } => vec![values, lengths],
        other => panic!("{other:?}"),
    };
    all.into_iter().map(|one| (one.dtype, &one.shape[..], one.buffer.as_bytes())).collect()
}

#[test]
fn decoder_starts_for_images_and_not_for_arrays() {
    if !is_emulated("decoder_starts_for_images_and_not_for_arrays", &[]) {
        return;
    }
    let (device, framework) = (Device::open(0, None).unwrap(), Framework::new());
    let fields = || vec![array("values", "npy", Ragged::List, None)];
    let samples = Samples::new(&[vec![("npy", npy("<i2", "False", "(3,)", &[7; 6]))]]);
    let found = samples.decode(&decoder(fields(), Some(&device)), 0);
    let (at, len) = framework.take(on_device(found.outputs.into_iter().next().unwrap().column));
    assert_eq!(framework.read(at, len), [7; 6]);
    let with_images = vec![image(crops())];
    let refused = Decoder::new(with_images, 1, &BufferPool::new(0), Some(device)).unwrap_err();
    assert_eq!((refused.kind(), refused.place("field")), (ErrorKind::Invalid, Some("image")));
}

#[test]
fn cpu_makes_non_contiguous_arrays_and_reports_why() {
    if !is_emulated("cpu_makes_non_contiguous_arrays_and_reports_why", &[]) {
        return;
    }
    let (device, framework) = (open(), Framework::new());
    let plain = npy("<i2", "False", "(2, 3)", &[7; 12]);
    let pad = || Ragged::Pad { value: PadValue::Whole(0), max_len: None };
    let elements: Vec<u8> = (0..12).collect();
    let cases = [
        ("order", npy(">i2", "False", "(2, 3)", &elements), Ragged::List),
        ("order", npy("<i2", "True", "(2, 3)", &elements), Ragged::List),
        ("booleans", npy("|b1", "False", "(12,)", &elements), Ragged::List),
        ("shapes", npy("<i2", "False", "(3, 2)", &elements), Ragged::List),
        ("ragged", npy("<i2", "False", "(2, 3)", &elements), pad()),
    ];
    for (reason, file, ragged) in cases {
        let other = if reason == "booleans" { file.clone() } else { plain.clone() };
        let samples = Samples::new(&[vec![("npy", other)], vec![("npy", file)]]);
        let fields = || vec![array("values", "npy", ragged, None)];
        let (gpu, cpu) = (decoder(fields(), Some(&device)), decoder(fields(), None));
        let (found, expected) = (samples.decode(&gpu, 0), samples.decode(&cpu, 0));
        assert!(found.bad.is_empty(), "{:?}", found.bad);
        assert_eq!(found.routes.into_iter().collect::<Vec<_>>(), [(("cpu", reason), 2)]);
        match (found.outputs.into_iter().next().unwrap().column, &expected.outputs[0].column) {
            (Column::OnDevice(tensor), Column::Tensor(expected)) => {
                assert_eq!((tensor.dtype, &tensor.shape), (expected.dtype, &expected.shape));
                let (at, len) = framework.take(tensor);
                assert!(framework.read(at, len) == expected.buffer.as_bytes(), "{reason}");
            }
            (found, expected) => assert_eq!(tensors(&found), tensors(expected), "{reason}"),
        }
    }
}

#[test]
fn bad_samples_leave_no_gap_and_absent_images_are_black() {
    if !is_emulated("bad_samples_leave_no_gap_and_absent_images_are_black", &[]) {
        return;
    }
    let (device, framework) = (open(), Framework::new());
    let fields = || {
        let mut images = image(crops());
        images.optional = true;
        vec![images, label()]
    };
    let (gpu, cpu) = (decoder(fields(), Some(&device)), decoder(fields(), None));
    let whole = data("wide-420.jpg");
    let samples = Samples::new(&[
        vec![("jpg", whole[..whole.len() / 2].to_vec()), ("cls", b"1".to_vec())],
        vec![("jpg", whole.clone()), ("cls", b"2".to_vec())],
        vec![("cls", b"3".to_vec())],
        vec![("jpg", data("tall-444.jpg")), ("cls", b"no number".to_vec())],
        vec![("jpg", data("gray.jpg")), ("cls", b"5".to_vec())],
    ]);
    // Once with memory that was written before.
    for _ in 0..2 {
        let (found, expected) = (samples.decode(&gpu, 0), samples.decode(&cpu, 0));
        assert_eq!(found.kept, [1, 2, 4]);
        assert_eq!(found.kept, expected.kept);
        let why = |decoded: &Decoded| -> Vec<String> {
            decoded.bad.iter().map(|bad| bad.error.to_string()).collect()
        };
        assert_eq!(why(&found), why(&expected));
        assert_eq!(found.outputs[0].present, Some(vec![true, false, true]));
        for (output, expected) in found.outputs.into_iter().zip(&expected.outputs) {
            let (at, len) = framework.take(on_device(output.column));
            assert!(framework.read(at, len) == on_host(&expected.column), "{}", output.name);
        }
    }
}

/// A consumer's queued work may read a tensor's bytes after the tensor was dropped and further
/// batches have come.
#[test]
fn memory_in_use_by_a_late_consumer_is_not_reused() {
    if !is_emulated("memory_in_use_by_a_late_consumer_is_not_reused", &[("BYTES", "32000000")]) {
        return;
    }
    // Ten times what may wait to come back.
    const BATCHES: u64 = 200;
    let (device, framework, samples) = (open(), Framework::new(), Samples::new(&mixed()));
    device.copy_from(&samples.slab);
    let (gpu, cpu) =
        (decoder(vec![image(crops())], Some(&device)), decoder(vec![image(crops())], None));
    let stream = framework.stream();
    let mut copies = Vec::new();
    let mut places = Vec::new();
    for batch in 0..BATCHES {
        let found = samples.decode(&gpu, batch * 100);
        let tensor = on_device(found.outputs.into_iter().next().unwrap().column);
        let (from, len) = (tensor.address(), tensor.len());
        places.push(from);
        let at = framework.allocate(len);
        // SAFETY: a stream that is never ended.
        let lent = unsafe { tensor.lend(Some(stream)) }.unwrap();
        framework.copy(at, from, len, stream);
        drop(lent);
        copies.push((at, len));
    }
    places.sort_unstable();
    places.dedup();
    assert!(places.len() < BATCHES as usize, "memory is used again");
    for (batch, (at, len)) in copies.into_iter().enumerate() {
        let expected = samples.decode(&cpu, batch as u64 * 100);
        assert!(framework.read(at, len) == on_host(&expected.outputs[0].column), "{batch}");
    }
}

/// Work by other streams than the named one, as JAX's, or by any if none is named, may read a
/// tensor after it was dropped.
fn assert_lent_memory_is_kept(is_named: bool) {
    let (device, framework, samples) = (open(), Framework::new(), Samples::new(&mixed()));
    device.copy_from(&samples.slab);
    let (gpu, cpu) =
        (decoder(vec![image(crops())], Some(&device)), decoder(vec![image(crops())], None));
    let (named, other) = (framework.stream(), framework.stream());
    let mut copies = Vec::new();
    for batch in 0..8_u64 {
        let found = samples.decode(&gpu, batch * 100);
        let tensor = on_device(found.outputs.into_iter().next().unwrap().column);
        let (from, len) = (tensor.address(), tensor.len());
        let at = framework.allocate(len);
        // SAFETY: a stream that is never ended.
        let lent = unsafe { tensor.lend(is_named.then_some(named)) }.unwrap();
        if is_named {
            framework.order(named, other);
        }
        framework.copy(at, from, len, other);
        drop(lent);
        copies.push((at, len));
    }
    for (batch, (at, len)) in copies.into_iter().enumerate() {
        let expected = samples.decode(&cpu, batch as u64 * 100);
        assert!(framework.read(at, len) == on_host(&expected.outputs[0].column), "{batch}");
    }
}

#[test]
fn memory_lent_by_one_stream_and_used_by_another_is_kept() {
    if is_emulated("memory_lent_by_one_stream_and_used_by_another_is_kept", &[]) {
        assert_lent_memory_is_kept(true);
    }
}

#[test]
fn memory_lent_without_a_stream_is_kept() {
    if is_emulated("memory_lent_without_a_stream_is_kept", &[]) {
        assert_lent_memory_is_kept(false);
    }
}

/// Lent memory that was dropped serves the next batches of a full device.
#[test]
fn full_device_takes_lent_memory_back() {
    if !is_emulated("full_device_takes_lent_memory_back", &[("BYTES", "4000000")]) {
        return;
    }
    let (device, samples) = (open(), Samples::new(&mixed()[..2]));
    let spec = ImageSpec { size: Some((240, 310)), ..crops() };
    let gpu = decoder(vec![image(spec)], Some(&device));
    for batch in 0..20_u64 {
        let found = samples.decode(&gpu, batch);
        assert_eq!(found.kept, [0, 1], "{:?}", found.bad);
        let tensor = on_device(found.outputs.into_iter().next().unwrap().column);
        // SAFETY: no stream is named.
        drop(unsafe { tensor.lend(None) }.unwrap());
    }
}

/// The clock tells whether copies, decoding and kernels of batches that follow each other overlap.
fn assert_overlap(device: &Arc<Device>, decoded_by: &str) {
    const ROUNDS: u64 = 8;
    let framework = Framework::new();
    let photo = data("wide-420.jpg");
    let samples = Samples::new(&vec![vec![("jpg", photo)]; 8]);
    device.copy_from(&samples.slab);
    let gpu = decoder(vec![image(crops())], Some(device));
    let run = |waits: bool| {
        let begin = framework.clock();
        for batch in 0..ROUNDS {
            let found = samples.decode(&gpu, batch * 100);
            assert_eq!(found.routes[&(decoded_by, "plain")], 8);
            if waits {
                framework.synchronize();
            }
        }
        framework.synchronize();
        framework.clock() - begin
    };
    // The first batches take their memory.
    run(true);
    let (alone, together) = (run(true), run(false));
    assert!(together * 10 < alone * 8, "{together} of {alone}");
}

#[test]
fn batches_overlap_on_engines() {
    if is_emulated("batches_overlap_on_engines", &[]) {
        assert_overlap(&open(), FIRST);
        assert_overlap(&open_with_copies(), "nvjpeg_engines");
    }
}

#[test]
fn batches_overlap_on_cores() {
    if is_emulated("batches_overlap_on_cores", &[("ENGINES", "0")]) {
        assert_overlap(&open(), "nvjpeg_cores");
    }
}

#[test]
fn threads_keep_their_current_device() {
    if !is_emulated("threads_keep_their_current_device", &[("DEVICES", "2")]) {
        return;
    }
    let (framework, samples) = (Framework::new(), Samples::new(&mixed()));
    let device = Device::open(1, Some(&nvjpeg())).unwrap();
    assert_eq!((device.ordinal(), framework.current(), Device::count()), (1, 1, 2));
    device.copy_from(&samples.slab);
    let (gpu, cpu) =
        (decoder(vec![image(crops())], Some(&device)), decoder(vec![image(crops())], None));
    for batch in 0..4 {
        let found = samples.decode(&gpu, batch);
        assert_eq!(framework.current(), 1, "decoding");
        let tensor = on_device(found.outputs.into_iter().next().unwrap().column);
        // SAFETY: no stream is named.
        let lent = unsafe { tensor.lend(None) }.unwrap();
        assert_eq!(framework.current(), 1, "lending");
        let (at, len) = (lent.tensor().address(), lent.tensor().len());
        framework.set_current(2);
        let seen = framework.read(at, len);
        framework.set_current(1);
        assert!(seen == on_host(&samples.decode(&cpu, batch).outputs[0].column));
        drop(lent);
        assert_eq!(framework.current(), 1, "taking back");
    }
    let found = samples.decode(&gpu, 9);
    framework.set_current(2);
    let (at, len) = (framework.allocate(1 << 20), framework.stream());
    framework.set_current(1);
    let tensor = on_device(found.outputs.into_iter().next().unwrap().column);
    // SAFETY: memory and stream were made just now.
    unsafe { tensor.copy_to(at, len) }.unwrap();
    assert_eq!(framework.current(), 1, "copying");
    drop(samples.decode(&gpu, 10));
    drop(gpu);
    drop(device);
    assert_eq!(framework.current(), 1, "closing");
}

#[test]
fn graph_that_is_captured_stays_valid() {
    if !is_emulated("graph_that_is_captured_stays_valid", &[]) {
        return;
    }
    let (device, framework, samples) = (open(), Framework::new(), Samples::new(&mixed()));
    device.copy_from(&samples.slab);
    let (gpu, cpu) =
        (decoder(vec![image(crops())], Some(&device)), decoder(vec![image(crops())], None));
    let lent = |batch: u64| {
        let found = samples.decode(&gpu, batch);
        let tensor = on_device(found.outputs.into_iter().next().unwrap().column);
        // SAFETY: no stream is named.
        unsafe { tensor.lend(None) }.unwrap()
    };
    let before = lent(0);
    framework.capture(true);
    drop(before);
    // Decoding takes memory meanwhile, and a tensor that is dropped gives some back.
    let during: Vec<_> = (1..6).map(lent).collect();
    for (lent, batch) in during.iter().zip(1..) {
        let (at, len) = (lent.tensor().address(), lent.tensor().len());
        // SAFETY: the tensor is lent, and complete.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
        assert!(bytes == on_host(&samples.decode(&cpu, batch).outputs[0].column));
    }
    drop(during);
    framework.capture(false);
    drop(lent(7));
}

#[test]
fn tensor_lent_without_a_stream_is_complete() {
    if !is_emulated("tensor_lent_without_a_stream_is_complete", &[]) {
        return;
    }
    let (device, samples) = (open(), Samples::new(&mixed()));
    let (gpu, cpu) =
        (decoder(vec![image(crops())], Some(&device)), decoder(vec![image(crops())], None));
    let found = samples.decode(&gpu, 3);
    let tensor = on_device(found.outputs.into_iter().next().unwrap().column);
    let (at, len) = (tensor.address(), tensor.len());
    // SAFETY: no stream is named.
    let _lent = unsafe { tensor.lend(None) }.unwrap();
    // SAFETY: the tensor is lent; nothing waited for the device since.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
    assert!(bytes == on_host(&samples.decode(&cpu, 3).outputs[0].column));
}

#[test]
fn full_device_fails_samples_as_full_not_as_bad() {
    if !is_emulated("full_device_fails_samples_as_full_not_as_bad", &[("BYTES", "100000")]) {
        return;
    }
    let (device, samples) = (open(), Samples::new(&mixed()));
    let found = samples.decode(&decoder(vec![image(crops())], Some(&device)), 0);
    assert!(found.kept.is_empty());
    assert_eq!(found.bad.len(), 11);
    for bad in &found.bad {
        assert_eq!(bad.error.kind(), ErrorKind::Full);
        assert!(bad.error.place("doing").is_some(), "by the driver: {}", bad.error);
    }
    // A batch that there is room for goes through after it.
    let small = Samples::new(&mixed()[8..9]);
    let spec = ImageSpec { size: Some((4, 4)), ..crops() };
    assert_eq!(small.decode(&decoder(vec![image(spec)], Some(&device)), 0).kept, [0]);
}

/// Memory of the node, which a user frees by other means than memory of the GPU.
#[test]
fn lack_of_pinned_memory_is_reported_as_such() {
    if !is_emulated("lack_of_pinned_memory_is_reported_as_such", &[("PINNED", "4096")]) {
        return;
    }
    let (device, samples) = (open(), Samples::new(&mixed()));
    let found = samples.decode(&decoder(vec![image(crops())], Some(&device)), 0);
    assert_eq!((found.kept.len(), found.bad.len()), (0, 11));
    for bad in &found.bad {
        assert_eq!(bad.error.kind(), ErrorKind::Full);
        assert_eq!(bad.error.place("memory"), Some("pinned"), "{}", bad.error);
    }
}

#[test]
fn old_driver_is_rejected_with_its_release() {
    if is_emulated("old_driver_is_rejected_with_its_release", &[("CUDA", "11080")]) {
        let error = Device::open(0, Some(&nvjpeg())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let said = error.to_string();
        assert!(said.contains("11.8") && said.contains("530"), "{said}");
    }
}

#[test]
fn missing_device_is_rejected() {
    if is_emulated("missing_device_is_rejected", &[("DEVICES", "1")]) {
        let error = Device::open(1, Some(&nvjpeg())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("cuda:1"), "{error}");
    }
}

#[test]
fn driver_without_devices_is_rejected() {
    if is_emulated("driver_without_devices_is_rejected", &[("DEVICES", "0")]) {
        let error = Device::open(0, Some(&nvjpeg())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES"), "{error}");
    }
}

#[test]
fn images_without_a_size_are_rejected_before_decoding() {
    if is_emulated("images_without_a_size_are_rejected_before_decoding", &[]) {
        let spec = ImageSpec { size: None, crop: Crop::None, ..crops() };
        let refused = Decoder::new(vec![image(spec)], 1, &BufferPool::new(0), Some(open()));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("size="), "{error}");
    }
}
