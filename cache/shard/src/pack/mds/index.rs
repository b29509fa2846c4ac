//! Index of an MDS folder: the shards and the layout of their samples.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Component, Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::Value;

use super::encoding::Encoding;

/// Name of the index in its folder.
const INDEX: &str = "index.json";

/// Longest index: a million shards of six hundred bytes each.
const INDEX_MAX: u64 = 1 << 30;

/// Version that this reads, the only one that Mosaic Streaming has written.
const VERSION: u64 = 2;

#[derive(Deserialize)]
struct Document {
    shards: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    column_encodings: Vec<String>,
    column_names: Vec<String>,
    column_sizes: Vec<Option<u64>>,
    format: String,
    raw_data: Stored,
    samples: u64,
    version: u64,
    zip_data: Option<Stored>,
}

#[derive(Deserialize)]
struct Stored {
    basename: String,
    bytes: u64,
}

/// A shard of the folder.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) samples: u64,
    pub(super) layout: Layout,
}

/// Columns of each sample, in the order of their values.
pub(super) struct Layout {
    pub(super) columns: Vec<Column>,
}

/// One column.
pub(super) struct Column {
    pub(super) name: String,
    /// Bytes of each value; `None`: each sample says.
    pub(super) size: Option<u64>,
    encoding: std::result::Result<Encoding, String>,
}

impl Column {
    /// The encoding, if it is read.
    pub(super) fn encoding(&self) -> Result<&Encoding> {
        self.encoding.as_ref().map_err(|name| {
            Error::new(ErrorKind::Invalid, "a column has an encoding that is not read")
                .at("column", &self.name)
                .at("encoding", name)
                .advise(format!("leave the column out by --field {}=", self.name))
        })
    }
}

/// Returns true if a folder has an index; it may be another tool's.
pub(in crate::pack) fn is_folder(folder: &Path) -> bool {
    folder.join(INDEX).is_file()
}

/// The shards of a folder, in the order of its index.
pub(super) fn read(folder: &Path) -> Result<Vec<Shard>> {
    let path = folder.join(INDEX);
    let at = |error: Error| error.at("path", path.display());
    let file = File::open(&path).doing("read the index").map_err(at)?;
    let parsed: Value =
        serde_json::from_reader(BufReader::new(file).take(INDEX_MAX)).map_err(|error| {
            at(Error::new(ErrorKind::Invalid, format!("the index is no JSON: {error}")))
        })?;
    if parsed.get("chunks").is_some() {
        let error = Error::new(ErrorKind::Invalid, "the folder holds chunks of LitData");
        return Err(at(error).advise(
            "they are not read; write shards with LitData and webdataset, as \
             docs/coming-from/LITDATA.md shows",
        ));
    }
    let document: Document = serde_json::from_value(parsed).map_err(|error| {
        at(Error::new(ErrorKind::Invalid, format!("the index is not one of MDS: {error}")))
            .advise("for files in a folder, move index.json away")
    })?;
    document.shards.into_iter().map(|entry| shard(folder, entry).map_err(at)).collect()
}

fn shard(folder: &Path, entry: Entry) -> Result<Shard> {
    let basename = &entry.raw_data.basename;
    let wrong = |what: &str| Error::new(ErrorKind::Invalid, what).at("shard", basename);
    if entry.format != "mds" || entry.version != VERSION {
        return Err(wrong("a shard's format is not MDS of version 2")
            .at("format", &entry.format)
            .at("version", entry.version));
    }
    let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if basename.is_empty() || !Path::new(basename).components().all(inside) {
        return Err(wrong("a shard's name leads out of the folder"));
    }
    let count = entry.column_names.len();
    if entry.column_encodings.len() != count || entry.column_sizes.len() != count {
        return Err(wrong("a shard's columns, encodings and sizes differ in number"));
    }
    let path = folder.join(basename);
    if let Some(zipped) = entry.zip_data.filter(|_| !path.exists()) {
        return Err(wrong("a shard is compressed, which is not read")
            .at("file", zipped.basename)
            .advise(
                "unpack the shards beside the compressed ones, as by \
                 `for f in *.zstd; do zstd -d \"$f\" -o \"${f%.zstd}\"; done`",
            ));
    }
    let columns =
        entry.column_names.into_iter().zip(&entry.column_encodings).zip(entry.column_sizes);
    let columns = columns.map(|((name, text), size)| {
        let encoding = Encoding::parse(text).ok_or_else(|| text.clone());
        // Streaming takes a size of zero for none.
        Column { name, size: size.filter(|&size| size > 0), encoding }
    });
    let layout = Layout { columns: columns.collect() };
    Ok(Shard { path, bytes: entry.raw_data.bytes, samples: entry.samples, layout })
}
