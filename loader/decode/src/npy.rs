//! NumPy array files. Rule: sizes are checked against the file before memory is taken.
//!
//! The format is NumPy's own ("\x93NUMPY", version, header length, a Python dictionary with the
//! keys descr, fortran_order and shape, then the elements). Only plain numbers and booleans are
//! read; pickled objects never are.

use forebay_error::Result;

use crate::array::{self, DIMENSIONS_MAX, Stored};
use crate::dtype::DType;
use crate::record::bad;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Returns the array in `bytes`.
pub(crate) fn array(bytes: &[u8]) -> Result<Stored<'_>> {
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| bad("not a NumPy array file"))?;
    let short = || bad("the NumPy file ends within its header");
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
    let (length, rest) = match version[0] {
        1 => {
            let (length, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
            (u32::from_le_bytes(*length) as usize, rest)
        }
        other => return Err(bad(format!("NumPy files of version {other} cannot be read"))),
    };
    let (text, elements) = rest.split_at_checked(length).ok_or_else(short)?;
    let text = std::str::from_utf8(text).map_err(|_| bad("the NumPy header is not text"))?;
    parse(text, elements)
}

fn parse<'a>(text: &str, elements: &'a [u8]) -> Result<Stored<'a>> {
    let (dtype, swapped) = element_type(string_value(text, "descr")?)?;
    let fortran_order = match value(text, "fortran_order")? {
        text if text.starts_with("True") => true,
        text if text.starts_with("False") => false,
        _ => return Err(bad("the NumPy header's fortran_order is neither True nor False")),
    };
    let shape = shape(value(text, "shape")?)?;
    let needed = array::bytes(dtype, shape.iter().copied())
        .ok_or_else(|| bad("the NumPy array's size overflows").at("shape", format!("{shape:?}")))?;
    if needed != elements.len() {
        return Err(bad("the NumPy file's length does not fit its shape")
            .at("bytes", elements.len())
            .at("needed", needed));
    }
    Ok(Stored { dtype, swapped, fortran_order, shape, elements })
}

/// Returns the text after `'key':` in a header.
fn value<'t>(text: &'t str, key: &str) -> Result<&'t str> {
    let found = [format!("'{key}':"), format!("\"{key}\":")]
        .iter()
        .find_map(|mark| text.find(mark.as_str()).map(|at| text[at + mark.len()..].trim_start()));
    found.ok_or_else(|| bad(format!("the NumPy header has no {key}")))
}

fn string_value<'t>(text: &'t str, key: &str) -> Result<&'t str> {
    let text = value(text, key)?;
    let quoted = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'));
    let inside = quoted.and_then(|quote| text[1..].split_once(quote));
    // A structured type is a list here; like objects and strings it cannot become a tensor.
    inside.map(|(inside, _)| inside).ok_or_else(|| bad("structured NumPy arrays cannot be tensors"))
}

/// Returns the element type, and true if its bytes must be swapped.
fn element_type(descr: &str) -> Result<(DType, bool)> {
    let refused = || {
        bad("NumPy arrays of this type cannot be tensors")
            .at("descr", descr)
            .advise("store plain numbers or booleans; pickled objects are never loaded")
    };
    let order = descr.chars().next().ok_or_else(refused)?;
    let (big, kind) = match order {
        '<' => (false, &descr[1..]),
        '>' => (true, &descr[1..]),
        '|' | '=' => (cfg!(target_endian = "big"), &descr[1..]),
        _ => return Err(refused()),
    };
    let dtype = match kind {
        "b1" => DType::Bool,
        "u1" => DType::Uint8,
        "u2" => DType::Uint16,
        "u4" => DType::Uint32,
        "u8" => DType::Uint64,
        "i1" => DType::Int8,
        "i2" => DType::Int16,
        "i4" => DType::Int32,
        "i8" => DType::Int64,
        "f2" => DType::Float16,
        "f4" => DType::Float32,
        "f8" => DType::Float64,
        "c8" => DType::Complex64,
        "c16" => DType::Complex128,
        _ => return Err(refused()),
    };
    Ok((dtype, big != cfg!(target_endian = "big")))
}

fn shape(text: &str) -> Result<Vec<usize>> {
    let wrong = || bad("the NumPy header's shape cannot be read");
    let inside = text.strip_prefix('(').and_then(|text| text.split_once(')')).ok_or_else(wrong)?.0;
    let inside = inside.trim().strip_suffix(',').unwrap_or(inside.trim());
    if inside.is_empty() {
        return Ok(Vec::new());
    }
    let sides = inside.split(',').map(|side| side.trim().trim_end_matches('L').parse());
    let sides: Vec<usize> = sides.collect::<Result<_, _>>().map_err(|_| wrong())?;
    if sides.len() > DIMENSIONS_MAX {
        return Err(wrong().at("dimensions", sides.len()));
    }
    Ok(sides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferPool;
    use crate::column::Tensor;

    /// A file as `numpy.save` writes it (version 1).
    fn file(header: &str, elements: &[u8]) -> Vec<u8> {
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        [MAGIC, &[1, 0], &length, header.as_bytes(), elements].concat()
    }

    fn read(header: &str, elements: &[u8]) -> Result<Tensor> {
        array(&file(header, elements))?.tensor(&BufferPool::new(0))
    }

    const U2: &str = "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }\n";

    #[test]
    fn arrays_are_read_in_c_order_and_native_byte_order() {
        let bytes: Vec<u8> = (0..12).collect();
        let plain = read(U2, &bytes).unwrap();
        assert_eq!((plain.dtype, &plain.shape[..]), (DType::Uint16, &[2, 3][..]));
        assert_eq!(plain.buffer.as_bytes(), bytes);
        let swapped = read(&U2.replace('<', ">"), &bytes).unwrap();
        assert_eq!(swapped.buffer.as_bytes(), [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10]);
        let fortran = read(&U2.replace("False", "True"), &bytes).unwrap();
        assert_eq!(fortran.buffer.as_bytes(), [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]);
        let scalar = U2.replace("(2, 3)", "()");
        assert!(read(&scalar, &[1, 0]).unwrap().shape.is_empty());
        let flat = U2.replace("(2, 3)", "(6,)").replace("<u2", "|b1");
        assert_eq!(
            read(&flat, &[0, 1, 2, 255, 0, 1]).unwrap().buffer.as_bytes(),
            [0, 1, 1, 1, 0, 1]
        );
        let empty = U2.replace("(2, 3)", "(0, 3)");
        assert!(read(&empty, &[]).unwrap().buffer.is_empty());
    }

    #[test]
    fn hostile_headers_are_bad_samples_and_take_no_memory() {
        let bytes: Vec<u8> = (0..12).collect();
        let huge = "(9223372036854775807, 9223372036854775807)";
        let headers = [
            U2.replace("(2, 3)", huge),
            U2.replace("(2, 3)", "(1099511627776,)"),
            U2.replace("(2, 3)", "(18446744073709551615, 0)"),
            U2.replace("(2, 3)", "(0, 4611686018427387904, 4611686018427387904)"),
            U2.replace("(2, 3)", "(-2, -3)"),
            U2.replace("(2, 3)", "(2, 3"),
            U2.replace("(2, 3)", &format!("({})", "1,".repeat(65))),
            U2.replace("(2, 3)", "(2, 4)"),
            U2.replace("<u2", "|O"),
            U2.replace("<u2", "<U2"),
            U2.replace("<u2", "é2"),
            U2.replace("'<u2'", "[('a', '<u2')]"),
            U2.replace("False", "Maybe"),
            U2.replace("shape", "form"),
            "{".to_owned(),
            String::new(),
        ];
        for header in headers {
            assert_eq!(read(&header, &bytes).unwrap_err().kind().name(), "BadSample", "{header}");
        }
    }

    #[test]
    fn truncated_file_is_a_bad_sample() {
        let whole = file(U2, &[0; 12]);
        for end in 0..whole.len() {
            assert!(array(&whole[..end]).is_err(), "{end}");
        }
        let mut version = whole;
        version[6] = 2;
        assert!(array(&version).is_err(), "a length past the end");
        version[6] = 9;
        assert!(array(&version).is_err(), "an unknown version");
    }
}
