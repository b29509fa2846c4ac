//! Samples of a folder that Mosaic Streaming wrote (MDS).
//!
//! Values keep their bytes where a loader can read them as they are. Numbers become text, arrays
//! and raw pixels get NumPy's header, and what would lose something is refused by name.

mod encoding;
mod index;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_error::{Doing, Error, ErrorKind, Result};

use self::encoding::Encoding;
use self::index::{Layout, Shard};
use super::columns::{Columns, MAGIC_BYTES, Name, numbered_key, sniff};
use super::origin::{Origin, numbered};
use super::sample::{Content, Sample};

pub(super) use self::index::is_folder;

/// Bytes of a sample that are read at once when it is planned: its sizes and small values.
const HEAD_BYTES: u64 = 4096;

/// Bytes of the numbers in a shard: lengths and offsets are 32 bits.
const WORD: u64 = 4;

/// Every sample of a folder, in its order.
///
/// # Errors
/// `Invalid` for encodings and compressions that are not read, and for columns that are not there;
/// `Corrupt` for shards that contradict their index; what the file system says.
pub(super) fn samples(folder: &Path, columns: &Columns) -> Result<(Vec<Origin>, Vec<Sample>)> {
    let shards = index::read(folder)?;
    let (mut origins, mut samples) = (Vec::new(), Vec::new());
    for shard in &shards {
        let at = |error: Error| error.at("path", shard.path.display());
        let origin = Origin::look(&shard.path).map_err(at)?;
        let number = numbered(origins.len())?;
        let reading = Reading::new(shard, &origin, number, columns).map_err(at)?;
        for place in 0..shard.samples {
            let sample = reading.sample(place, samples.len() as u64);
            samples.push(sample.map_err(|error| at(error.at("sample", place)))?);
        }
        origins.push(origin);
    }
    Ok((origins, samples))
}

/// A shard that is read for the plan.
struct Reading<'a> {
    file: File,
    number: u32,
    /// Start of each sample, and the end of the last.
    offsets: Vec<u64>,
    layout: &'a Layout,
    /// Name of each column's field; `None`: it is left out.
    names: Vec<Option<Name>>,
    /// Place of the column of keys.
    key: Option<usize>,
}

impl<'a> Reading<'a> {
    fn new(shard: &'a Shard, origin: &Origin, number: u32, columns: &Columns) -> Result<Self> {
        if origin.len != shard.bytes {
            return Err(damaged("a shard is not as long as its index says")
                .at("bytes", origin.len)
                .at("index", shard.bytes));
        }
        let layout = &shard.layout;
        let known: Vec<String> = layout.columns.iter().map(|column| column.name.clone()).collect();
        columns.check(&known)?;
        let kept = || layout.columns.iter().filter(|column| !columns.leaves_out(&column.name));
        let mut classes = Vec::new();
        for column in kept() {
            classes.push((column.name.clone(), column.encoding()?.class()));
        }
        let mut chosen = Name::of(&classes, columns).into_iter();
        let names = known
            .iter()
            .map(|name| if columns.leaves_out(name) { None } else { chosen.next() })
            .collect();
        let key = columns.key.as_ref().and_then(|key| known.iter().position(|name| name == key));
        let file = origin.open()?;
        let offsets = offsets(&file, origin.len, shard.samples)?;
        Ok(Self { file, number, offsets, layout, names, key })
    }

    /// Sample `place` of the shard, which is sample `number` of all.
    fn sample(&self, place: u64, number: u64) -> Result<Sample> {
        let at = place as usize;
        let bytes = Window::new(&self.file, self.offsets[at], self.offsets[at + 1])?;
        let values = self.values(&bytes)?;
        let key = match self.key {
            Some(column) => {
                let (offset, len) = values[column];
                let (text, _) =
                    self.layout.columns[column].encoding()?.text(&bytes.take(offset, len)?)?;
                text
            }
            None => numbered_key(number),
        };
        let mut parts = Vec::with_capacity(values.len());
        for ((column, name), &(offset, len)) in
            self.layout.columns.iter().zip(&self.names).zip(&values)
        {
            let Some(name) = name else { continue };
            let made = self.part(column.encoding()?, &bytes, offset, len);
            let (ending, len, content) = made.map_err(|error| error.at("column", &column.name))?;
            parts.push((name.field(ending).into_owned(), len, content));
        }
        Sample::new(
            &key,
            parts.iter_mut().map(|(name, len, content)| {
                let empty = Content::Text("".into());
                (name.as_str(), *len, std::mem::replace(content, empty))
            }),
        )
    }

    /// Where each column's value lies in a sample: its offset and length.
    fn values(&self, bytes: &Window) -> Result<Vec<(u64, u64)>> {
        let mut sizes = Vec::with_capacity(self.layout.columns.len());
        let mut head = 0;
        for column in &self.layout.columns {
            sizes.push(match column.size {
                Some(size) => size,
                None => {
                    let word = bytes.take(head, WORD)?;
                    head += WORD;
                    u64::from(word_of(&word)?)
                }
            });
        }
        let mut offset = head;
        let mut values = Vec::with_capacity(sizes.len());
        for len in sizes {
            values.push((offset, len));
            offset = offset.checked_add(len).ok_or_else(|| damaged("a sample has no end"))?;
        }
        match offset == bytes.len {
            true => Ok(values),
            false => Err(damaged("a sample is not as long as its values are")),
        }
    }

    /// Ending, length and content of a value's field.
    fn part(
        &self,
        encoding: &Encoding,
        bytes: &Window,
        offset: u64,
        len: u64,
    ) -> Result<(&'static str, u64, Content)> {
        let piece = || Content::Piece { file: self.number, offset: bytes.start + offset };
        match encoding {
            Encoding::Bytes => {
                let ending = sniff(&bytes.take(offset, len.min(MAGIC_BYTES as u64))?);
                Ok((ending, len, piece()))
            }
            Encoding::AsItIs(_, ending) => Ok((ending, len, piece())),
            Encoding::Number(_) => {
                let (text, ending) = encoding.text(&bytes.take(offset, len)?)?;
                Ok((ending, text.len() as u64, Content::Text(text.into())))
            }
            Encoding::Array { .. } | Encoding::Pixels => {
                let before = encoding.header_bytes(&bytes.take(offset, len.min(HEAD_BYTES))?)?;
                let head = bytes.take(offset, before.min(len))?;
                let start = encoding.npy_header(&head, len)?;
                let total = start.len() as u64 + (len - before);
                let content = Content::Headed {
                    head: start.into(),
                    file: self.number,
                    offset: bytes.start + offset + before,
                };
                Ok((encoding.class().ending(), total, content))
            }
        }
    }
}

/// The bytes of one sample, of which the first are in memory.
struct Window<'a> {
    file: &'a File,
    start: u64,
    len: u64,
    first: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(file: &'a File, start: u64, end: u64) -> Result<Self> {
        let len = end.saturating_sub(start);
        let mut first = vec![0; len.min(HEAD_BYTES) as usize];
        file.read_exact_at(&mut first, start).doing("read a sample")?;
        Ok(Self { file, start, len, first })
    }

    /// A few bytes of it.
    fn take(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let end = offset.checked_add(len).filter(|&end| end <= self.len);
        let end = end.ok_or_else(|| damaged("a value lies outside its sample"))?;
        if len > HEAD_BYTES {
            let what = "a key, a number or an array's shape is longer than expected";
            return Err(damaged(what));
        }
        if end <= self.first.len() as u64 {
            return Ok(self.first[offset as usize..end as usize].to_vec());
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, self.start + offset).doing("read a sample")?;
        Ok(bytes)
    }
}

/// Start of each sample in a shard, and the end of the last.
fn offsets(file: &File, len: u64, samples: u64) -> Result<Vec<u64>> {
    let mut word = [0; WORD as usize];
    file.read_exact_at(&mut word, 0).doing("read a shard's head")?;
    if u64::from(u32::from_le_bytes(word)) != samples {
        return Err(damaged("a shard has another number of samples than its index says"));
    }
    let table = (samples + 1) * WORD;
    if table > len - WORD {
        return Err(damaged("a shard ends within its head"));
    }
    let mut bytes = vec![0; table as usize];
    file.read_exact_at(&mut bytes, WORD).doing("read a shard's head")?;
    let offsets: Vec<u64> = bytes
        .chunks_exact(WORD as usize)
        .map(|word| word_of(word).map(u64::from))
        .collect::<Result<_>>()?;
    let rises = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
    let inside = offsets.first() >= Some(&(WORD + table)) && offsets.last() <= Some(&len);
    match rises && inside {
        true => Ok(offsets),
        false => Err(damaged("a sample lies outside its shard")),
    }
}

fn word_of(bytes: &[u8]) -> Result<u32> {
    let word = bytes.try_into().map_err(|_| damaged("a value lies outside its sample"))?;
    Ok(u32::from_le_bytes(word))
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
        .advise("copy the shard again from its source, or write the data set anew")
}
