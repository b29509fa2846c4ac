//! Batches for tests. The one rule: what is asked of the decoder goes through its public face.

use forebay_decode::{BufferPool, Column, Decoded, Decoder, FieldSpec, Record};

/// One sample's fields, owned.
pub(crate) type Sample = Vec<(&'static str, Vec<u8>)>;

pub(crate) fn decode(
    decoder: &Decoder,
    samples: &[Sample],
    first_position: u64,
    epoch: u64,
) -> Decoded {
    let fields: Vec<Vec<(&str, &[u8])>> = samples
        .iter()
        .map(|sample| sample.iter().map(|(name, bytes)| (*name, &bytes[..])).collect())
        .collect();
    let has: Vec<Vec<String>> = samples
        .iter()
        .map(|sample| sample.iter().map(|(name, _)| (*name).to_owned()).collect())
        .collect();
    let keys: Vec<String> = (0..samples.len()).map(|index| format!("k{index}")).collect();
    let records: Vec<Record<'_>> = (first_position..)
        .zip(keys.iter().zip(&fields).zip(&has))
        .map(|(position, ((key, fields), has))| Record {
            key,
            url: "s3://b/0.tar",
            stream: 0,
            position,
            offset: Some(512 * position),
            fields,
            has,
        })
        .collect();
    decoder.decode(&records, &[], 7, epoch).expect("no device")
}

pub(crate) fn decoder(fields: Vec<FieldSpec>, threads: usize) -> Decoder {
    Decoder::new(fields, threads, &BufferPool::new(1 << 24), None).expect("a good specification")
}

pub(crate) fn bytes(column: &Column) -> &[u8] {
    match column {
        Column::Tensor(tensor) => tensor.buffer.as_bytes(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn shape(column: &Column) -> &[usize] {
    match column {
        Column::Tensor(tensor) => &tensor.shape,
        other => panic!("{other:?}"),
    }
}
