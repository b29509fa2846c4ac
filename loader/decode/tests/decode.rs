//! A batch through the public face: columns, gaps, bad samples, hostile bytes, memory.

mod batch;

use std::path::PathBuf;

use batch::{Sample, bytes, decode, decoder, shape};
use forebay_decode::{
    BufferPool, Column, Crop, DType, Decoded, Decoder, FieldKind, FieldSpec, ImageSpec, Layout,
    Ragged, SIDE_MAX,
};
use forebay_error::ErrorKind;
use half::{bf16, f16};

fn data(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name))
        .expect("a fixture")
}

fn image(spec: ImageSpec) -> FieldSpec {
    FieldSpec::new("image", "jpg;png", FieldKind::Image(spec))
}

fn label() -> FieldSpec {
    FieldSpec::new("label", "cls", FieldKind::Int { path: None })
}

fn random_crop(dtype: DType, layout: Layout) -> ImageSpec {
    let norm = dtype != DType::Uint8;
    ImageSpec {
        size: Some((20, 30)),
        crop: Crop::Random { scale: (0.08, 1.0), ratio: (0.75, 4.0 / 3.0) },
        flip: true,
        dtype,
        layout,
        mean: norm.then_some([0.485, 0.456, 0.406]),
        std: norm.then_some([0.229, 0.224, 0.225]),
        ..ImageSpec::default()
    }
}

/// Elements of any image dtype as float32.
fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::Uint8 => bytes.iter().map(|value| f32::from(*value)).collect(),
        DType::Float16 => {
            bytes.as_chunks().0.iter().map(|two| f16::from_ne_bytes(*two).to_f32()).collect()
        }
        DType::Bfloat16 => {
            bytes.as_chunks().0.iter().map(|two| bf16::from_ne_bytes(*two).to_f32()).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four)).collect(),
    }
}

#[test]
fn every_dtype_and_layout_matches_plain_arithmetic() {
    let samples: Vec<Sample> = vec![vec![("jpg", data("wide-420.jpg"))]; 6];
    let plain = decoder(vec![image(random_crop(DType::Uint8, Layout::Nhwc))], 2);
    let plain = decode(&plain, &samples, 100, 3);
    let pixels = bytes(&plain.outputs[0].column);
    let rows: Vec<&[u8]> = pixels.chunks(20 * 30 * 3).collect();
    assert!(rows.windows(2).all(|pair| pair[0] != pair[1]), "each position has its own crop");
    for dtype in [DType::Uint8, DType::Float16, DType::Bfloat16, DType::Float32] {
        for layout in [Layout::Nchw, Layout::Nhwc] {
            let spec = random_crop(dtype, layout);
            let decoded = decode(&decoder(vec![image(spec.clone())], 2), &samples, 100, 3);
            let column = &decoded.outputs[0].column;
            let got = floats(dtype, bytes(column));
            assert_eq!(got.len(), pixels.len());
            for (at, pixel) in pixels.iter().enumerate() {
                let (n, y, x, c) = (at / 1800, at / 90 % 20, at / 3 % 30, at % 3);
                let there = match layout {
                    Layout::Nhwc => at,
                    Layout::Nchw => ((n * 3 + c) * 20 + y) * 30 + x,
                };
                let value = f32::from(*pixel);
                let want = match (spec.mean, spec.std) {
                    (Some(mean), Some(std)) => (value / 255.0 - mean[c]) / std[c],
                    _ => value,
                };
                let want = match dtype {
                    DType::Float16 => f16::from_f32(want).to_f32(),
                    DType::Bfloat16 => bf16::from_f32(want).to_f32(),
                    _ => want,
                };
                assert_eq!(got[there], want, "{dtype:?} {layout:?} at {at}");
            }
        }
    }
}

#[test]
fn flip_mirrors_about_half_of_the_samples() {
    let spec = |flip| ImageSpec { size: Some((8, 9)), flip, ..ImageSpec::default() };
    let samples: Vec<Sample> = vec![vec![("jpg", data("tall-444.jpg"))]; 64];
    let straight = decode(&decoder(vec![image(spec(false))], 1), &samples, 0, 0);
    let drawn = decode(&decoder(vec![image(spec(true))], 1), &samples, 0, 0);
    let rows = |decoded: &Decoded| -> Vec<Vec<u8>> {
        bytes(&decoded.outputs[0].column).chunks(3 * 8 * 9).map(<[u8]>::to_vec).collect()
    };
    let mirrored = |row: &[u8]| -> Vec<u8> {
        row.chunks(9).flat_map(|line| line.iter().rev().copied()).collect()
    };
    let mut flipped = 0;
    for (straight, drawn) in rows(&straight).iter().zip(rows(&drawn)) {
        if *straight != drawn {
            assert_eq!(mirrored(straight), drawn);
            flipped += 1;
        }
    }
    assert!((20..=44).contains(&flipped), "{flipped} of 64");
}

#[test]
fn output_depends_on_the_epoch_not_on_threads_or_batches() {
    let samples: Vec<Sample> =
        (0..10).map(|i| vec![("jpg", data(["wide-420.jpg", "tall-422.jpg"][i % 2]))]).collect();
    let fields = || vec![image(random_crop(DType::Float32, Layout::Nchw))];
    let (one, four) = (decoder(fields(), 1), decoder(fields(), 4));
    let whole = decode(&one, &samples, 50, 1);
    let again = decode(&four, &samples, 50, 1);
    let parts = [decode(&four, &samples[..3], 50, 1), decode(&one, &samples[3..], 53, 1)];
    let whole = bytes(&whole.outputs[0].column);
    assert_eq!(whole, bytes(&again.outputs[0].column));
    let parts: Vec<u8> =
        parts.iter().flat_map(|part| bytes(&part.outputs[0].column).to_vec()).collect();
    assert_eq!(whole, parts);
    let next = decode(&four, &samples, 50, 2);
    assert_ne!(whole, bytes(&next.outputs[0].column));
}

#[test]
fn batches_decoded_at_once_are_those_decoded_alone() {
    let samples: Vec<Sample> = (0..6)
        .map(|n| vec![("jpg", data("wide-420.jpg")), ("cls", n.to_string().into_bytes())])
        .collect();
    let decoder = decoder(vec![image(random_crop(DType::Uint8, Layout::Nhwc)), label()], 2);
    let made = |number: u64| {
        let decoded = decode(&decoder, &samples, 6 * number, 3);
        let columns = decoded.outputs.iter().map(|output| bytes(&output.column).to_vec());
        assert!(decoded.slowest.iter().all(|slow| slow.index < 6 && slow.field == "image"));
        assert!(decoded.slowest.is_sorted_by(|a, b| a.ns >= b.ns));
        assert_eq!(decoded.slowest.len(), 6);
        columns.collect::<Vec<_>>()
    };
    let alone: Vec<_> = (0..8).map(made).collect();
    let made = &made;
    let at_once: Vec<_> = std::thread::scope(|threads| {
        let decoding: Vec<_> = (0..8).map(|number| threads.spawn(move || made(number))).collect();
        decoding.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, at_once);
}

#[test]
fn bad_samples_are_reported_and_leave_no_gap() {
    let good = |class: usize| -> Sample {
        vec![("jpg", data("gray.jpg")), ("cls", class.to_string().into_bytes())]
    };
    let mut samples: Vec<Sample> = (0..8).map(good).collect();
    samples[0][0].1.truncate(900);
    samples[3][1].1 = b"three".to_vec();
    samples[4].remove(0);
    samples[7][0].1 = b"GIF89a...".to_vec();
    let spec = ImageSpec { size: Some((5, 7)), ..ImageSpec::default() };
    let decoded = decode(&decoder(vec![image(spec), label()], 2), &samples, 0, 0);
    assert_eq!(decoded.kept, [1, 2, 5, 6]);
    assert_eq!(shape(&decoded.outputs[0].column), [4, 3, 5, 7]);
    assert_eq!(shape(&decoded.outputs[1].column), [4]);
    let labels: Vec<u8> = [1_i64, 2, 5, 6].iter().flat_map(|class| class.to_ne_bytes()).collect();
    assert_eq!(bytes(&decoded.outputs[1].column), labels);
    let rows: Vec<&[u8]> = bytes(&decoded.outputs[0].column).chunks(3 * 5 * 7).collect();
    assert!(rows.windows(2).all(|pair| pair[0] == pair[1]), "rows moved whole");
    let said: Vec<_> = decoded
        .bad
        .iter()
        .map(|bad| {
            assert_eq!(bad.error.kind(), ErrorKind::BadSample);
            assert_eq!(bad.error.place("url"), Some("s3://b/0.tar"));
            assert_eq!(bad.error.place("offset"), Some((512 * bad.index).to_string().as_str()));
            let place = |name| bad.error.place(name).unwrap().to_owned();
            (bad.index, place("field"), place("key"))
        })
        .collect();
    let said: Vec<_> = said.iter().map(|(i, f, k)| (*i, f.as_str(), k.as_str())).collect();
    assert_eq!(
        said,
        [(0, "image", "k0"), (3, "label", "k3"), (4, "image", "k4"), (7, "image", "k7")]
    );
    assert!(decoded.bad[2].error.to_string().contains("it has cls"), "{}", decoded.bad[2].error);
}

#[test]
fn crops_read_by_an_index_are_counted_apart() {
    let mut indexed = Vec::new();
    assert!(forebay_jpeg::add_index(&data("wide-420.jpg"), &mut indexed) > 0);
    let mut void = indexed.clone();
    let name = void.windows(8).position(|bytes| bytes == b"FOREBAY\0").unwrap();
    // The checksum of the scan follows the version and the distance of marks.
    void[name + 10] ^= 1;
    let sample = |photo: &[u8], class: &str| -> Sample {
        vec![("jpg", photo.to_vec()), ("cls", class.as_bytes().to_vec())]
    };
    let samples = [
        sample(&indexed, "1"),
        sample(&indexed, "no number"),
        sample(&void, "2"),
        sample(&data("wide-420.jpg"), "3"),
        vec![("cls", b"4".to_vec())],
        vec![("png", data("gray.png")), ("cls", b"5".to_vec())],
        sample(&indexed, "6"),
    ];
    let counted = |crop, size| {
        let spec = ImageSpec { crop, size, ..ImageSpec::default() };
        let mut images = image(spec);
        images.optional = true;
        let decoded = decode(&decoder(vec![images, label()], 2), &samples, 0, 0);
        assert_eq!(decoded.kept, [0, 2, 3, 4, 5, 6]);
        decoded.routes.into_iter().collect::<Vec<_>>()
    };
    let middle = Crop::Center { resize: None };
    let (cpu, by_index) = (("cpu", "no_device"), ("cpu_index", "no_device"));
    assert_eq!(counted(middle, Some((16, 16))), [(cpu, 3), (by_index, 2)]);
    assert_eq!(counted(Crop::None, Some((16, 16))), [(cpu, 5)], "all of a photo");
    assert_eq!(counted(Crop::None, None), [(cpu, 5)], "rows of different shapes");
}

#[test]
fn batch_without_good_samples_has_empty_columns() {
    let plain = FieldSpec::new("i", "jpg", FieldKind::Image(ImageSpec::default()));
    let array = FieldSpec::new("n", "npy", FieldKind::Npy { ragged: Ragged::List, raw: None });
    let text = FieldSpec::new("t", "txt", FieldKind::Text { ragged: Ragged::List });
    let decoder = decoder(vec![label(), text, plain, array], 1);
    for samples in [vec![], vec![vec![("cls", b"x".to_vec())]]] {
        let decoded = decode(&decoder, &samples, 0, 0);
        assert_eq!(shape(&decoded.outputs[0].column), [0]);
        assert!(matches!(&decoded.outputs[1].column, Column::Text(rows) if rows.is_empty()));
        assert_eq!(shape(&decoded.outputs[2].column), [0, 3, 0, 0]);
        // An array's type and shape are nowhere but in the array.
        assert!(matches!(&decoded.outputs[3].column, Column::Tensors(rows) if rows.is_empty()));
        assert_eq!(decoded.bad.len(), samples.len());
    }
}

#[test]
fn truncated_image_is_a_bad_sample() {
    let decoder = decoder(vec![image(ImageSpec::default())], 1);
    for name in ["wide-420.jpg", "wide-progressive.jpg", "gray.png", "cmyk.jpg"] {
        let field = if name.ends_with("png") { "png" } else { "jpg" };
        let whole = data(name);
        let cuts = (0..10).map(|tenth| whole.len() * tenth / 10).chain([whole.len() - 20]);
        let samples: Vec<Sample> = cuts.map(|end| vec![(field, whole[..end].to_vec())]).collect();
        let decoded = decode(&decoder, &samples, 0, 0);
        assert_eq!(decoded.bad.len(), samples.len(), "{name}: kept {:?}", decoded.kept);
    }
}

#[test]
fn flipped_bytes_in_images_never_panic() {
    let decoder = decoder(vec![image(ImageSpec { size: Some((9, 9)), ..ImageSpec::default() })], 2);
    for name in ["wide-420.jpg", "wide-progressive.jpg", "palette.png", "rgba.png"] {
        let whole = data(name);
        let samples: Vec<Sample> = (0..whole.len())
            .step_by(whole.len() / 60)
            .map(|at| {
                let mut broken = whole.clone();
                broken[at] ^= 0xa5;
                vec![("jpg", broken)]
            })
            .collect();
        let decoded = decode(&decoder, &samples, 0, 0);
        assert_eq!(decoded.kept.len() + decoded.bad.len(), samples.len());
    }
}

/// More than the decoder's bit buffer swallows without a word.
const STRAY: [u8; 32] = [5; 32];

#[test]
fn stray_bytes_between_segments_are_skipped() {
    let mut stray = data("wide-420.jpg");
    stray.splice(stray.len() - 2..stray.len() - 2, STRAY);
    let samples = vec![vec![("jpg", stray)], vec![("jpg", data("wide-420.jpg"))]];
    let decoded = decode(&decoder(vec![image(ImageSpec::default())], 1), &samples, 0, 0);
    assert_eq!(decoded.kept, [0, 1], "{:?}", decoded.bad);
    let (first, second) = bytes(&decoded.outputs[0].column).split_at(150 * 200 * 3);
    assert_eq!(first, second);
}

/// Returns the start of the first marker after the first scan's data.
fn first_scan_end(jpeg: &[u8]) -> usize {
    let marker = |from: usize, wanted: fn(u8) -> bool| {
        let pairs = jpeg[from..].windows(2);
        from + pairs.into_iter().position(|pair| pair[0] == 0xff && wanted(pair[1])).expect("one")
    };
    let scan = marker(0, |byte| byte == 0xda);
    marker(scan + 2, |byte| byte != 0 && !(0xd0..=0xd7).contains(&byte))
}

#[test]
fn missing_data_is_not_taken_for_stray_bytes() {
    let mut holed = data("wide-420.jpg");
    let third = holed.len() / 3;
    holed.drain(third..2 * third);
    let mut progressive = data("wide-progressive.jpg");
    let between_scans = first_scan_end(&progressive);
    progressive.splice(between_scans..between_scans, STRAY);
    let mut cut = progressive.clone();
    cut.truncate(cut.len() * 9 / 10);
    let samples = [holed, cut, progressive].map(|jpeg| vec![("jpg", jpeg)]);
    let decoded = decode(&decoder(vec![image(ImageSpec::default())], 1), &samples, 0, 0);
    assert_eq!(decoded.kept, [2]);
}

/// Overwrites height and width in a JPEG's frame header.
fn claim_size(jpeg: &mut [u8], height: u16, width: u16) {
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
    jpeg[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    jpeg[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
}

#[test]
fn gigapixel_header_is_rejected_before_allocation() {
    let mut jpeg = data("wide-420.jpg");
    claim_size(&mut jpeg, 65_000, 65_000);
    let mut png = data("rgb.png");
    png[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let crc_is_wrong_now = vec![("png", png)];
    let decoder = decoder(vec![image(ImageSpec::default())], 1);
    let decoded = decode(&decoder, &[vec![("jpg", jpeg)], crc_is_wrong_now], 0, 0);
    assert!(decoded.kept.is_empty());
    assert!(decoded.bad[0].error.message().contains("too large"), "{}", decoded.bad[0].error);
}

#[test]
fn enlargement_of_a_thin_image_is_limited() {
    let mut thin = Vec::new();
    let mut encoder = png::Encoder::new(&mut thin, 3000, 1);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&[9; 3000]).unwrap();
    let blow_up = Crop::Center { resize: Some(SIDE_MAX) };
    let whole = image(ImageSpec { crop: blow_up, ..ImageSpec::default() });
    let mut part = image(ImageSpec { size: Some((4, 4)), crop: blow_up, ..ImageSpec::default() });
    part.name = "part".to_owned();
    let samples = [vec![("png", thin)]];
    let decoded = decode(&decoder(vec![whole], 1), &samples, 0, 0);
    assert!(decoded.bad[0].error.message().contains("too large"), "{}", decoded.bad[0].error);
    let decoded = decode(&decoder(vec![part], 1), &samples, 0, 0);
    assert_eq!(bytes(&decoded.outputs[0].column), [9; 4 * 4 * 3], "only the cut is resized");
}

#[test]
fn images_of_one_shape_are_stacked_and_others_listed() {
    let sample = |name: &str| vec![("jpg", data(name))];
    let decoder = decoder(vec![image(ImageSpec::default())], 1);
    let alike = decode(&decoder, &[sample("gray.jpg"), sample("wide-420.jpg")], 0, 0);
    assert_eq!(shape(&alike.outputs[0].column), [2, 3, 150, 200]);
    let mixed = decode(&decoder, &[sample("gray.jpg"), sample("tall-444.jpg")], 0, 0);
    let Column::Tensors(tensors) = &mixed.outputs[0].column else { panic!() };
    assert_eq!(tensors[0].shape, [3, 150, 200]);
    assert_eq!(tensors[1].shape, [3, 201, 133]);
    assert_eq!(tensors[1].buffer.len(), 3 * 201 * 133);
}

#[test]
fn absent_optional_fields_are_marked_and_blank() {
    let optional = |name, kind| {
        let mut field = FieldSpec::new(name, name, kind);
        field.optional = true;
        field
    };
    let fields = vec![
        optional("cls", FieldKind::Int { path: None }),
        optional("txt", FieldKind::Text { ragged: Ragged::List }),
        optional("json", FieldKind::Json { path: Some("a".to_owned()) }),
        optional("bin", FieldKind::Bytes),
        FieldSpec::new("key", "id", FieldKind::Bytes),
    ];
    let samples: Vec<Sample> = vec![
        vec![("id", vec![]), ("CLS", b"9".to_vec()), ("txt", b"hi".to_vec())],
        vec![("json", br#"{"a":[1]}"#.to_vec()), ("bin", vec![0]), ("id", vec![])],
    ];
    let decoded = decode(&decoder(fields, 1), &samples, 0, 0);
    let present: Vec<_> = decoded.outputs.iter().map(|output| output.present.clone()).collect();
    let (first, second) = (Some(vec![true, false]), Some(vec![false, true]));
    assert_eq!(present, [first.clone(), first, second.clone(), second, None]);
    assert_eq!(bytes(&decoded.outputs[0].column), [9_i64.to_ne_bytes(), [0; 8]].concat());
    assert!(matches!(&decoded.outputs[1].column, Column::Text(rows) if rows == &["hi", ""]));
    assert!(matches!(&decoded.outputs[2].column, Column::Json(rows) if rows == &["", "[1]"]));
    assert!(matches!(&decoded.outputs[3].column, Column::Bytes(rows) if rows == &[None, Some(1)]));
    assert!(
        matches!(&decoded.outputs[4].column, Column::Bytes(rows) if rows == &[Some(0), Some(2)])
    );
}

#[test]
fn missing_json_part_is_absent_if_optional() {
    let path = || Some("x.0".to_owned());
    let kinds = [
        FieldKind::Int { path: path() },
        FieldKind::Float { path: path(), dtype: DType::Float64 },
        FieldKind::Json { path: path() },
    ];
    let samples: Vec<Sample> = [r#"{"y": 1}"#, r#"{"x": [3]}"#, r#"{"x": 7}"#]
        .map(|json| vec![("json", json.as_bytes().to_vec())])
        .into();
    for kind in kinds {
        let mut field = FieldSpec::new("a", "json", kind);
        let strict = decode(&decoder(vec![field.clone()], 1), &samples, 0, 0);
        assert_eq!(strict.kept, [1]);
        for bad in &strict.bad {
            assert_eq!(bad.error.place("path"), Some("x.0"));
            assert!(bad.error.to_string().contains("optional=True"), "{}", bad.error);
        }
        field.optional = true;
        let decoded = decode(&decoder(vec![field], 1), &samples, 0, 0);
        assert_eq!(decoded.outputs[0].present, Some(vec![false, true, false]));
        match &decoded.outputs[0].column {
            Column::Json(rows) => assert_eq!(rows, &["", "3", ""]),
            Column::Tensor(tensor) if tensor.dtype == DType::Int64 => {
                assert_eq!(tensor.buffer.as_bytes(), [0_i64, 3, 0].map(i64::to_ne_bytes).concat());
            }
            column => assert_eq!(bytes(column), [0.0, 3.0, 0.0].map(f64::to_ne_bytes).concat()),
        }
    }
    let mut broken = label();
    (broken.kind, broken.optional) = (FieldKind::Int { path: path() }, true);
    let text: Vec<Sample> = vec![vec![("cls", br#"{"x": ["3"]}"#.to_vec())]];
    let decoded = decode(&decoder(vec![broken], 1), &text, 0, 0);
    assert_eq!(decoded.bad[0].error.place("path"), Some("x.0"), "there, but no number");
}

#[test]
fn batch_larger_than_memory_is_full_not_bad() {
    // 2 GB a row: terabytes in all, which no machine grants.
    let spec =
        ImageSpec { size: Some((13_000, 13_000)), dtype: DType::Float32, ..ImageSpec::default() };
    let samples: Vec<Sample> = vec![vec![("jpg", vec![]), ("cls", b"1".to_vec())]; 1 << 18];
    let decoder = decoder(vec![label(), image(spec)], 1);
    let decoded = decode(&decoder, &samples, 0, 0);
    assert!(decoded.kept.is_empty());
    assert_eq!(decoded.bad.len(), samples.len());
    for bad in &decoded.bad {
        assert_eq!(bad.error.kind(), ErrorKind::Full);
        assert!(bad.error.to_string().contains("batch_size"), "{}", bad.error);
    }
    assert_eq!(shape(&decoded.outputs[0].column), [0]);
    let small = decode(&decoder, &[], 0, 0);
    assert_eq!(shape(&small.outputs[1].column), [0, 3, 13_000, 13_000], "the decoder goes on");
}

#[test]
fn alternative_fields_are_tried_in_order() {
    let field = FieldSpec::new("x", " B ; a", FieldKind::Bytes);
    let samples: Vec<Sample> = vec![
        vec![("a", vec![]), ("b", vec![])],
        vec![("a", vec![])],
        vec![("ab", vec![]), ("b.a", vec![])],
    ];
    let decoded = decode(&decoder(vec![field], 1), &samples, 0, 0);
    assert!(
        matches!(&decoded.outputs[0].column, Column::Bytes(rows) if rows == &[Some(1), Some(0)])
    );
    assert_eq!(decoded.bad[0].index, 2);
}

#[test]
fn batch_reuses_the_memory_of_a_dropped_batch() {
    let pool = BufferPool::new(1 << 20);
    let spec = ImageSpec { size: Some((32, 32)), ..ImageSpec::default() };
    let decoder = Decoder::new(vec![image(spec)], 1, &pool, None).unwrap();
    let samples = vec![vec![("jpg", data("gray.jpg"))]; 4];
    let address = |decoded: &Decoded| bytes(&decoded.outputs[0].column).as_ptr();
    let first = decode(&decoder, &samples, 0, 0);
    let at = address(&first);
    assert_eq!(at as usize % 64, 0);
    let beside = decode(&decoder, &samples, 0, 0);
    assert_ne!(address(&beside), at, "memory in use is never handed out");
    drop(first);
    assert_eq!(pool.idle_bytes(), 4 * 3 * 32 * 32);
    assert_eq!(address(&decode(&decoder, &samples, 0, 0)), at);
}

#[test]
fn decoder_serves_concurrent_callers() {
    let decoder = decoder(vec![image(random_crop(DType::Float16, Layout::Nchw)), label()], 2);
    let sample = || vec![("jpg", data("tall-422.jpg")), ("cls", b"1".to_vec())];
    let samples: Vec<Sample> = (0..6).map(|_| sample()).collect();
    let alone = decode(&decoder, &samples, 9, 0);
    let alone = bytes(&alone.outputs[0].column);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let beside = decode(&decoder, &samples, 9, 0);
                assert_eq!(bytes(&beside.outputs[0].column), alone);
            });
        }
    });
}
