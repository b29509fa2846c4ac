//! Writing of a member index, sample by sample, in memory that does not grow with them.
//!
//! Members go to the file at once; keys and columns wait in files without a name, so that each
//! region ends up in one piece. The index appears under its name when it is whole.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use tempfile::{Builder, NamedTempFile, tempfile_in};

use super::block::{self, Row};
use super::column::Column;
use super::digest::Digest;
use super::directory::{ColumnInfo, ColumnKind, Directory, IndexedShard};
use super::reader::{HEAD, trailer};
use super::values::{TEXT_MAX, Value};
use super::{BLOCK_MAX, BLOCK_SAMPLES, COLUMNS_MAX, FIELDS_MAX};
use crate::checksum::crc32c;
use crate::index::{Index, Member, Sample};
use crate::manifest::Manifest;

/// Mode of an index before the umask: that of any file a user makes.
const MODE: u32 = 0o666;

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// Writes a member index.
pub struct Writer {
    path: PathBuf,
    regions: Vec<Region>,
    directory: Directory,
    fields: HashMap<String, u32>,
    shard: Option<IndexedShard>,
    digest: Digest,
    rows: Vec<Row>,
    keys: Vec<String>,
    values: Vec<Vec<Value>>,
}

/// A file that one region grows in.
struct Region {
    to: BufWriter<Target>,
    /// Bytes of the present run.
    run: u64,
    /// Lengths of its blocks.
    blocks: Vec<u32>,
}

/// The index itself, or a file that becomes a part of it.
enum Target {
    Index(NamedTempFile),
    Spool(File),
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Index(file) => file.write(bytes),
            Self::Spool(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Region {
    fn new(target: Target) -> Self {
        let to = BufWriter::with_capacity(BUFFER_BYTES, target);
        Self { to, run: 0, blocks: Vec::new() }
    }

    fn put(&mut self, block: &[u8]) -> Result<()> {
        let len = u32::try_from(block.len()).ok().filter(|len| *len as usize <= BLOCK_MAX);
        let len = len.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the keys or members of 1024 samples take too much room")
                .at("bytes", block.len())
                .at("limit", BLOCK_MAX)
        })?;
        self.blocks.push(len);
        self.sealed(block)
    }

    /// Writes bytes and their checksum.
    fn sealed(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.to.write_all(bytes);
        let written = written.and_then(|()| self.to.write_all(&crc32c(bytes).to_le_bytes()));
        written.doing("write the member index")?;
        self.run += bytes.len() as u64 + size_of::<u32>() as u64;
        Ok(())
    }

    /// Ends a run with the table of its blocks; returns its bytes.
    fn end(&mut self) -> Result<u64> {
        let table: Vec<u8> = self.blocks.iter().flat_map(|len| len.to_le_bytes()).collect();
        self.blocks.clear();
        self.sealed(&table)?;
        Ok(std::mem::take(&mut self.run))
    }
}

impl Writer {
    /// Begins an index that will be at `path`, with these columns.
    ///
    /// # Errors
    /// `Invalid` for too many columns, or two of one name; what the file system says.
    pub fn create(path: &Path, columns: &[String]) -> Result<Self> {
        let invalid = |what: &str| Err(Error::new(ErrorKind::Invalid, what));
        if columns.len() > COLUMNS_MAX {
            return invalid(&format!("an index has {COLUMNS_MAX} columns at most"));
        }
        let twice = columns.iter().enumerate().find(|(at, name)| columns[..*at].contains(name));
        if let Some((_, name)) = twice {
            return invalid("two columns have one name")
                .map_err(|error: Error| error.at("column", name));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let made = || -> io::Result<_> {
            let mode = Permissions::from_mode(MODE);
            let mut index =
                Builder::new().prefix(".members-").permissions(mode).tempfile_in(folder)?;
            index.write_all(&HEAD)?;
            let mut regions = vec![Region::new(Target::Index(index))];
            for _ in 0..=columns.len() {
                regions.push(Region::new(Target::Spool(tempfile_in(folder)?)));
            }
            Ok(regions)
        };
        let regions = made().doing("create the member index");
        let regions = regions.map_err(|error| error.at("path", path.display()))?;
        let info = |name: &String| ColumnInfo { name: name.clone(), kind: ColumnKind::Empty };
        Ok(Self {
            path: path.to_owned(),
            regions,
            directory: Directory {
                columns: columns.iter().map(info).collect(),
                ..Directory::default()
            },
            fields: HashMap::new(),
            shard: None,
            digest: Digest::default(),
            rows: Vec::new(),
            keys: Vec::new(),
            values: vec![Vec::new(); columns.len()],
        })
    }

    /// Begins the next shard, a plain tar of `bytes` bytes; `version` is that of its object, if it
    /// is known.
    ///
    /// # Errors
    /// As [`Writer::end`], for the shard before.
    pub fn begin(&mut self, bytes: u64, version: &str) -> Result<()> {
        self.end()?;
        let version = version.into();
        self.shard = Some(IndexedShard { samples: 0, members: 0, bytes, digest: 0, version });
        Ok(())
    }

    /// Adds the next sample of the shard, which is one of `index`, with a value for each column.
    ///
    /// # Errors
    /// `Invalid` with the key for a value that a column cannot hold, and for a member outside the
    /// shard; what the file system says.
    pub fn add(&mut self, index: &Index, sample: &Sample, values: Vec<Value>) -> Result<()> {
        let keyed = |error: Error| error.at("key", &sample.key);
        let shard = self.shard.as_mut();
        let shard = shard.ok_or_else(|| Error::new(ErrorKind::Invalid, "no shard has begun"))?;
        let own = index.members_of(sample);
        self.digest.add(&sample.key, own.iter().map(|m| (&*index.fields[m.field as usize], m)));
        let mut members = Vec::with_capacity(own.len());
        for member in own {
            let end = member.offset.checked_add(member.len);
            if end.is_none_or(|end| end > shard.bytes || i64::try_from(end).is_err()) {
                let error = Error::new(ErrorKind::Invalid, "a member lies outside its shard");
                return Err(keyed(error.at("offset", member.offset)));
            }
            let name = &index.fields[member.field as usize];
            let next = self.fields.len();
            let field = *self.fields.entry(name.clone()).or_insert_with(|| {
                self.directory.fields.push(name.clone());
                next as u32
            });
            members.push(Member { field, ..*member });
        }
        if self.fields.len() > FIELDS_MAX {
            let error = Error::new(ErrorKind::Invalid, "the data set has too many fields");
            return Err(keyed(error.at("limit", FIELDS_MAX)));
        }
        shard.samples += 1;
        shard.members += members.len() as u64;
        self.rows.push((members, sample.bad.is_some()));
        self.keys.push(sample.key.clone());
        for (number, value) in values.into_iter().enumerate() {
            let value = checked(value)
                .map_err(|error| keyed(error).at("column", &self.directory.columns[number].name))?;
            self.values[number].push(value);
        }
        if self.rows.len() == BLOCK_SAMPLES { self.put_block() } else { Ok(()) }
    }

    fn put_block(&mut self) -> Result<()> {
        let (rows, keys) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.keys));
        let mut regions = self.regions.iter_mut();
        let mut put = |block: Vec<u8>| regions.next().expect("a region for each part").put(&block);
        put(block::put_members(&rows))?;
        put(block::put_keys(&keys))?;
        for (info, values) in self.directory.columns.iter_mut().zip(&mut self.values) {
            let column = Column::of(values);
            let kind = column.as_ref().and_then(|column| info.kind.with(column.values.kind()));
            let (Some(column), Some(kind)) = (column, kind) else {
                return Err(Error::new(ErrorKind::Invalid, "a column has both texts and numbers")
                    .at("column", &info.name)
                    .at("near_key", keys.first().map_or("", String::as_str))
                    .advise("leave the column out, or make its values alike"));
            };
            info.kind = kind;
            values.clear();
            put(column.encode())?;
        }
        Ok(())
    }

    /// Ends the shard, if one has begun.
    ///
    /// # Errors
    /// As [`Writer::add`].
    pub fn end(&mut self) -> Result<()> {
        let Some(mut shard) = self.shard.take() else { return Ok(()) };
        if !self.rows.is_empty() {
            self.put_block()?;
        }
        shard.digest = std::mem::take(&mut self.digest).value();
        self.directory.shards.push(shard);
        for region in &mut self.regions {
            self.directory.runs.push(region.end()?);
        }
        Ok(())
    }

    /// Completes the index of the shards of `manifest` and puts it into place; returns its bytes.
    ///
    /// # Errors
    /// `Invalid` if the manifest lists other shards than were written; what the file system says.
    pub fn finish(mut self, manifest: &Manifest) -> Result<u64> {
        self.end()?;
        let listed = manifest.shards().iter().map(|shard| shard.samples);
        if !listed.eq(self.directory.shards.iter().map(|shard| shard.samples)) {
            let what = "the member index has other samples than the manifest";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        self.directory.manifest = manifest.hash().to_owned();
        let path = self.path.clone();
        self.put_together()
            .doing("write the member index")
            .map_err(|e| e.at("path", path.display()))
    }

    fn put_together(self) -> io::Result<u64> {
        let Self { path, regions, directory, .. } = self;
        let mut regions = regions.into_iter().map(|region| region.to.into_inner());
        let members = regions.next().expect("the members' region");
        let Target::Index(index) = members.map_err(io::IntoInnerError::into_error)? else {
            unreachable!("the first region is the index");
        };
        let mut to = index.as_file();
        to.seek(SeekFrom::End(0))?;
        for region in regions {
            let Target::Spool(mut spool) = region.map_err(io::IntoInnerError::into_error)? else {
                unreachable!("only the first region is the index");
            };
            spool.seek(SeekFrom::Start(0))?;
            io::copy(&mut spool, &mut to)?;
        }
        let directory = directory.encode();
        let at = to.stream_position()?;
        to.write_all(&directory)?;
        to.write_all(&trailer(at, &directory))?;
        to.sync_all()?;
        let bytes = to.stream_position()?;
        index.persist(&path).map_err(|error| error.error)?;
        Ok(bytes)
    }
}

/// Rejects a value that a column cannot hold; NaN, which equals nothing, is absent.
fn checked(value: Value) -> Result<Value> {
    match value {
        Value::Text(text) if text.len() > TEXT_MAX => {
            Err(Error::new(ErrorKind::Invalid, "a text is too long for a column")
                .at("bytes", text.len())
                .at("limit", TEXT_MAX)
                .advise("index its length: add `.len` to the column's name"))
        }
        Value::Float(number) if number.is_nan() => Ok(Value::Absent),
        value => Ok(value),
    }
}
