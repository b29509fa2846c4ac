//! A folder's files as samples.
//!
//! Every file becomes a field or is reported, but for the notes that operating systems leave. The
//! key rules of the reader decide, so what is packed here is what a loader sees.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::sample::{Content, Sample, Stamp};
use crate::key::{field_name, split_key};

/// Deeper trees are loops or accidents.
const MAX_DEPTH: usize = 64;

/// The field that a shard among the files would be. One in each sample and nothing else is a
/// mistake.
const SHARD: &str = "tar";

/// The same for a Parquet file.
const TABLE: &str = "parquet";

/// Files in a folder that `datasets` saved.
const SAVED: [&str; 2] = ["dataset_info.json", "dataset_dict.json"];

/// Files that operating systems write into any folder, in lower case.
const NOTES: [&str; 4] = [".ds_store", "thumbs.db", "desktop.ini", ".directory"];

/// First characters of the files in which macOS keeps attributes of others, `._0001.jpg` of
/// `0001.jpg`.
const ATTRIBUTES: &str = "._";

/// Field of a class's number.
pub(super) const CLASS: &str = "cls";

struct Found {
    name: String,
    path: PathBuf,
    len: u64,
    stamp: Stamp,
}

/// Every file below `folder`, as samples by key with fields by name. Symbolic links to files are
/// followed; to folders they are not.
///
/// # Errors
/// `Invalid` naming the file that fits no sample (no dot, hidden, not UTF-8, or a field twice);
/// what the file system says.
pub(super) fn samples(folder: &Path) -> Result<Vec<Sample>> {
    let mut files = Vec::new();
    walk(folder, "", 0, &mut files)?;
    refuse_others(folder, &files)?;
    files.sort_by(|a, b| place(&a.name).cmp(&place(&b.name)));
    let mut samples = Vec::new();
    for sample in files.chunk_by(|a, b| place(&a.name).0 == place(&b.name).0) {
        let twice = sample.windows(2).find(|pair| place(&pair[0].name) == place(&pair[1].name));
        if let Some([_, second]) = twice {
            return Err(unfit("two files give a sample the same field", &second.path));
        }
        let key = place(&sample[0].name).0;
        let parts = sample.iter().map(|found| {
            let suffix = &found.name[key.len() + 1..];
            (suffix, found.len, Content::File(found.path.as_path().into(), found.stamp))
        });
        let made = Sample::new(key, parts);
        samples.push(made.map_err(|error| error.at("path", sample[0].path.display()))?);
    }
    Ok(samples)
}

/// Refuses folders of other formats, whose files would be taken for fields.
fn refuse_others(folder: &Path, files: &[Found]) -> Result<()> {
    let all =
        |field: &str| !files.is_empty() && files.iter().all(|found| place(&found.name).1 == field);
    if all(SHARD) {
        return Err(unfit("the folder holds shards, not samples' files", folder)
            .advise("name the shards to pack them again, as in 'folder/*.tar'"));
    }
    if all(TABLE) {
        return Err(unfit("the folder holds Parquet files, not samples' files", folder)
            .advise("name the files of one split, as in 'folder/train-*.parquet'"));
    }
    if SAVED.iter().any(|name| files.iter().any(|found| found.name == *name)) {
        return Err(unfit("the folder is one that datasets saved, in Arrow's format", folder)
            .advise("write Parquet files by dataset.to_parquet, and name those"));
    }
    Ok(())
}

/// As [`samples`], of a folder of folders, each a class: a sample gets a field `cls` with the
/// number of its class in the order of names, as torchvision's `ImageFolder` counts them.
///
/// # Errors
/// As [`samples`]; `Invalid` for a file that lies in no class's folder.
pub(super) fn classified(folder: &Path) -> Result<(Vec<Sample>, Vec<String>)> {
    let found = samples(folder)?;
    let mut classes = Vec::new();
    for sample in &found {
        let Some((class, _)) = sample.key().split_once('/') else {
            return Err(unfit("a file lies in no class's folder", &folder.join(sample.key()))
                .advise("with --classes, files lie in folders named as their classes"));
        };
        if classes.last().is_none_or(|last| last != class) {
            classes.push(class.to_owned());
        }
    }
    // Keys are sorted with their slashes, and `a-b/` comes before `a/`.
    classes.sort_unstable();
    classes.dedup();
    let number = |sample: &Sample| {
        let class = sample.key().split_once('/').map_or("", |(class, _)| class);
        classes.partition_point(|known| known.as_str() < class)
    };
    let labelled = found.into_iter().map(|sample| {
        let text = number(&sample).to_string();
        let key = sample.key().to_owned();
        sample.with(CLASS, text.len() as u64, Content::Text(text.into())).map_err(|error| {
            error.at("key", key).advise("with --classes, the folder's name is the class")
        })
    });
    let labelled = labelled.collect::<Result<_>>()?;
    Ok((labelled, classes))
}

/// Key and field, which every collected name has.
fn place(name: &str) -> (&str, String) {
    split_key(name).map_or((name, String::new()), |(key, field)| (key, field_name(field)))
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
        if NOTES.contains(&name.to_ascii_lowercase().as_str()) || name.starts_with(ATTRIBUTES) {
            continue;
        }
        let is_hidden = name.starts_with('.');
        let name = format!("{prefix}{name}");
        let kind = entry.file_type().doing("read the folder").map_err(at)?;
        if kind.is_dir() {
            walk(&path, &format!("{name}/"), depth + 1, files)?;
            continue;
        }
        let file = fs::metadata(&path).doing("measure a file");
        let file = file.map_err(|error| error.at("path", path.display()))?;
        if !file.is_file() {
            return Err(unfit("it is not a regular file", &path));
        }
        // Below a folder the rules of readers would take the folder for its key.
        if is_hidden || split_key(&name).is_none() {
            return Err(unfit("a file's name has no key and field", &path)
                .advise("name files key.field, such as 0001.jpg and 0001.cls, or move it away"));
        }
        files.push(Found { name, path, len: file.len(), stamp: Stamp::of(&file) });
    }
    Ok(())
}

fn unfit(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Invalid, what).at("path", path.display())
}
