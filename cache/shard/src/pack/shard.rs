//! Writing one shard.
//!
//! A file under its final name is a whole archive, as long as planned: it is written
//! beside it, synced, and linked into place, and a file that is already there is never replaced.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::archive;
use super::origin::{Section, changed, open_unchanged};
use super::parallel::{Stop, given_up};
use super::plan::{Packed, Plan};
use super::sample::{Content, Field};
use super::table::Cursor;

/// Bytes read and written at once: each thread has twice as many. Large enough for a parallel file
/// system, small beside a shard.
const BUFFER_BYTES: usize = 1 << 20;

/// An unfinished file; it goes away unless its process is killed.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // The next run replaces it if it cannot be removed.
        drop(fs::remove_file(&self.0));
    }
}

/// The name of what is to become `path`.
pub(super) fn partial(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".partial");
    name.into()
}

/// Writes a shard of `plan`; `progress` is told of bytes.
///
/// # Errors
/// `Corrupt` if a file is not what was planned any more; `Invalid` if the shard's name is taken;
/// what the file system says.
pub(super) fn write(
    plan: &Plan,
    (shard, samples): &(Packed, Range<usize>),
    progress: &(dyn Fn(u64) + Sync),
    stop: &Stop,
) -> Result<()> {
    let path = shard.path.as_path();
    let partial = Partial(partial(path));
    let file = File::create(&partial.0).doing("create the shard").map_err(at(path))?;
    let to = BufWriter::with_capacity(BUFFER_BYTES, file);
    let mut writing = Writing {
        plan,
        progress,
        stop,
        to,
        buffer: vec![0; BUFFER_BYTES],
        photo: None,
        open: None,
        table: None,
    };
    for sample in &plan.samples[samples.clone()] {
        for field in sample.fields() {
            writing.field(path, field)?;
        }
    }
    let done = writing.finish(shard.bytes).and_then(|()| {
        // A link, unlike a rename, fails where the name is taken.
        fs::hard_link(&partial.0, path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::new(ErrorKind::Invalid, "a file with the shard's name came into being")
                    .advise("remove it if it is not needed, and pack again")
            }
            _ => Error::from_io("put the shard into place", &error),
        })
    });
    done.map_err(at(path))
}

struct Writing<'a> {
    plan: &'a Plan,
    progress: &'a (dyn Fn(u64) + Sync),
    stop: &'a Stop,
    to: BufWriter<File>,
    buffer: Vec<u8>,
    /// Photo that is read whole, as it gets an index.
    photo: Option<Vec<u8>>,
    /// The file that was read last.
    open: Option<(u32, File)>,
    /// Place in the table that was read last.
    table: Option<Cursor>,
}

impl Writing<'_> {
    fn field(&mut self, shard: &Path, field: &Field) -> Result<()> {
        let Field { name, len, content, index_bytes } = field;
        let begun = archive::begin(&mut self.to, name, *len);
        begun.doing("write the shard").map_err(at(shard))?;
        if *index_bytes > 0 {
            self.photo = Some(Vec::with_capacity((len - index_bytes) as usize));
        }
        self.content(shard, len - index_bytes, content)?;
        if let Some(photo) = self.photo.take() {
            let mut with = Vec::with_capacity(*len as usize);
            forebay_jpeg::add_index(&photo, &mut with);
            // The plan read the header of this very file.
            if with.len() as u64 != *len {
                return Err(changed().at("key", name));
            }
            self.to.write_all(&with).doing("write the shard").map_err(at(shard))?;
            (self.progress)(*index_bytes);
        }
        archive::pad(&mut self.to, *len).doing("write the shard").map_err(at(shard))?;
        (self.progress)(archive::member_bytes(name, *len) - len);
        Ok(())
    }

    fn content(&mut self, shard: &Path, len: u64, content: &Content) -> Result<()> {
        match content {
            Content::Text(text) => self.copy(shard, len, text.as_bytes()),
            Content::File(path, stamp) => {
                let from = open_unchanged(path, len, *stamp);
                from.and_then(|file| self.copy(shard, len, file)).map_err(at(path))
            }
            Content::Piece { file, offset } => self.section(shard, len, *file, *offset),
            Content::Headed { head, file, offset } => {
                let head_len = head.len() as u64;
                self.copy(shard, head_len, &head[..])?;
                self.section(shard, len - head_len, *file, *offset)
            }
            Content::Cell { file, row, column } => self.cell(shard, len, *file, *row, *column),
        }
    }

    /// Copies a part of an input.
    fn section(&mut self, shard: &Path, len: u64, number: u32, offset: u64) -> Result<()> {
        let source = &self.plan.origins[number as usize];
        let file = match self.open.take() {
            Some((open, file)) if open == number => file,
            _ => source.open().map_err(at(&source.path))?,
        };
        let copied = self.copy(shard, len, Section { file: &file, offset });
        copied.map_err(|error| at(&source.path)(error).at("offset", offset))?;
        self.open = Some((number, file));
        Ok(())
    }

    /// Copies a cell of a table.
    fn cell(&mut self, shard: &Path, len: u64, file: u32, row: u64, column: u32) -> Result<()> {
        let source = &self.plan.origins[file as usize];
        let of_row = |error: Error| at(&source.path)(error).at("row", row + 1);
        let mut table = match self.table.take() {
            Some(table) if table.is_before(file, row) => table,
            _ => Cursor::new(source, file, row, &self.plan.columns).map_err(of_row)?,
        };
        table.turn_to(row).map_err(of_row)?;
        let bytes = table.bytes(column as usize).map_err(of_row)?;
        if bytes.len() as u64 != len {
            return Err(of_row(changed()));
        }
        self.copy(shard, len, &bytes[..])?;
        self.table = Some(table);
        Ok(())
    }

    /// Copies `len` bytes.
    fn copy(&mut self, shard: &Path, len: u64, mut from: impl Read) -> Result<()> {
        let mut missing = len;
        while missing > 0 {
            if self.stop.load(Ordering::Relaxed) {
                return Err(given_up());
            }
            let most = missing.min(self.buffer.len() as u64) as usize;
            let got = match from.read(&mut self.buffer[..most]) {
                Ok(0) => return Err(changed()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.doing("read a file")?,
            };
            let piece = &self.buffer[..got];
            match &mut self.photo {
                Some(photo) => photo.extend_from_slice(piece),
                None => self.to.write_all(piece).doing("write the shard").map_err(at(shard))?,
            }
            missing -= got as u64;
            (self.progress)(got as u64);
        }
        Ok(())
    }

    /// Ends the archive, and sees it safely on the disk.
    fn finish(mut self, planned: u64) -> Result<()> {
        archive::end(&mut self.to).doing("write the shard")?;
        self.to.flush().doing("write the shard")?;
        let file = self.to.get_ref();
        file.sync_all().doing("sync the shard")?;
        (self.progress)(archive::END_BYTES);
        let bytes = file.metadata().doing("read the shard's size")?.len();
        match bytes == planned {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Corrupt, "a shard is not as long as it was planned")
                    .at("bytes", bytes)
                    .at("planned", planned))
            }
        }
    }
}

/// Says where, unless that is known.
pub(super) fn at(path: &Path) -> impl Fn(Error) -> Error {
    move |error| match error.place("path") {
        None => error.at("path", path.display()),
        Some(_) => error,
    }
}
