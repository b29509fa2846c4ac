//! Rows that differ in length: padded and packed as a plain loop would, and what is no such row.

mod batch;

use batch::{Sample, decode, decoder, shape};
use forebay_decode::{
    BufferPool, Column, DType, Decoded, Decoder, FieldKind, FieldSpec, PadValue, Ragged, RawSpec,
    Tensor,
};
use forebay_error::ErrorKind;
use proptest::prelude::*;

/// An array file as `numpy.save` writes it.
fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let length = u16::try_from(header.len()).expect("a short header").to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), elements].concat()
}

/// A file of `rows` pairs of int16, the first of them `first`.
fn pairs(rows: usize, first: i16) -> Vec<u8> {
    let elements: Vec<u8> = (first..).take(2 * rows).flat_map(i16::to_le_bytes).collect();
    npy("<i2", &format!("({rows}, 2)"), &elements)
}

fn pad(value: &str, max_len: Option<u32>) -> Ragged {
    Ragged::Pad { value: PadValue::try_from(value.to_owned()).expect("a number"), max_len }
}

fn array(ragged: Ragged) -> FieldSpec {
    FieldSpec::new("array", "npy", FieldKind::Npy { ragged, raw: None })
}

fn raw(ragged: Ragged, dtype: DType, shape: &[Option<usize>]) -> FieldSpec {
    let raw = Some(RawSpec { dtype, shape: shape.to_vec() });
    FieldSpec::new("array", "bin", FieldKind::Npy { ragged, raw })
}

fn text(ragged: Ragged) -> FieldSpec {
    FieldSpec::new("text", "txt", FieldKind::Text { ragged })
}

fn label() -> FieldSpec {
    FieldSpec::new("label", "cls", FieldKind::Int { path: None })
}

fn optional(mut field: FieldSpec) -> FieldSpec {
    field.optional = true;
    field
}

/// One sample for each value of its only field.
fn samples(field: &'static str, values: &[&[u8]]) -> Vec<Sample> {
    values.iter().map(|value| vec![(field, value.to_vec())]).collect()
}

fn arrays(files: &[Vec<u8>]) -> Vec<Sample> {
    samples("npy", &files.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn padded(decoded: &Decoded) -> (&Tensor, Vec<i64>) {
    match &decoded.outputs[0].column {
        Column::Padded { values, lengths } => (values, numbers(lengths)),
        other => panic!("{other:?}"),
    }
}

fn nested(decoded: &Decoded) -> (&Tensor, Vec<i64>) {
    match &decoded.outputs[0].column {
        Column::Nested { values, lengths } => (values, numbers(lengths)),
        other => panic!("{other:?}"),
    }
}

fn numbers(lengths: &Tensor) -> Vec<i64> {
    assert_eq!((lengths.dtype, lengths.shape.len()), (DType::Int64, 1));
    let numbers = lengths.buffer.as_bytes().as_chunks().0.iter().map(|n| i64::from_ne_bytes(*n));
    let numbers: Vec<i64> = numbers.collect();
    assert_eq!(lengths.shape, [numbers.len()]);
    numbers
}

fn shorts(tensor: &Tensor) -> Vec<i16> {
    assert_eq!(tensor.dtype, DType::Int16);
    assert_eq!(tensor.buffer.len(), 2 * tensor.shape.iter().product::<usize>());
    tensor.buffer.as_bytes().as_chunks().0.iter().map(|two| i16::from_ne_bytes(*two)).collect()
}

#[test]
fn arrays_are_padded_to_the_longest_of_their_batch() {
    let files = [pairs(1, 10), pairs(3, 20), pairs(0, 0), pairs(2, 30)];
    let decoded = decode(&decoder(vec![array(pad("-7", None))], 2), &arrays(&files), 0, 0);
    let (values, lengths) = padded(&decoded);
    assert_eq!((&values.shape[..], &lengths[..]), (&[4, 3, 2][..], &[1, 3, 0, 2][..]));
    let rows = shorts(values);
    assert_eq!(rows[..6], [10, 11, -7, -7, -7, -7]);
    assert_eq!(rows[6..12], [20, 21, 22, 23, 24, 25]);
    assert_eq!(rows[12..18], [-7; 6]);
    assert_eq!(rows[18..], [30, 31, 32, 33, -7, -7]);
    assert_eq!(decoded.outputs[0].present, None);
}

#[test]
fn given_length_fixes_rows_and_cuts_longer_ones() {
    let files = [pairs(1, 10), pairs(3, 20)];
    let decoder = decoder(vec![array(pad("0", Some(2)))], 1);
    let decoded = decode(&decoder, &arrays(&files), 0, 0);
    let (values, lengths) = padded(&decoded);
    assert_eq!((&values.shape[..], &lengths[..]), (&[2, 2, 2][..], &[1, 2][..]));
    assert_eq!(shorts(values), [10, 11, 0, 0, 20, 21, 22, 23]);
    let short = decode(&decoder, &arrays(&files[..1]), 0, 0);
    assert_eq!(padded(&short).0.shape, [1, 2, 2]);
}

#[test]
fn nested_rows_follow_each_other_without_padding() {
    let files = [pairs(1, 10), pairs(0, 0), pairs(3, 20)];
    for (max_len, shape, lengths) in [(None, [4, 2], [1, 0, 3]), (Some(2), [3, 2], [1, 0, 2])] {
        let fields = vec![array(Ragged::Nested { max_len })];
        let decoded = decode(&decoder(fields, 2), &arrays(&files), 0, 0);
        let (values, found) = nested(&decoded);
        assert_eq!((&values.shape[..], &found[..]), (&shape[..], &lengths[..]));
        assert_eq!(shorts(values), [10, 11, 20, 21, 22, 23, 24, 25][..2 * shape[0]]);
    }
}

#[test]
fn equal_and_single_arrays_are_padded_too() {
    let files = [pairs(3, 1), pairs(3, 7)];
    let decoded = decode(&decoder(vec![array(pad("0", None))], 1), &arrays(&files), 0, 0);
    assert_eq!(padded(&decoded).0.shape, [2, 3, 2], "though they could be stacked");
    let decoded = decode(&decoder(vec![array(pad("0", None))], 1), &arrays(&files[..1]), 0, 0);
    assert_eq!(padded(&decoded).0.shape, [1, 3, 2]);
}

#[test]
fn only_the_odd_array_of_a_batch_is_bad() {
    let odd = [
        (npy("<i2", "(2, 3)", &[0; 12]), "int16 (2, 3)"),
        (npy("<i4", "(1, 2)", &[0; 8]), "int32 (1, 2)"),
        (npy("<i2", "(4,)", &[0; 8]), "int16 (4,)"),
        (npy("<i2", "(1, 1, 2)", &[0; 4]), "int16 (1, 1, 2)"),
    ];
    for ragged in [pad("0", None), pad("0", Some(9)), Ragged::Nested { max_len: None }] {
        let decoder = decoder(vec![array(ragged)], 2);
        for (file, has) in &odd {
            for at in 0..3 {
                let mut files = vec![pairs(1, 1), pairs(2, 2)];
                files.insert(at, file.clone());
                let decoded = decode(&decoder, &arrays(&files), 0, 0);
                assert_eq!(decoded.kept.len(), 2, "{has} at {at}");
                assert_eq!(decoded.bad[0].index, at);
                let error = &decoded.bad[0].error;
                assert_eq!(error.kind(), ErrorKind::BadSample);
                assert_eq!(error.place("has"), Some(*has));
                assert_eq!(error.place("expected"), Some("int16 (*, 2)"));
                assert_eq!(error.place("field"), Some("array"));
                assert_eq!(error.place("key"), Some(format!("k{at}").as_str()));
            }
        }
    }
}

#[test]
fn first_of_equally_frequent_shapes_wins() {
    let wide = npy("<i2", "(2, 3)", &[0; 12]);
    let decoder = decoder(vec![array(pad("0", None))], 1);
    let decoded = decode(&decoder, &arrays(&[wide.clone(), pairs(1, 1)]), 0, 0);
    assert_eq!((&decoded.kept[..], &padded(&decoded).0.shape[..]), (&[0][..], &[1, 2, 3][..]));
    let decoded = decode(&decoder, &arrays(&[pairs(1, 1), wide]), 0, 0);
    assert_eq!((&decoded.kept[..], &padded(&decoded).0.shape[..]), (&[0][..], &[1, 1, 2][..]));
}

#[test]
fn scalar_and_elementless_arrays_are_bad_and_not_counted() {
    let scalar = npy("<i2", "()", &[1, 0]);
    // A vast length without a byte.
    let vast = npy("<i2", "(2305843009213693952, 0)", &[]);
    let files = [scalar.clone(), scalar, vast.clone(), vast.clone(), vast, pairs(1, 5)];
    for ragged in [pad("0", None), Ragged::Nested { max_len: None }] {
        let decoded = decode(&decoder(vec![array(ragged)], 1), &arrays(&files), 0, 0);
        assert_eq!(decoded.kept, [5], "{ragged:?}");
        assert!(decoded.bad[0].error.to_string().contains("list"), "{}", decoded.bad[0].error);
        assert_eq!(decoded.bad[2].error.place("has"), Some("int16 (2305843009213693952, 0)"));
    }
}

#[test]
fn array_unable_to_hold_the_padding_is_bad_and_not_counted() {
    let bytes = npy("|u1", "(1,)", &[1]);
    let files = [bytes.clone(), bytes, npy("<i2", "(1,)", &[1, 0])];
    let decoded = decode(&decoder(vec![array(pad("-100", None))], 1), &arrays(&files), 0, 0);
    assert_eq!(decoded.kept, [2]);
    assert_eq!(decoded.bad[0].error.place("pad_value"), Some("-100"));
    assert_eq!(decoded.bad[0].error.place("dtype"), Some("uint8"));
}

#[test]
fn failed_rows_leave_neither_gap_nor_width() {
    let sample = |rows, first, class: &str| -> Sample {
        vec![("npy", pairs(rows, first)), ("cls", class.as_bytes().to_vec())]
    };
    let samples = [
        sample(9, 0, "broken"),
        sample(1, 10, "1"),
        vec![("npy", b"broken".to_vec()), ("cls", b"1".to_vec())],
        sample(5, 0, "broken"),
        sample(2, 20, "1"),
    ];
    let with = |ragged| decode(&decoder(vec![array(ragged), label()], 2), &samples, 0, 0);
    let decoded = with(pad("-1", None));
    let (values, lengths) = padded(&decoded);
    assert_eq!((&values.shape[..], &lengths[..]), (&[2, 2, 2][..], &[1, 2][..]));
    assert_eq!(shorts(values), [10, 11, -1, -1, 20, 21, 22, 23]);
    assert_eq!(shape(&decoded.outputs[1].column), [2]);
    let decoded = with(pad("-1", Some(3)));
    let (values, _) = padded(&decoded);
    assert_eq!(shorts(values), [10, 11, -1, -1, -1, -1, 20, 21, 22, 23, -1, -1]);
    let decoded = with(Ragged::Nested { max_len: None });
    let (values, lengths) = nested(&decoded);
    assert_eq!((&values.shape[..], &lengths[..]), (&[3, 2][..], &[1, 2][..]));
    assert_eq!(shorts(values), [10, 11, 20, 21, 22, 23]);
}

#[test]
fn absent_rows_are_marked_and_have_length_zero() {
    let samples = [vec![], vec![("npy", pairs(1, 10))], vec![("npy", pairs(0, 0))]];
    let with = |ragged| decode(&decoder(vec![optional(array(ragged))], 1), &samples, 0, 0);
    let decoded = with(pad("3", None));
    let (values, lengths) = padded(&decoded);
    assert_eq!((&values.shape[..], &lengths[..]), (&[3, 1, 2][..], &[0, 1, 0][..]));
    assert_eq!(shorts(values), [3, 3, 10, 11, 3, 3]);
    assert_eq!(decoded.outputs[0].present, Some(vec![false, true, true]));
    let decoded = with(Ragged::Nested { max_len: None });
    assert_eq!(nested(&decoded).1, [0, 1, 0]);
    assert_eq!(decoded.outputs[0].present, Some(vec![false, true, true]));
}

#[test]
fn batch_without_rows_has_dtype_and_shape() {
    let none = |field: FieldSpec, samples: &[Sample]| {
        let decoded = decode(&decoder(vec![field], 1), samples, 0, 0);
        let (Column::Padded { values, lengths } | Column::Nested { values, lengths }) =
            &decoded.outputs[0].column
        else {
            panic!("{decoded:?}")
        };
        assert_eq!(lengths.shape, [decoded.kept.len()]);
        (values.dtype, values.shape.clone(), values.buffer.as_bytes().to_vec())
    };
    let nest = Ragged::Nested { max_len: None };
    let wide = [None, Some(3)];
    let u2 = DType::Uint16;
    let absent: [Sample; 2] = [vec![], vec![]];
    let float = |value: f32| value.to_ne_bytes().to_vec();
    assert_eq!(none(array(pad("0", None)), &[]), (DType::Float32, vec![0, 0], vec![]));
    assert_eq!(none(array(pad("0", Some(5))), &[]), (DType::Float32, vec![0, 5], vec![]));
    assert_eq!(none(array(nest), &[]), (DType::Float32, vec![0], vec![]));
    assert_eq!(none(raw(pad("0", None), u2, &wide), &[]), (u2, vec![0, 0, 3], vec![]));
    assert_eq!(none(raw(nest, u2, &wide), &[]), (u2, vec![0, 3], vec![]));
    assert_eq!(none(text(pad("0", Some(4))), &[]), (DType::Uint8, vec![0, 4], vec![]));
    let found = none(optional(array(pad("-1", Some(1)))), &absent);
    assert_eq!(found, (DType::Float32, vec![2, 1], [float(-1.0), float(-1.0)].concat()));
    let found = none(optional(array(pad("1e300", Some(1)))), &absent);
    assert_eq!(found, (DType::Float64, vec![2, 1], [1e300_f64.to_ne_bytes(); 2].concat()));
    let found = none(optional(raw(pad("7", None), u2, &wide)), &absent);
    assert_eq!(found, (u2, vec![2, 0, 3], vec![]));
}

#[test]
fn text_becomes_bytes_cut_at_character_boundaries() {
    let texts = ["aé€😀", "", "😀", "abcdefgh"].map(str::as_bytes);
    let samples = samples("txt", &texts);
    let decoded = decode(&decoder(vec![text(pad("0", None))], 2), &samples, 0, 0);
    let (values, lengths) = padded(&decoded);
    assert_eq!((values.dtype, &values.shape[..]), (DType::Uint8, &[4, 10][..]));
    assert_eq!(lengths, [10, 0, 4, 8]);
    for ((row, length), text) in values.buffer.as_bytes().chunks(10).zip(lengths).zip(texts) {
        let (own, rest) = row.split_at(length as usize);
        assert_eq!(own, text);
        assert!(rest.iter().all(|byte| *byte == 0));
    }
    for (max_len, lengths) in [
        (1, [1, 0, 0, 1]),
        (2, [1, 0, 0, 2]),
        (3, [3, 0, 0, 3]),
        (5, [3, 0, 4, 5]),
        (6, [6, 0, 4, 6]),
    ] {
        for ragged in [pad("255", Some(max_len)), Ragged::Nested { max_len: Some(max_len) }] {
            let decoded = decode(&decoder(vec![text(ragged)], 2), &samples, 0, 0);
            match &decoded.outputs[0].column {
                Column::Padded { values, lengths: found } => {
                    assert_eq!(values.shape, [4, max_len as usize]);
                    assert_eq!(numbers(found), lengths, "{max_len}");
                }
                Column::Nested { lengths: found, .. } => assert_eq!(numbers(found), lengths),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn invalid_utf8_is_bad_in_every_packing() {
    // The wrong byte stands after the cut.
    let samples = samples("txt", &[b"ab\xff", b"ok"]);
    let kinds = [pad("0", None), pad("0", Some(1)), Ragged::Nested { max_len: None }, Ragged::List];
    for ragged in kinds {
        let decoded = decode(&decoder(vec![text(ragged)], 1), &samples, 0, 0);
        assert_eq!((&decoded.kept[..], decoded.bad[0].index), (&[1][..], 0), "{ragged:?}");
        assert_eq!(decoded.bad[0].error.kind(), ErrorKind::BadSample);
    }
}

#[test]
fn raw_bytes_must_match_the_declared_shape() {
    let fixed = raw(Ragged::List, DType::Float16, &[Some(2), Some(3)]);
    let good: Vec<u8> = (0..12).collect();
    let files: [&[u8]; 4] = [&good, &good[..11], &[0; 13], &good];
    let decoded = decode(&decoder(vec![fixed.clone()], 2), &samples("bin", &files), 0, 0);
    assert_eq!((&decoded.kept[..], decoded.bad.len()), (&[0, 3][..], 2));
    assert_eq!(decoded.bad[0].error.place("bytes"), Some("11"));
    assert_eq!(decoded.bad[0].error.place("shape"), Some("float16 (2, 3)"));
    assert_eq!(shape(&decoded.outputs[0].column), [2, 2, 3]);
    assert_eq!(batch::bytes(&decoded.outputs[0].column), [&good[..], &good].concat());
    let twice = [&good[..], &good].concat();
    let decoded = decode(&decoder(vec![fixed.clone()], 1), &samples("bin", &[&twice]), 0, 0);
    assert_eq!(decoded.bad[0].error.place("bytes"), Some("24"), "two arrays are not one");
    let lenient = decoder(vec![optional(fixed)], 1);
    drop(decode(&lenient, &samples("bin", &[&good, &good]), 0, 0));
    let decoded = decode(&lenient, &[vec![], vec![("bin", good.clone())]], 0, 0);
    assert_eq!(batch::bytes(&decoded.outputs[0].column), [&[0; 12], &good[..]].concat());
    assert_eq!(shape(&decoded.outputs[0].column), [2, 2, 3], "an absent row is zeros");
    assert_eq!(decoded.outputs[0].present, Some(vec![false, true]));
    let decoded = decode(
        &decoder(vec![raw(Ragged::List, DType::Bool, &[None])], 1),
        &samples("bin", &[&[0, 2], &[255]]),
        0,
        0,
    );
    let Column::Tensors(rows) = &decoded.outputs[0].column else { panic!() };
    assert_eq!((rows[0].buffer.as_bytes(), rows[1].buffer.as_bytes()), (&[0, 1][..], &[1][..]));
    let open = raw(Ragged::List, DType::Int32, &[Some(4), None]);
    assert_eq!(shape(&decode(&decoder(vec![open], 1), &[], 0, 0).outputs[0].column), [0, 4, 0]);
}

#[test]
fn oversized_padded_batch_is_full_with_advice() {
    let decoder = decoder(vec![array(pad("0", Some(u32::MAX)))], 1);
    // Terabytes in all, which no machine grants.
    let samples = vec![vec![("npy", pairs(1, 1))]; 1 << 12];
    let decoded = decode(&decoder, &samples, 0, 0);
    assert!(decoded.kept.is_empty());
    assert_eq!(decoded.bad.len(), samples.len());
    let error = &decoded.bad[0].error;
    assert_eq!((error.kind(), error.place("longest")), (ErrorKind::Full, Some("1")));
    assert!(error.to_string().contains("max_len="), "{error}");
}

#[test]
fn padded_batch_allocates_its_memory_once() {
    let pool = BufferPool::new(1 << 20);
    let decoder = Decoder::new(vec![array(pad("0", None))], 2, &pool, None).unwrap();
    drop(decode(&decoder, &arrays(&[pairs(64, 0), pairs(1, 0)]), 0, 0));
    // The rows and a line of lengths, and no row by itself.
    assert_eq!(pool.idle_bytes(), 2 * 64 * 4 + 64);
}

proptest! {
    #[test]
    fn padded_and_nested_rows_match_a_plain_loop(
        rows in proptest::collection::vec((0_usize..9, any::<i16>(), any::<bool>(), any::<bool>()), 0..20),
        max_len in proptest::option::of(1_u32..7),
        value in any::<i16>(),
    ) {
        let all: Vec<Sample> = rows.iter().map(|(len, first, here, good)| {
            let first = *first / 2;
            let array = here.then(|| ("npy", pairs(*len, first)));
            let class = ("cls", if *good { b"1".to_vec() } else { b"x".to_vec() });
            array.into_iter().chain([class]).collect()
        }).collect();
        let cut = |len: usize| len.min(max_len.map_or(usize::MAX, |max| max as usize));
        let want: Vec<Vec<i16>> = rows.iter().filter(|row| row.3).map(|(len, first, here, _)| {
            let len = if *here { cut(*len) } else { 0 };
            (*first / 2..).take(2 * len).collect()
        }).collect();
        let any_here = rows.iter().any(|row| row.2);
        let ragged = pad(&value.to_string(), max_len);
        let decoded = decode(&decoder(vec![optional(array(ragged)), label()], 2), &all, 0, 0);
        let (values, lengths) = padded(&decoded);
        let found: Vec<usize> = lengths.iter().map(|len| 2 * *len as usize).collect();
        prop_assert_eq!(&found, &want.iter().map(Vec::len).collect::<Vec<_>>());
        let longest = want.iter().map(Vec::len).max().unwrap_or(0) / 2;
        let width = max_len.map_or(longest, |max| max as usize);
        prop_assert_eq!(&values.shape[..2], &[want.len(), width][..]);
        if any_here {
            let mut plain = Vec::new();
            for row in &want {
                let mut row = row.clone();
                row.resize(2 * width, value);
                plain.extend(row);
            }
            prop_assert_eq!(shorts(values), plain);
        }
        let ragged = Ragged::Nested { max_len };
        let decoded = decode(&decoder(vec![optional(array(ragged)), label()], 2), &all, 0, 0);
        let (values, again) = nested(&decoded);
        prop_assert_eq!(again, lengths);
        if any_here {
            prop_assert_eq!(shorts(values), want.concat());
        }
    }

    #[test]
    fn hostile_files_are_rows_or_bad_samples(
        files in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 1..6),
        at in any::<usize>(),
        byte in any::<u8>(),
    ) {
        let mut files = files;
        let mut file = pairs(3, 7);
        let at = at % file.len();
        file[at] = byte;
        files.push(file);
        files.push(pairs(2, 1));
        for ragged in [pad("1", None), Ragged::Nested { max_len: Some(2) }] {
            for field in [array(ragged), raw(ragged, DType::Uint16, &[None, Some(2)])] {
                let samples: Vec<Sample> = files
                    .iter()
                    .map(|file| vec![("npy", file.clone()), ("bin", file.clone())])
                    .collect();
                let decoded = decode(&decoder(vec![field], 1), &samples, 0, 0);
                prop_assert_eq!(decoded.kept.len() + decoded.bad.len(), files.len());
                let (Column::Padded { values, lengths } | Column::Nested { values, lengths }) =
                    &decoded.outputs[0].column else { panic!() };
                prop_assert_eq!(numbers(lengths).len(), decoded.kept.len());
                let elements: usize = values.shape.iter().product();
                prop_assert_eq!(values.buffer.len(), elements * values.dtype.size());
            }
        }
    }
}
