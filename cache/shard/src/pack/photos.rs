//! Photos that get an index of their scan (`cache/jpeg`), and how long it is.
//!
//! The first bytes of each photo tell that, so a plan still has the length of each shard.

use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_error::{Doing, Result};
use forebay_jpeg::Planned;

use super::origin::{Origin, open_unchanged};
use super::parallel::each;
use super::sample::{Content, Field, Sample};
use super::shard::at;

/// Endings of the names of fields that hold photos.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "jpe"];

/// Bytes that are read of a photo first: most headers are shorter.
const HEAD_BYTES: u64 = 16 << 10;

/// Bytes that are read of a photo with a long header, which holds previews and colour profiles.
const HEAD_BYTES_MAX: u64 = 1 << 20;

/// Largest photo that gets an index: each thread that writes shards holds one, and one with its
/// index.
const PHOTO_BYTES_MAX: u64 = 64 << 20;

/// Samples that one thread looks at before it takes the next ones.
const SPAN: usize = 256;

/// Plans an index for each photo of `samples` that can have one. Rows of tables have theirs
/// already.
///
/// # Errors
/// An input that cannot be read, or that has changed.
pub(super) fn plan_indexes(
    samples: &mut [Sample],
    origins: &[Origin],
    threads: NonZero<usize>,
) -> Result<()> {
    let spans: Vec<&[Sample]> = samples.chunks(SPAN).collect();
    let planned = each(spans.len(), threads, |number, _| {
        let mut open = None;
        let fields = spans[number].iter().flat_map(Sample::fields);
        fields.map(|field| index_bytes(field, origins, &mut open)).collect::<Result<Vec<_>>>()
    })?;
    let fields = samples.iter_mut().flat_map(Sample::fields_mut);
    fields.zip(planned.into_iter().flatten()).for_each(|(field, bytes)| field.add_index(bytes));
    Ok(())
}

/// Returns the bytes that an index adds to a field with this name and content.
pub(super) fn added_bytes(name: &str, content: &[u8]) -> u64 {
    match is_photo(name).then(|| forebay_jpeg::plan(content)) {
        Some(Planned::Index(bytes)) if content.len() as u64 <= PHOTO_BYTES_MAX => bytes as u64,
        _ => 0,
    }
}

fn is_photo(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or(name, |(_, ending)| ending);
    ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known))
}

/// Returns the bytes that an index adds to a field; 0 if it gets none. `open` is the origin that
/// was read last.
fn index_bytes(field: &Field, origins: &[Origin], open: &mut Option<(u32, File)>) -> Result<u64> {
    if !is_photo(&field.name) || field.len > PHOTO_BYTES_MAX {
        return Ok(0);
    }
    match &field.content {
        Content::File(path, stamp) => {
            let file = open_unchanged(path, field.len, *stamp).map_err(at(path))?;
            planned_bytes(&file, 0, field.len, path)
        }
        Content::Piece { file: number, offset } => {
            let origin = &origins[*number as usize];
            let file = match open.take() {
                Some((known, file)) if known == *number => file,
                _ => origin.open().map_err(at(&origin.path))?,
            };
            let bytes = planned_bytes(&file, *offset, field.len, &origin.path)?;
            *open = Some((*number, file));
            Ok(bytes)
        }
        Content::Text(_) | Content::Headed { .. } | Content::Cell { .. } => Ok(0),
    }
}

fn planned_bytes(file: &File, offset: u64, len: u64, path: &Path) -> Result<u64> {
    for most in [HEAD_BYTES, HEAD_BYTES_MAX] {
        let mut head = vec![0; len.min(most) as usize];
        let read = file.read_exact_at(&mut head, offset).doing("read a photo's header");
        read.map_err(|error| at(path)(error).at("offset", offset))?;
        match forebay_jpeg::plan(&head) {
            Planned::Index(bytes) => return Ok(bytes as u64),
            Planned::AsIs => return Ok(0),
            Planned::More => {}
        }
    }
    Ok(0)
}
