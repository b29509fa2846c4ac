//! A loader whose images a GPU decodes, with a real daemon behind it and the emulator for a device.

#![allow(unsafe_code, reason = "a device's memory is an address")]
#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod emulated;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use forebay_client::{Batch, Loader, LoaderConfig, Next, Rows};
use forebay_decode::{
    Backend, Column, Crop, DType, Device, FieldKind, FieldSpec, ImageSpec, Ragged, RawSpec,
    WithNvjpeg,
};
use forebay_tests::{Daemon, config, eventually, job_with, next};
use forebay_wire::message::Begin;

use emulated::{is_emulated, nvjpeg};

const SAMPLES: usize = 96;

/// Elements of each sample's array.
const ELEMENTS: usize = 64;

/// A shard of photos of every kind, each with a label and an array.
fn shard(folder: &Path) -> String {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../loader/decode/tests/data");
    let files = ["wide-420.jpg", "tall-444.jpg", "gray.jpg", "wide-progressive.jpg"];
    let path = folder.join("000.tar");
    let mut tar = tar::Builder::new(std::fs::File::create(&path).unwrap());
    let mut add = |name: String, data: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, data).unwrap();
    };
    for sample in 0..SAMPLES {
        let photo = std::fs::read(home.join(files[sample % files.len()])).unwrap();
        add(format!("{sample:06}.jpg"), &photo);
        add(format!("{sample:06}.cls"), sample.to_string().as_bytes());
        add(format!("{sample:06}.bin"), &[sample as u8; ELEMENTS]);
    }
    tar.finish().unwrap();
    format!("file://{}", path.display())
}

/// A shard, and a daemon to read it by.
struct Stage {
    // Ended before its folder goes.
    daemon: Daemon,
    url: String,
    _folders: [tempfile::TempDir; 2],
}

impl Stage {
    fn new() -> Self {
        let (folder, disk) = (tempfile::tempdir().unwrap(), Daemon::disk());
        let url = shard(folder.path());
        Self { daemon: Daemon::start(disk.path()), url, _folders: [folder, disk] }
    }
}

/// Place where a loader decodes.
#[derive(Clone, Copy)]
enum On {
    Cpu,
    /// By the first backend that starts.
    Gpu,
    GpuBy(Backend),
}

fn loader(daemon: &Daemon, url: &str, on: On) -> Loader {
    loader_with(daemon, url, on, 4)
}

fn loader_with(daemon: &Daemon, url: &str, on: On, prefetch: u32) -> Loader {
    let crop = Crop::Random { scale: (0.1, 1.0), ratio: (0.75, 1.25) };
    let image = ImageSpec { size: Some((32, 32)), crop, flip: true, ..ImageSpec::default() };
    let raw = RawSpec { dtype: DType::Uint8, shape: vec![Some(ELEMENTS)] };
    let array = FieldKind::Npy { ragged: Ragged::List, raw: Some(raw) };
    let fields = vec![
        FieldSpec::new("image", "jpg", FieldKind::Image(image)),
        FieldSpec::new("label", "cls", FieldKind::Int { path: None }),
        FieldSpec::new("array", "bin", array),
    ];
    let mut open = job_with(BTreeMap::new(), vec![url.to_owned()]);
    open.fields = Some(FieldSpec::wanted(&fields));
    open.prefetch = prefetch;
    let open_device = |backend| Device::open(0, Some(&WithNvjpeg { backend, ..nvjpeg() })).unwrap();
    let device = match on {
        On::Cpu => None,
        On::Gpu => Some(open_device(None)),
        On::GpuBy(backend) => Some(open_device(Some(backend))),
    };
    let plain = config(daemon.address(), open);
    Loader::open(LoaderConfig { fields: Some(fields), threads: 2, device, ..plain }).unwrap()
}

fn batches(loader: &Loader) -> Vec<Batch> {
    loader.start(Begin::at(0, 0)).unwrap();
    let mut batches = Vec::new();
    while let Next::Batch(batch) = next(loader).unwrap() {
        batches.push(*batch);
    }
    batches
}

/// The bytes of each column, wherever it is.
fn bytes(batch: Batch) -> Vec<Vec<u8>> {
    let column = |(_, rows): (String, Rows)| match rows {
        Rows::Decoded { column: Column::Tensor(tensor), .. } => tensor.buffer.as_bytes().to_vec(),
        Rows::Decoded { column: Column::OnDevice(tensor), .. } => {
            let (at, len) = (tensor.address(), tensor.len());
            // SAFETY: no stream is named.
            let _lent = unsafe { tensor.lend(None) }.unwrap();
            // SAFETY: it is lent, and the emulator's memory is the process's.
            unsafe { std::slice::from_raw_parts(at as *const u8, len) }.to_vec()
        }
        other => panic!("{other:?}"),
    };
    batch.columns.into_iter().map(column).collect()
}

/// Nobody takes what is on the device until the end: slots go back to the daemon all the same, when
/// the device is done with them, and what it holds is right.
fn assert_slots_return(on: On, decoded_by: &str) {
    let Stage { daemon, url, .. } = &Stage::new();
    let gpu = loader(daemon, url, on);
    let found = batches(&gpu);
    eventually("all slots are back", || daemon.number("/jobs/0/lent_slots") == 0);
    let plain = SAMPLES as u64 / 4 * 3;
    let decoders = gpu.stats().decoders;
    assert_eq!(decoders[decoded_by], BTreeMap::from([("plain", plain)]));
    assert_eq!(decoders["gather"], BTreeMap::from([("plain", SAMPLES as u64)]));
    assert_eq!(decoders["cpu"], BTreeMap::from([("scans", SAMPLES as u64 - plain)]));
    drop(gpu);
    let expected = batches(&loader(daemon, url, On::Cpu));
    assert_eq!(found.len(), SAMPLES / 8);
    for (found, expected) in found.into_iter().zip(expected) {
        assert_eq!(found.keys, expected.keys);
        assert!(bytes(found) == bytes(expected));
    }
}

#[test]
fn slots_return_when_the_device_is_done_with_them() {
    if is_emulated(slots_return_when_the_device_is_done_with_them, &[]) {
        assert_slots_return(On::Gpu, "nvjpeg_engines");
    }
}

#[test]
fn slots_return_once_files_are_copied_and_decoded() {
    if is_emulated(slots_return_once_files_are_copied_and_decoded, &[]) {
        assert_slots_return(On::GpuBy(Backend::Engines), "nvjpeg_engines");
        assert_slots_return(On::GpuBy(Backend::Cores), "nvjpeg_cores");
    }
}

/// A run that is given up, and begun anew, leaves nothing in line that the next could stumble over.
#[test]
fn restarted_run_and_dropped_loader_leave_nothing_behind() {
    if !is_emulated(restarted_run_and_dropped_loader_leave_nothing_behind, &[]) {
        return;
    }
    let Stage { daemon, url, .. } = &Stage::new();
    let gpu = loader(daemon, url, On::Gpu);
    for _ in 0..3 {
        gpu.start(Begin::at(0, 0)).unwrap();
        let Next::Batch(first) = next(&gpu).unwrap() else { panic!("no batch") };
        assert_eq!(first.keys[0], "000000");
    }
    assert_eq!(batches(&gpu).len(), SAMPLES / 8);
    gpu.start(Begin::at(1, 0)).unwrap();
    drop(gpu);
    eventually("the job is over", || daemon.status()["jobs"] == serde_json::json!([]));
}

/// A bus that is slow holds up batches that have no slot but those which the device still reads
/// from.
#[test]
fn late_copies_are_charged_to_h2d() {
    if !is_emulated(late_copies_are_charged_to_h2d, &[]) {
        return;
    }
    let Stage { daemon, url, .. } = &Stage::new();
    let slow = |milliseconds: u64| {
        // SAFETY: it is open already, and the function takes one number.
        unsafe {
            let emulator = libloading::Library::new("libcuda.so").unwrap();
            let name = "forebay_emulator_delay_copies";
            emulator.get::<extern "C" fn(u64)>(name).unwrap()(milliseconds);
        }
    };
    let epoch = || {
        let gpu = loader_with(daemon, url, On::Gpu, 1);
        gpu.start(Begin::at(0, 0)).unwrap();
        let (mut measured, mut kept) = (0.0, Vec::new());
        loop {
            let asked = Instant::now();
            let found = next(&gpu).unwrap();
            let took = asked.elapsed().as_secs_f64();
            let Next::Batch(batch) = found else { break };
            measured += took;
            // What is given back is waited for, by whoever gives it back.
            kept.push(batch);
        }
        let booked: BTreeMap<_, _> = gpu.stats().wait.by_cause.into_iter().collect();
        (measured, booked)
    };
    // Other work on the machine only adds time.
    let quickest =
        || (0..3).map(|_| epoch()).min_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
    epoch();
    let (without, before) = quickest();
    slow(50);
    let (with, booked) = quickest();
    slow(0);
    let added = with - without;
    // Of each batch but the last a copy at least is waited for.
    assert!(added >= 0.8 * 0.05 * (SAMPLES / 8 - 1) as f64, "{without} {with}");
    assert!(booked["h2d"] - before["h2d"] >= 0.95 * added, "{added}: {before:?} {booked:?}");
    let sum: f64 = booked.values().sum();
    assert!((sum - with).abs() <= 0.01 * with, "{with}: {booked:?}");
}
