//! Tests: the kernel's own source, compiled for the CPU, gives the CPU path's result from an
//! image's planes, to the bit.

#![allow(unsafe_code, reason = "the kernel takes addresses")]

use proptest::prelude::*;

use super::screen::screen;
use super::view::{Move, Placing, Plane, Tables, View};
use crate::draw::Draw;
use crate::dtype::DType;
use crate::fixtures::{PLAIN, by_cpu, data};
use crate::image::ImagePlan;
use crate::spec::{Crop, ImageSpec, Layout};

/// Fixtures that GPUs decode: the plain ones, in every orientation.
fn files() -> Vec<String> {
    let turned = (1..=8).map(|number| format!("exif-{number}.jpg"));
    PLAIN.into_iter().map(str::to_owned).chain(turned).collect()
}

/// Makes the row of `planes` by the kernel.
fn by_kernel(
    bytes: &[u8],
    planes: &[forebay_kernel::Plane],
    plan: &ImagePlan,
    draw: &Draw,
    len: usize,
) -> Vec<u8> {
    let stored = screen(bytes).unwrap();
    let sizes: Vec<_> = planes.iter().map(|plane| (plane.height, plane.width)).collect();
    assert_eq!(sizes, stored.planes().collect::<Vec<_>>());
    let placed: Vec<Plane> = planes
        .iter()
        .map(|plane| Plane {
            at: plane.values.as_ptr() as u64,
            pitch: plane.pitch,
            width: plane.width,
            height: plane.height,
            unused: 0,
        })
        .collect();
    let orientation = plan.orientation(bytes);
    let cuts: Vec<_> = plan.cuts(orientation.size(stored.size), draw).collect();
    // Elements are aligned as the largest one.
    let mut out = vec![0_u32; len.div_ceil(4)];
    let mut tables = Tables::default();
    for cut in &cuts {
        tables.push(&stored, orientation, cut, plan.layout());
    }
    let mut memory = vec![0_u64; Placing::len([&tables].into_iter()).div_ceil(8)];
    let mut placing = Placing::new(memory.as_ptr() as u64, [&tables].into_iter());
    let to = (out.as_mut_ptr() as u64, len / cuts.len());
    placing.put(bytemuck::cast_slice_mut(&mut memory), &tables, &placed, to);
    let views: &[View] = bytemuck::cast_slice(&memory[..cuts.len() * size_of::<View>() / 8]);
    let mut table = vec![0_u32; plan.table().len().div_ceil(4)];
    bytemuck::cast_slice_mut(&mut table)[..plan.table().len()].copy_from_slice(plan.table());
    for view in views {
        // SAFETY: planes, tables and out live until the end of this function and have the sizes in
        // the view.
        unsafe {
            forebay_kernel::forebay_pixels(
                std::ptr::from_ref(view).cast(),
                table.as_ptr().cast(),
                plan.dtype().size() as u32,
            );
        }
    }
    bytemuck::cast_slice(&out)[..len].to_vec()
}

fn specs() -> impl Strategy<Value = ImageSpec> {
    let crop = prop_oneof![
        Just(Crop::None),
        (8..200_u32).prop_map(|short| Crop::Center { resize: Some(short) }),
        Just(Crop::Center { resize: None }),
        Just(Crop::Random { scale: (0.05, 1.0), ratio: (0.5, 2.0) }),
    ];
    let dtype =
        prop::sample::select(vec![DType::Uint8, DType::Float16, DType::Bfloat16, DType::Float32]);
    let layout = prop::sample::select(vec![Layout::Nchw, Layout::Nhwc]);
    let size = (1..120_u32, 1..120_u32);
    (crop, size, dtype, layout, any::<bool>(), prop::option::of(1..4_u32)).prop_map(
        |(crop, size, dtype, layout, flip, views)| {
            let normalised = (dtype != DType::Uint8).then_some([0.5, 0.25, 0.125]);
            ImageSpec {
                size: Some(size),
                crop,
                flip,
                dtype,
                layout,
                mean: normalised,
                std: normalised,
                views,
                exif: true,
                ..ImageSpec::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn kernel_and_cpu_make_equal_pixels(
        name in prop::sample::select(files()),
        spec in specs(),
        position in any::<u64>(),
    ) {
        let draw = Draw { seed: 1, epoch: 2, stream: 0, position, field: 3, view: 0 };
        let (bytes, plan) = (data(&name), ImagePlan::new(spec));
        let (_, expected) = by_cpu(&bytes, &plan, &draw);
        let planes = forebay_kernel::planes(&bytes);
        let found = by_kernel(&bytes, &planes, &plan, &draw, expected.len());
        let size = plan.dtype().size();
        let differs = found.chunks(size).zip(expected.chunks(size)).filter(|(a, b)| a != b).count();
        prop_assert_eq!(differs, 0, "of {} elements", expected.len() / size);
    }

    #[test]
    fn kernel_copies_exactly_the_requested_bytes(
        bytes in prop::collection::vec(1..=u8::MAX, 0..300),
        (from, to) in (0..40_usize, 0..40_usize),
        threads in 1..70_u64,
    ) {
        let (length, end) = (bytes.len(), to + bytes.len());
        // Aligned as device memory.
        let (mut source, mut target) = (vec![0_u128; 24], vec![0_u128; 24]);
        let source: &mut [u8] = bytemuck::cast_slice_mut(&mut source);
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut target);
        source[from..from + length].copy_from_slice(&bytes);
        let one = Move { from: source[from..].as_ptr() as u64, to: target[to..].as_mut_ptr() as u64 };
        // SAFETY: both places have this many bytes.
        unsafe { forebay_kernel::forebay_gather((&raw const one).cast(), length as u64, threads) };
        prop_assert_eq!(&target[to..end], &bytes[..]);
        prop_assert!(target[..to].iter().chain(&target[end..]).all(|byte| *byte == 0));
    }
}
