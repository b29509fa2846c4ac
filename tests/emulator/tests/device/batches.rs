//! Batches of a GPU beside the CPU's: the same bytes, and the same samples left out.

use forebay_decode::{Column, Crop, DType, Decoded, ImageSpec, Layout, PadValue, Ragged};

use crate::emulated::is_emulated;
use crate::framework::Framework;
use crate::samples::{Samples, data, npy, saying};
use crate::{
    FIRST, array, assert_batches, crops, decoder, image, label, on_device, on_host, open,
    open_with_copies, raw,
};

#[test]
fn gpu_batches_equal_cpu_batches() {
    if is_emulated(gpu_batches_equal_cpu_batches, &[]) {
        assert_batches(&open(), &crops(), FIRST);
        assert_batches(&open_with_copies(), &crops(), "nvjpeg_engines");
    }
}

#[test]
fn gpu_views_layouts_and_turns_equal_the_cpus() {
    if is_emulated(gpu_views_layouts_and_turns_equal_the_cpus, &[]) {
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
fn cpu_decodes_images_the_gpu_rejects_or_fails() {
    if !is_emulated(cpu_decodes_images_the_gpu_rejects_or_fails, &[]) {
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

/// A decoder that fails on every batch is asked for few of them, until it succeeds.
#[test]
fn decoder_that_always_fails_is_asked_for_few_batches() {
    if !is_emulated(decoder_that_always_fails_is_asked_for_few_batches, &[]) {
        return;
    }
    // As documented for decoders of a GPU.
    const FAILURES: usize = 8;
    const RETRY_EVERY: usize = 256;
    let (device, framework) = (open(), Framework::new());
    let gpu = decoder(vec![image(crops())], Some(&device));
    let files = [
        ("jpg", data("wide-420.jpg")),
        ("jpg", saying("wide-420.jpg", "nvjpeg: fail")),
        ("png", data("rgb.png")),
    ];
    let [good, bad, other] = files.map(|file| Samples::new(&[vec![file]]));
    let route = |samples: &Samples| {
        let found = samples.decode(&gpu, 0);
        assert_eq!(found.kept, [0]);
        framework.take(on_device(found.outputs.into_iter().next().unwrap().column));
        found.routes.into_keys().next().unwrap()
    };
    let (failed, decoded) = (("cpu", "failed"), (FIRST, "plain"));
    for _ in 0..FAILURES {
        assert_eq!([route(&bad), route(&good)], [failed, decoded], "rare failures");
    }
    for _ in 1..FAILURES {
        assert_eq!(route(&bad), failed);
    }
    assert_eq!(route(&other), ("cpu", "format"), "the decoder is not asked, so nothing changes");
    assert_eq!(route(&bad), failed);
    for _ in FAILURES..RETRY_EVERY {
        assert_eq!(route(&good), failed, "as many failed in a row");
    }
    assert_eq!(route(&bad), failed, "asked again");
    for _ in 1..RETRY_EVERY {
        assert_eq!(route(&good), failed);
    }
    assert_eq!([route(&good), route(&good)], [decoded; 2], "it succeeds again");
}

#[test]
fn arrays_are_gathered_from_one_copy_of_the_batch() {
    if !is_emulated(arrays_are_gathered_from_one_copy_of_the_batch, &[]) {
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
fn cpu_makes_non_contiguous_arrays_and_reports_why() {
    if !is_emulated(cpu_makes_non_contiguous_arrays_and_reports_why, &[]) {
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
    if !is_emulated(bad_samples_leave_no_gap_and_absent_images_are_black, &[]) {
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
