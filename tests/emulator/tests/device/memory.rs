//! Memory: slabs that the device copies from, blocks that consumers still use, and none left.

use forebay_decode::{Device, ImageSpec, Ragged};
use forebay_error::ErrorKind;

use crate::emulated::is_emulated;
use crate::framework::Framework;
use crate::samples::{GAP, Samples, data, mixed, npy};
use crate::{
    array, assert_batches, crops, decoder, image, on_device, on_host, open, open_with_copies,
};

#[test]
fn unregistered_memory_is_copied_through_pinned_memory() {
    if is_emulated(unregistered_memory_is_copied_through_pinned_memory, &[("READ_ONLY", "0")]) {
        assert_batches(&open_with_copies(), &crops(), "nvjpeg_engines");
    }
}

/// Some drivers register no such memory, or stop in the midst of it.
#[test]
fn memory_that_is_not_registered_is_copied_by_the_cpu() {
    if is_emulated(memory_that_is_not_registered_is_copied_by_the_cpu, &[("REGISTERS", "0")]) {
        assert_batches(&open_with_copies(), &crops(), "nvjpeg_engines");
        assert_eq!(Framework::new().registered_copies(), 0);
    }
}

#[test]
fn half_registered_memory_is_unregistered() {
    if !is_emulated(half_registered_memory_is_unregistered, &[("REGISTERS", "1")]) {
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

/// Drivers register so much at most, and do not copy what lies in two pieces.
#[test]
fn large_slab_is_registered_in_pieces() {
    if !is_emulated(large_slab_is_registered_in_pieces, &[]) {
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
    if !is_emulated(replaced_slab_is_unregistered_after_its_copies, &[]) {
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
    if !is_emulated(slab_stays_registered_if_the_end_of_its_copies_is_unknown, &[]) {
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

/// A consumer's queued work may read a tensor's bytes after the tensor was dropped and further
/// batches have come.
#[test]
fn memory_in_use_by_a_late_consumer_is_not_reused() {
    if !is_emulated(memory_in_use_by_a_late_consumer_is_not_reused, &[("BYTES", "32000000")]) {
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
    if is_emulated(memory_lent_by_one_stream_and_used_by_another_is_kept, &[]) {
        assert_lent_memory_is_kept(true);
    }
}

#[test]
fn memory_lent_without_a_stream_is_kept() {
    if is_emulated(memory_lent_without_a_stream_is_kept, &[]) {
        assert_lent_memory_is_kept(false);
    }
}

/// Lent memory that was dropped serves the next batches of a full device.
#[test]
fn full_device_takes_lent_memory_back() {
    if !is_emulated(full_device_takes_lent_memory_back, &[("BYTES", "4000000")]) {
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

#[test]
fn full_device_fails_samples_as_full_not_as_bad() {
    if !is_emulated(full_device_fails_samples_as_full_not_as_bad, &[("BYTES", "100000")]) {
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
    if !is_emulated(lack_of_pinned_memory_is_reported_as_such, &[("PINNED", "4096")]) {
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
