//! Decode specifications from the Python package's JSON, and every rejection with its advice.

use forebay_decode::{
    BufferPool, Crop, DType, Decoder, FieldKind, FieldSpec, ImageSpec, Layout, PadValue, Ragged,
    RawSpec,
};
use forebay_error::{Error, ErrorKind};

fn refused(fields: Vec<FieldSpec>, threads: usize) -> Error {
    let error = Decoder::new(fields, threads, &BufferPool::new(0), None).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    error
}

#[test]
fn json_of_the_python_package_is_parsed() {
    let json = [
        r#"{"name": "image", "source": "JPG; .png", "kind": {"type": "image", "size": [224, 200],
         "crop": {"mode": "random", "scale": [0.2, 1.0]}, "flip": true, "dtype": "bfloat16",
         "layout": "NHWC", "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}}"#,
        r#"{"name": "label", "source": "json", "optional": true,
         "kind": {"type": "int", "path": "a.b"}}"#,
        r#"{"name": "x", "source": "npy", "kind": {"type": "npy"}}"#,
        r#"{"name": "y", "source": "txt", "kind": {"type": "float", "dtype": "float64"}}"#,
        r#"{"name": "z", "source": "bin", "kind": {"type": "bytes"}}"#,
        r#"{"name": "t", "source": "txt", "kind": {"type": "text",
         "ragged": {"mode": "pad", "value": "32", "max_len": 77}}}"#,
        r#"{"name": "r", "source": "bin", "kind": {"type": "npy",
         "ragged": {"mode": "nested"}, "raw": {"dtype": "float16", "shape": [null, 768]}}}"#,
    ];
    let fields: Vec<_> = json.iter().map(|json| FieldSpec::from_json(json).unwrap()).collect();
    assert_eq!(fields[0].source, ["jpg", "png"]);
    let FieldKind::Image(image) = &fields[0].kind else { panic!() };
    let want = ImageSpec {
        size: Some((224, 200)),
        crop: Crop::Random { scale: (0.2, 1.0), ratio: (0.75, 4.0 / 3.0) },
        flip: true,
        dtype: DType::Bfloat16,
        layout: Layout::Nhwc,
        mean: Some([0.5; 3]),
        std: Some([0.2; 3]),
        ..ImageSpec::default()
    };
    assert_eq!(*image, want);
    assert!(fields[1].optional);
    assert_eq!(fields[1].kind, FieldKind::Int { path: Some("a.b".to_owned()) });
    let list = FieldKind::Npy { ragged: Ragged::List, raw: None };
    assert_eq!(fields[2].kind, list);
    let pad = Ragged::Pad { value: PadValue::Whole(32), max_len: Some(77) };
    assert_eq!(fields[5].kind, FieldKind::Text { ragged: pad });
    let raw = RawSpec { dtype: DType::Float16, shape: vec![None, Some(768)] };
    let nested = Ragged::Nested { max_len: None };
    assert_eq!(fields[6].kind, FieldKind::Npy { ragged: nested, raw: Some(raw) });
    for field in &fields {
        let again = serde_json::to_string(field).unwrap();
        assert_eq!(FieldSpec::from_json(&again).unwrap(), *field);
        field.check().unwrap();
    }
    Decoder::new(fields, 1, &BufferPool::new(0), None).unwrap();
}

#[test]
fn invalid_json_and_dtypes_are_rejected_with_advice() {
    let field = |kind: &str| format!(r#"{{"name": "a", "source": "b", "kind": {kind}}}"#);
    let wrong = FieldSpec::from_json(&field(r#"{"type": "image", "dtype": "half"}"#)).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
    assert!(wrong.to_string().contains("bfloat16"), "{wrong}");
    let kinds = [
        r#"{"type": "audio"}"#,
        r#"{"type": "image", "sise": 3}"#,
        r#"{"type": "image", "layout": "CHW"}"#,
        r#"{"type": "npy", "ragged": {"mode": "cut"}}"#,
        r#"{"type": "npy", "ragged": {"mode": "pad", "value": "much"}}"#,
        r#"{"type": "npy", "ragged": {"mode": "nested", "value": "0"}}"#,
        r#"{"type": "npy", "raw": {"dtype": "complex32", "shape": [1]}}"#,
        r#"{"type": "npy", "raw": {"dtype": "int8", "shape": [-1]}}"#,
    ];
    for kind in kinds {
        let error = FieldSpec::from_json(&field(kind)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{kind}");
    }
    assert!(FieldSpec::from_json("{").is_err());
}

#[test]
fn invalid_specs_are_rejected_naming_the_field() {
    let image = |spec| vec![FieldSpec::new("image", "jpg", FieldKind::Image(spec))];
    let base = ImageSpec { size: Some((8, 8)), ..ImageSpec::default() };
    let random = |scale, ratio| Crop::Random { scale, ratio };
    let ones = Some([1.0_f32; 3]);
    let float = DType::Float32;
    let specs = [
        ImageSpec { size: Some((0, 8)), ..base.clone() },
        ImageSpec { views: Some(0), flip: true, ..base.clone() },
        ImageSpec { views: Some(65), flip: true, ..base.clone() },
        ImageSpec { views: Some(2), ..base.clone() },
        ImageSpec { views: Some(2), size: None, flip: true, ..base.clone() },
        ImageSpec { size: Some((8, 70_000)), ..base.clone() },
        ImageSpec { size: Some((60_000, 60_000)), ..base.clone() },
        ImageSpec { size: None, crop: random((0.1, 1.0), (0.5, 2.0)), ..base.clone() },
        ImageSpec { size: None, crop: Crop::Center { resize: None }, ..base.clone() },
        ImageSpec { crop: Crop::Center { resize: Some(7) }, ..base.clone() },
        ImageSpec { crop: random((0.0, 1.0), (0.5, 2.0)), ..base.clone() },
        ImageSpec { crop: random((0.5, 1.5), (0.5, 2.0)), ..base.clone() },
        ImageSpec { crop: random((0.5, 1.0), (2.0, 0.5)), ..base.clone() },
        ImageSpec { crop: random((f64::NAN, 1.0), (0.5, 2.0)), ..base.clone() },
        ImageSpec { dtype: DType::Int64, ..base.clone() },
        ImageSpec { mean: ones, std: ones, ..base.clone() },
        ImageSpec { dtype: float, mean: ones, ..base.clone() },
        ImageSpec { dtype: float, mean: ones, std: Some([1.0, 0.0, 1.0]), ..base.clone() },
        ImageSpec { dtype: float, mean: Some([f32::NAN; 3]), std: ones, ..base },
    ];
    for spec in specs {
        let error = refused(image(spec.clone()), 1);
        assert!(image(spec.clone())[0].check().is_err());
        assert_eq!(error.place("field"), Some("image"), "{spec:?}");
        assert!(error.to_string().contains("; "), "no advice: {error}");
    }
    let int = |name, path: Option<&str>| {
        FieldSpec::new(name, "json", FieldKind::Int { path: path.map(str::to_owned) })
    };
    refused(vec![int("a", Some("x..y"))], 1);
    refused(vec![int("a", None), int("a", None)], 1);
    refused(vec![FieldSpec::new("a", "; .", FieldKind::Text { ragged: Ragged::List })], 1);
    refused(vec![int("a", None)], 0);
    refused(vec![int("a", None)], 1 << 20);
}

#[test]
fn unpaddable_rows_and_invalid_shapes_are_rejected() {
    let pad = |value, max_len| Ragged::Pad { value, max_len };
    let text = |ragged| FieldSpec::new("x", "txt", FieldKind::Text { ragged });
    let array = |ragged, raw| FieldSpec::new("x", "npy", FieldKind::Npy { ragged, raw });
    let raw = |ragged, shape: &[Option<usize>]| {
        array(ragged, Some(RawSpec { dtype: DType::Uint8, shape: shape.to_vec() }))
    };
    let zero = pad(PadValue::Whole(0), None);
    let fields = [
        text(pad(PadValue::Whole(256), None)),
        text(pad(PadValue::Real(0.5), Some(3))),
        text(pad(PadValue::Whole(0), Some(0))),
        text(Ragged::Nested { max_len: Some(0) }),
        array(pad(PadValue::Whole(0), Some(0)), None),
        raw(Ragged::List, &[None, None]),
        raw(Ragged::List, &[Some(0)]),
        raw(Ragged::List, &[Some(usize::MAX), Some(2)]),
        raw(Ragged::List, &[Some(1); 65]),
        raw(zero, &[]),
        raw(zero, &[Some(2), None]),
        raw(Ragged::Nested { max_len: None }, &[Some(2), None]),
        raw(pad(PadValue::Whole(-1), None), &[None]),
    ];
    for field in fields {
        assert!(field.check().is_err(), "{field:?}");
        let error = refused(vec![field.clone()], 1);
        assert_eq!(error.place("field"), Some("x"), "{field:?}");
        assert!(error.to_string().contains("; "), "no advice: {error}");
    }
    // An array file's type is known when it is read.
    array(pad(PadValue::Whole(-1), None), None).check().unwrap();
    raw(zero, &[None, Some(3)]).check().unwrap();
    raw(Ragged::List, &[]).check().unwrap();
}
