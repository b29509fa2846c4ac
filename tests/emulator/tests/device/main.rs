//! A GPU's batches, on a machine without one: the real kernels and the real decoder on the
//! emulator, which does everything as late as it may.

#![allow(unsafe_code, reason = "frameworks' memory and streams are addresses")]
#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

#[path = "../emulated/mod.rs"]
mod emulated;

mod batches;
mod framework;
mod memory;
mod order;
mod samples;
mod start;

use std::sync::Arc;

use forebay_decode::{
    Backend, BufferPool, Column, Crop, DType, Decoder, Device, DeviceTensor, FieldKind, FieldSpec,
    ImageSpec, Ragged, RawSpec, WithNvjpeg,
};

use emulated::nvjpeg;
use framework::Framework;
use samples::{Samples, mixed};

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

fn array(name: &str, source: &str, ragged: Ragged, raw: Option<RawSpec>) -> FieldSpec {
    FieldSpec::new(name, source, FieldKind::Npy { ragged, raw })
}

fn raw(shape: &[Option<usize>]) -> Option<RawSpec> {
    Some(RawSpec { dtype: DType::Uint16, shape: shape.to_vec() })
}
