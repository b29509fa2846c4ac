//! Order of work: batches that overlap, current devices, captured graphs, complete tensors.

use std::sync::{Arc, Barrier, Mutex};

use forebay_decode::{Decoded, Device, Ragged};

use crate::emulated::{is_emulated, nvjpeg};
use crate::framework::Framework;
use crate::samples::{Samples, data, mixed, npy};
use crate::{FIRST, array, crops, decoder, image, on_device, on_host, open, open_with_copies};

/// A device has no more batches in flight than overlap, however many threads begin them.
#[test]
fn batches_in_flight_are_bounded() {
    if !is_emulated(batches_in_flight_are_bounded, &[]) {
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
    if is_emulated(batches_overlap_on_engines, &[]) {
        assert_overlap(&open(), FIRST);
        assert_overlap(&open_with_copies(), "nvjpeg_engines");
    }
}

#[test]
fn batches_overlap_on_cores() {
    if is_emulated(batches_overlap_on_cores, &[("ENGINES", "0")]) {
        assert_overlap(&open(), "nvjpeg_cores");
    }
}

#[test]
fn threads_keep_their_current_device() {
    if !is_emulated(threads_keep_their_current_device, &[("DEVICES", "2")]) {
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
    if !is_emulated(graph_that_is_captured_stays_valid, &[]) {
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
    if !is_emulated(tensor_lent_without_a_stream_is_complete, &[]) {
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
