//! Member indexes: where the samples of shards come from, and the values of their columns.
//!
//! Rule: memory does not grow with the number of samples. Places of members come from the daemon
//! in parts of bounded size; members that columns are taken from, as batches of a job.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use forebay_client::{
    Address, Connection, Loader, LoaderConfig, Next, Rows, SessionConfig, ShardPart,
};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_shard::members::{ColumnKind, MemberIndex, Value, Wanted, Writer, path_of};
use forebay_shard::{Index, Indexer, Manifest, ManifestShard, Plain, Sample};
use forebay_source::Options;
use forebay_wire::message::{Open, Order, Picked};
use indicatif::ProgressBar;
use serde::Serialize;

use super::COUNT_TIMEOUT;

/// Samples whose members are asked for at once: their documents take some megabytes of the slab,
/// and the time of an answer counts little beside theirs.
const AT_ONCE: usize = 1024;

/// Largest member that a column is taken from, of a local shard: a column is small, and so is what
/// describes a sample.
const MEMBER_MAX: u64 = 16 << 20;

/// Options of a verb that writes a member index.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write an index of all members, too: `MANIFEST.members`, by which loaders filter (`where=`),
    /// and fetch only the fields that they name. Without it, one of an earlier manifest is removed.
    #[arg(long)]
    members: bool,
    /// Columns of the member index, as in `json:width,height,caption.len` (values in the JSON of
    /// field `json`; `.len` is the length of a text or list), `cls` (a member that is a number or a
    /// short text) or `txt.len`. Implies --members; may be given several times.
    #[arg(long, value_name = "FIELD:NAME,…")]
    columns: Vec<String>,
}

impl Arguments {
    /// Returns the wanted columns, if an index is wanted at all.
    ///
    /// # Errors
    /// `Invalid` for columns that make no sense.
    pub(crate) fn wanted(&self) -> Result<Option<Wanted>> {
        let is_wanted = self.members || !self.columns.is_empty();
        is_wanted.then(|| Wanted::parse(&self.columns)).transpose()
    }
}

/// A written index.
#[derive(Serialize)]
pub(crate) struct Document {
    path: PathBuf,
    bytes: u64,
    members: u64,
    columns: Vec<ColumnDocument>,
    /// Samples with a member that is no JSON, although columns are taken from it.
    unreadable: u64,
}

#[derive(Serialize)]
struct ColumnDocument {
    name: String,
    kind: &'static str,
}

impl Document {
    /// Reads what was written.
    fn of(path: &Path, unreadable: u64) -> Result<Self> {
        let index = MemberIndex::open(path)?;
        let bytes = path.metadata().doing("read the member index")?.len();
        let column = |info: &forebay_shard::members::ColumnInfo| ColumnDocument {
            name: info.name.clone(),
            kind: info.kind.name(),
        };
        Ok(Self {
            path: path.to_owned(),
            bytes,
            members: index.shards().iter().map(|shard| shard.members).sum(),
            columns: index.columns().iter().map(column).collect(),
            unreadable,
        })
    }

    /// Returns lines for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let (path, size) = (self.path.display(), ByteSize(self.bytes).display().iec());
        let mut lines = vec![format!("{path}: {} members, {size}", self.members)];
        for ColumnDocument { name, kind } in &self.columns {
            let note = match *kind == ColumnKind::Empty.name() {
                true => ": no sample has a value",
                false => "",
            };
            lines.push(format!("  {name}  {kind}{note}"));
        }
        if self.unreadable > 0 {
            lines.push(format!("  {} samples have a member that is no JSON", self.unreadable));
        }
        lines
    }
}

/// Indexes shards through a daemon, and writes the index beside `manifest`; returns the manifest,
/// which is not written yet.
pub(super) fn index(
    connection: &Connection,
    urls: &[String],
    manifest: &Path,
    wanted: &Wanted,
    (address, allow_pipe): (Address, bool),
) -> Result<(Manifest, Document)> {
    let path = path_of(manifest);
    let mut writer = Writer::create(&path, &wanted.names())?;
    let origin = Options::from_env().into_map();
    let mut columns = match wanted.fields() {
        [] => None,
        _ => Some(Columns::open(urls, wanted, address, allow_pipe)?),
    };
    let bar = ProgressBar::new(urls.len() as u64).with_style(super::bar());
    let mut shards: Vec<ManifestShard> = Vec::with_capacity(urls.len());
    let mut unreadable = 0;
    connection.members(urls, &origin, COUNT_TIMEOUT, |part| {
        let ShardPart { shard, bytes, version, first, total, index } = part;
        let url = &urls[shard];
        if first == 0 {
            writer.begin(bytes, &version)?;
            let bytes = Some(bytes);
            shards.push(ManifestShard { url: url.clone(), samples: total, bytes });
        }
        let mut add = |samples: &[Sample], values: Vec<Vec<Value>>| {
            let added = samples
                .iter()
                .zip(values)
                .try_for_each(|(sample, values)| writer.add(&index, sample, values));
            added.map_err(|error| error.at("url", url))
        };
        for (number, samples) in index.samples.chunks(AT_ONCE).enumerate() {
            let values = match &mut columns {
                None => vec![Vec::new(); samples.len()],
                Some(columns) => {
                    let first = first + (number * AT_ONCE) as u64;
                    let (values, bad) = columns.of(shard, first, samples.len())?;
                    unreadable += bad;
                    values
                }
            };
            add(samples, values)?;
        }
        if first + index.samples.len() as u64 == total {
            bar.inc(1);
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let manifest = Manifest::new(shards)?;
    writer.finish(&manifest)?;
    Ok((manifest, Document::of(&path, unreadable)?))
}

/// A job that reads the members that columns are taken from.
struct Columns<'a> {
    loader: Loader,
    wanted: &'a Wanted,
}

impl<'a> Columns<'a> {
    fn open(
        urls: &[String],
        wanted: &'a Wanted,
        address: Address,
        allow_pipe: bool,
    ) -> Result<Self> {
        let order = Order::of_list(1);
        let open = Open {
            origin: Options::from_env().into_map(),
            fields: Some(wanted.fields().iter().map(|field| vec![field.clone()]).collect()),
            prefetch: 1,
            patience_ms: u64::MAX,
            ..Open::new("index", urls.to_vec(), order)
        };
        let session = SessionConfig::new(address, open, COUNT_TIMEOUT);
        let loader = Loader::open(LoaderConfig::new(SessionConfig { allow_pipe, ..session }))?;
        Ok(Self { loader, wanted })
    }

    /// Returns the values of `count` samples of a shard from number `first` on, and how many have a
    /// member that is no JSON. A bad sample has none.
    fn of(&self, shard: usize, first: u64, count: usize) -> Result<(Vec<Vec<Value>>, u64)> {
        let shard = u32::try_from(shard).map_err(|_| {
            Error::new(ErrorKind::Invalid, "there are too many shards to be indexed")
        })?;
        let picked = |ordinal: u64| Picked { position: ordinal, shard, ordinal };
        self.loader.pick((first..first + count as u64).map(picked).collect())?;
        let batch = match self.loader.next::<Error>(|| Ok(()))? {
            Next::Batch(batch) => batch,
            Next::End(_) => {
                let what = "the daemon ended a request without its samples";
                return Err(Error::new(ErrorKind::Invalid, what));
            }
        };
        let failed = batch.errors.iter().find(|error| error.kind() != ErrorKind::BadSample);
        if let Some(error) = failed {
            return Err(error.clone());
        }
        let absent = vec![Value::Absent; self.wanted.names().len()];
        let mut values = vec![absent; count];
        let mut unreadable = 0;
        let column = |field: &String| batch.columns.iter().find(|(name, _)| name == field);
        let columns: Vec<_> = self.wanted.fields().iter().map(column).collect();
        for (row, position) in batch.positions.iter().enumerate() {
            let members: Vec<Option<&[u8]>> =
                columns.iter().map(|column| bytes_of(*column, row)).collect();
            let found = self.wanted.extract(&members);
            unreadable += u64::from(found.is_unreadable);
            // The positions are those that were asked for.
            if let Some(place) = values.get_mut((position - first) as usize) {
                *place = found.values;
            }
        }
        Ok((values, unreadable))
    }
}

/// Returns the bytes of a field in one row, if the sample has it.
fn bytes_of(column: Option<&(String, Rows)>, row: usize) -> Option<&[u8]> {
    match column {
        Some((_, Rows::Bytes(rows))) => rows.get(row)?.as_deref(),
        _ => None,
    }
}

/// Removes the member index beside a manifest that was just written, and says so, if it belongs to
/// another one: every loader would reject it.
pub(crate) fn remove_stale(manifest: &Manifest, beside: &Path) -> Result<()> {
    let path = path_of(beside);
    let checked = MemberIndex::open(&path).and_then(|index| index.check(manifest));
    // One that cannot be read now may be right.
    if let Err(error) = checked
        && matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Corrupt)
    {
        let removed = std::fs::remove_file(&path).doing("remove an old member index");
        removed.map_err(|error| error.at("path", path.display()))?;
        let said = format!("removed {}, of an earlier manifest", path.display());
        // Losing a hint harms nothing.
        let _ = writeln!(std::io::stderr(), "forebay: {said}: --members writes a new one");
    }
    Ok(())
}

/// Indexes shards that are files of this machine, as `forebay pack` has just written them.
pub(crate) fn index_files<'a>(
    paths: impl Iterator<Item = &'a Path>,
    manifest: (&Manifest, &Path),
    wanted: &Wanted,
) -> Result<Document> {
    let (manifest, beside) = manifest;
    let path = path_of(beside);
    let mut writer = Writer::create(&path, &wanted.names())?;
    let mut unreadable = 0;
    for shard in paths {
        let indexed = index_file(shard, &mut writer, wanted);
        unreadable += indexed.map_err(|error| error.at("path", shard.display()))?;
    }
    writer.finish(manifest)?;
    Document::of(&path, unreadable)
}

fn index_file(path: &Path, writer: &mut Writer, wanted: &Wanted) -> Result<u64> {
    let open = || File::open(path).doing("open the shard");
    let (file, mut members) = (open()?, open()?);
    let bytes = file.metadata().doing("read the shard")?.len();
    // Its place may change, and with it what stands for a version of a file.
    writer.begin(bytes, "")?;
    let mut unreadable = 0;
    let mut indexer = Indexer::new(Plain::new(file), bytes);
    while let Some(at) = indexer.next_sample()? {
        let index = indexer.index();
        let sample = &index.samples[at];
        let taken = wanted.fields().iter().map(|field| member(&mut members, index, sample, field));
        let taken = taken.collect::<Result<Vec<_>>>()?;
        let found = wanted.extract(&taken.iter().map(Option::as_deref).collect::<Vec<_>>());
        unreadable += u64::from(found.is_unreadable);
        writer.add(index, sample, found.values)?;
    }
    writer.end()?;
    Ok(unreadable)
}

/// Reads a member of a sample, if the sample has it.
fn member(file: &mut File, index: &Index, sample: &Sample, field: &str) -> Result<Option<Vec<u8>>> {
    let named = |name: &str| index.field(name);
    let Some(number) = named(field) else { return Ok(None) };
    let members = index.members_of(sample);
    let Some(member) = members.iter().find(|member| member.field == number) else {
        return Ok(None);
    };
    if member.len > MEMBER_MAX {
        return Err(Error::new(ErrorKind::Invalid, "a member is too large to take columns from")
            .at("key", &sample.key)
            .at("field", field)
            .at("limit", MEMBER_MAX));
    }
    let mut bytes = vec![0; member.len as usize];
    let read = file.seek(SeekFrom::Start(member.offset)).and_then(|_| file.read_exact(&mut bytes));
    read.doing("read a member of the shard")?;
    Ok(Some(bytes))
}
