//! A folder's files as samples.
//!
//! Its rule: every file becomes a field or is reported; the key rules of the reader decide, so what
//! is packed here is what a loader sees.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::writer::{Limits, Packed, Writer};
use crate::key::{field_name, split_key};

/// Deeper trees are loops or accidents.
const MAX_DEPTH: usize = 64;

struct Found {
    name: String,
    path: PathBuf,
}

/// Packs every file below `folder` into shards named by `pattern`.
///
/// Files whose relative paths share a key become one sample; samples are sorted by key, fields by
/// name. Symbolic links to files are followed; to folders they are not.
///
/// # Errors
/// `Invalid` naming the file that fits no sample (no dot, hidden, not UTF-8, or a field twice);
/// `NotFound` if there are no files; what the file system says.
pub fn pack_folder(folder: &Path, pattern: &str, limits: Limits) -> Result<Vec<Packed>> {
    pack(folder, Writer::new(pattern, limits)?)
}

/// What [`pack_folder`] would make, byte for byte as long, with nothing written.
///
/// # Errors
/// As [`pack_folder`].
pub fn plan_folder(folder: &Path, pattern: &str, limits: Limits) -> Result<Vec<Packed>> {
    pack(folder, Writer::that_only_measures(pattern, limits)?)
}

fn pack(folder: &Path, mut writer: Writer) -> Result<Vec<Packed>> {
    let mut files = Vec::new();
    walk(folder, "", 0, &mut files)?;
    if files.is_empty() {
        let error = Error::new(ErrorKind::NotFound, "the folder holds no files to pack");
        return Err(error.at("path", folder.display()));
    }
    files.sort_by(|a, b| place(&a.name).cmp(&place(&b.name)));
    for sample in files.chunk_by(|a, b| place(&a.name).0 == place(&b.name).0) {
        let twice = sample.windows(2).find(|pair| place(&pair[0].name) == place(&pair[1].name));
        if let Some([_, second]) = twice {
            return Err(unfit("two files give a sample the same field", &second.path));
        }
        add(sample, &mut writer)?;
    }
    writer.finish()
}

/// Key and field, which every collected name has.
fn place(name: &str) -> (&str, String) {
    split_key(name).map_or((name, String::new()), |(key, field)| (key, field_name(field)))
}

fn add(sample: &[Found], writer: &mut Writer) -> Result<()> {
    let at = |path: &Path, error: Error| error.at("path", path.display());
    let mut open = Vec::with_capacity(sample.len());
    for found in sample {
        let file = File::open(&found.path).doing("open a file");
        let file = file.map_err(|error| at(&found.path, error))?;
        let len = file.metadata().doing("measure a file").map_err(|e| at(&found.path, e))?.len();
        open.push((found, file, len));
    }
    writer.start_sample(open.iter().map(|(_, _, len)| len).sum())?;
    for (found, mut file, len) in open {
        writer.add(&found.name, len, &mut file).map_err(|error| at(&found.path, error))?;
    }
    Ok(())
}

fn walk(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<Found>) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(unfit("the folders are nested too deeply", folder));
    }
    let at = |error: Error| error.at("path", folder.display());
    for entry in fs::read_dir(folder).doing("read the folder").map_err(at)? {
        let entry = entry.doing("read the folder").map_err(at)?;
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| unfit("a file's name is not UTF-8", &path))?;
        let name = format!("{prefix}{name}");
        let kind = entry.file_type().doing("read the folder").map_err(at)?;
        if kind.is_dir() {
            walk(&path, &format!("{name}/"), depth + 1, files)?;
        } else if !fs::metadata(&path).doing("measure a file").map_err(at)?.is_file() {
            return Err(unfit("it is not a regular file", &path));
        } else if split_key(&name).is_none() {
            return Err(unfit("a file's name gives it no place in a sample", &path)
                .advise("name files key.field, such as 0001.jpg and 0001.cls, or move it away"));
        } else {
            files.push(Found { name, path });
        }
    }
    Ok(())
}

fn unfit(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Invalid, what).at("path", path.display())
}
