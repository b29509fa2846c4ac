//! Opening a device: drivers, backends of nvJPEG, and what is rejected before a batch.

use forebay_decode::{
    Backend, BufferPool, Crop, DType, Decoder, Device, ImageSpec, Ragged, WithNvjpeg,
};
use forebay_error::ErrorKind;

use crate::emulated::{is_emulated, nvjpeg};
use crate::framework::Framework;
use crate::samples::{Samples, mixed, npy};
use crate::{FIRST, array, assert_batches, crops, decoder, image, label, on_device, on_host, open};

#[test]
fn device_without_jpeg_engines_decodes_on_its_cores() {
    if is_emulated(device_without_jpeg_engines_decodes_on_its_cores, &[("ENGINES", "0")]) {
        let spec = ImageSpec { dtype: DType::Uint8, mean: None, std: None, ..crops() };
        assert_batches(&open(), &spec, "nvjpeg_cores");
    }
}

/// A container without the driver's video libraries has engines that do not start.
#[test]
fn cores_decode_if_the_engines_do_not_start() {
    if is_emulated(cores_decode_if_the_engines_do_not_start, &[("CREATE_FAILS", "2")]) {
        let spec = ImageSpec { dtype: DType::Uint8, mean: None, std: None, ..crops() };
        assert_batches(&open(), &spec, "nvjpeg_cores");
    }
}

/// A handle without states is no decoder: the next backend is tried.
#[test]
fn cores_decode_if_the_engines_have_no_states() {
    if is_emulated(cores_decode_if_the_engines_have_no_states, &[("STATES_FAIL", "6")]) {
        let spec = ImageSpec { dtype: DType::Uint8, mean: None, std: None, ..crops() };
        assert_batches(&open(), &spec, "nvjpeg_cores");
    }
}

/// A release too new for the driver loads, and does not start.
#[test]
fn next_nvjpeg_is_tried_if_one_does_not_start() {
    if !is_emulated(next_nvjpeg_is_tried_if_one_does_not_start, &[("CREATE_FAILS", "3")]) {
        return;
    }
    let one = nvjpeg();
    let paths = [one.paths.clone(), one.paths].concat();
    let device = Device::open(0, Some(&WithNvjpeg { paths, backend: None })).unwrap();
    let samples = Samples::new(&mixed()[..1]);
    let found = samples.decode(&decoder(vec![image(crops())], Some(&device)), 0);
    assert_eq!(found.routes.into_keys().collect::<Vec<_>>(), [(FIRST, "plain")]);
}

#[test]
fn nvjpeg_that_does_not_start_is_reported_with_all_tried() {
    if is_emulated(nvjpeg_that_does_not_start_is_reported_with_all_tried, &[("CREATE_FAILS", "9")])
    {
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
    if !is_emulated(named_backend_decodes, &[]) {
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

#[test]
fn decoder_starts_for_images_and_not_for_arrays() {
    if !is_emulated(decoder_starts_for_images_and_not_for_arrays, &[]) {
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
fn old_driver_is_rejected_with_its_release() {
    if is_emulated(old_driver_is_rejected_with_its_release, &[("CUDA", "11080")]) {
        let error = Device::open(0, Some(&nvjpeg())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let said = error.to_string();
        assert!(said.contains("11.8") && said.contains("530"), "{said}");
    }
}

#[test]
fn missing_device_is_rejected() {
    if is_emulated(missing_device_is_rejected, &[("DEVICES", "1")]) {
        let error = Device::open(1, Some(&nvjpeg())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("cuda:1"), "{error}");
    }
}

#[test]
fn driver_without_devices_is_rejected() {
    if is_emulated(driver_without_devices_is_rejected, &[("DEVICES", "0")]) {
        let error = Device::open(0, Some(&nvjpeg())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES"), "{error}");
    }
}

#[test]
fn images_without_a_size_are_rejected_before_decoding() {
    if is_emulated(images_without_a_size_are_rejected_before_decoding, &[]) {
        let spec = ImageSpec { size: None, crop: Crop::None, ..crops() };
        let refused = Decoder::new(vec![image(spec)], 1, &BufferPool::new(0), Some(open()));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("size="), "{error}");
    }
}
