//! `forebay pack`.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Commands;
use forebay_shard::pack::{
    Columns, Input, Limits, Packed, Packing, Plan, check_pattern, is_list, is_mds, is_parquet,
    is_table,
};
use indicatif::ProgressBar;
use serde::Serialize;

use super::index::members;
use super::{Done, Failure, Output, bar_style, cores, print, print_json};

/// Interval of a spinner's frames.
const TICK: Duration = Duration::from_millis(100);

/// Make WebDataset shards of even size, and their manifest, from a folder, a list, tables, MDS, or
/// other shards.
///
/// Run the same command again after it was stopped, by whatever: shards that are whole are kept,
/// the rest is written. Nothing is ever overwritten.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A folder, a list (.csv, .tsv, .jsonl, .parquet), Parquet files of samples, a folder of
    /// Mosaic Streaming (MDS), or shards: paths with braces (`{000..099}`) and globs.
    ///
    /// In a folder, files that share a path up to the first dot of their name become one sample:
    /// `cat/001.jpg` and `cat/001.cls` are the fields `jpg` and `cls` of sample `cat/001`. Samples
    /// come in the order of their keys. A file that fits no sample is an error; notes of operating
    /// systems (.DS_Store, ._*, Thumbs.db) are left out. With --classes, a folder of each class as
    /// torchvision's ImageFolder reads it.
    ///
    /// In a list, each row becomes a sample, in the order of the rows, and the header describes the
    /// columns: `key` holds keys (without it, rows are numbered from 000000000); `cls=` holds the
    /// field `cls` itself; `jpg` names files that hold the field `jpg`, relative to the list's
    /// folder or --root. An empty cell is no field. Commas, semicolons or tabs separate the cells
    /// of a .csv; a line of a .jsonl is an object whose names are those of columns.
    ///
    /// Parquet files hold the samples themselves if Hugging Face's `datasets` wrote them, or if
    /// they have nested columns, are several, or come with --field or --key. Each row becomes a
    /// sample: columns {bytes, path} become files (`jpg`, `png`, by their first bytes), integers
    /// `cls`, other numbers `float`, text `txt`, lists and structs `json`. Where several columns
    /// have one ending, the column's name comes in front: `title.txt`, `caption.txt`.
    ///
    /// In a folder of MDS, with its index.json, columns are named in the same way; arrays and raw
    /// images become `npy`, pickles stay as they are.
    ///
    /// From shards, each sample is taken as it is, in their order. Members without a sample, which
    /// loaders skip, are left out; a sample that loaders would report as bad is an error.
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<String>,
    /// The shards' names, with a place for their number.
    #[arg(short, long, value_name = "PATTERN", default_value = "out-{:06d}.tar")]
    #[arg(value_parser = pattern)]
    output: String,
    /// Samples per shard, at most. Alone, it leaves bytes without a limit.
    ///
    /// Unset, as --bytes: 100000 samples or 3 GB, whichever comes first. As many shards are made as
    /// the limit needs, and in the samples or bytes that it is about no two of them differ by more
    /// than one sample.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,
    /// Bytes per shard, at most, such as 1GB or 512MiB. Alone, it leaves samples without a limit.
    #[arg(long, value_parser = size)]
    bytes: Option<ByteSize>,
    /// Pack the samples in an order drawn by --seed, the same for the same keys, not in that of the
    /// input.
    ///
    /// For data sets that are sorted, by class for instance: readers mix a window of shards, not
    /// all.
    #[arg(long)]
    shuffle: bool,
    /// Seed of --shuffle.
    #[arg(long, requires = "shuffle", default_value_t = 0)]
    seed: u64,
    /// In a folder of folders, take each one's name for the class of its files: field `cls` holds
    /// the class's number, and `out.classes.json` the names in their order.
    #[arg(long)]
    classes: bool,
    /// Name the field that a column becomes, as in --field image=jpg; --field image= leaves the
    /// column out. For Parquet files and MDS.
    #[arg(long, value_name = "COLUMN=NAME", value_parser = field)]
    field: Vec<(String, Option<String>)>,
    /// The column that holds keys, in Parquet files and MDS. Unset: samples are numbered from
    /// 000000000.
    #[arg(long, value_name = "COLUMN")]
    key: Option<String>,
    /// The folder from which a list's paths count. Unset: the list's own.
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
    /// Put a shard's name before the keys of its samples: `a` of `x-00.tar` becomes `x-00/a`.
    ///
    /// For shards that have keys in common: side by side in one shard, two samples of one key would
    /// be read as one.
    #[arg(long)]
    prefix_keys: bool,
    /// Gather the members of each sample, and sort the samples of each shard by key.
    ///
    /// For shards in which the members of a sample lie apart, as `tar` leaves files that it finds
    /// in a folder.
    #[arg(long)]
    sort: bool,
    /// Add an index to each JPEG, by which Forebay decodes random crops with a fifth less work.
    ///
    /// Photos grow by about 3 %. Pixels stay the same, and other software skips the index. Photos
    /// are fields whose name ends in jpg, jpeg or jpe, up to 64 MiB. Progressive ones, those in
    /// CMYK, with 12 bits, with restart intervals or with more pictures in the file stay as they
    /// are.
    #[arg(long)]
    jpeg_index: bool,
    /// Path of the manifest. Unset: beside the shards, `out.json` for `out-{:06d}.tar`.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Threads, each of which writes a shard. Unset: one per core.
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Say what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    members: members::Arguments,
    #[command(flatten)]
    answer: Output,
}

const EXAMPLES: &str = "\
Examples:
  forebay pack photos/ -o 'train/photos-{:06d}.tar' --bytes 1GB
  forebay pack imagenet/train/ -o 'train-{:06d}.tar' --classes --shuffle --jpeg-index
  forebay pack 'food101/data/train-*.parquet' -o 'train-{:06d}.tar'
  forebay pack mds/train/ -o 'train-{:06d}.tar' --field image=jpg --field label=cls
  forebay pack train.csv --root photos/ -o 'train-{:06d}.tar' --shuffle
      where train.csv holds     key,jpg,cls=
                                n01/17,n01/17.jpeg,0
  forebay pack '/data/old-{000..999}.tar' -o '/data/new-{:06d}.tar' --samples 10000

Then, in Python:
  forebay.DataLoader('train/photos-{000000..000041}.tar', manifest='train/photos.json')";

/// Shards made, or planned.
#[derive(Serialize)]
struct Document<'a> {
    dry_run: bool,
    manifest: &'a Path,
    hash: &'a str,
    /// The file with the names of classes, if there are any.
    classes: Option<PathBuf>,
    samples: u64,
    bytes: u64,
    /// Shards that were there already.
    kept: usize,
    /// Photos that get an index, and the bytes of the indexes.
    indexed_photos: u64,
    index_bytes: u64,
    shards: Vec<Shard<'a>>,
    /// The member index, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<members::Document>,
}

#[derive(Serialize)]
struct Shard<'a> {
    path: &'a Path,
    samples: u64,
    bytes: u64,
}

impl<'a> From<&'a Packed> for Shard<'a> {
    fn from(packed: &'a Packed) -> Self {
        Self { path: &packed.path, samples: packed.samples, bytes: packed.bytes }
    }
}

fn pattern(text: &str) -> Result<String> {
    check_pattern(text).map(|()| text.to_owned())
}

fn field(text: &str) -> Result<(String, Option<String>), String> {
    let (column, name) = text.split_once('=').ok_or("write COLUMN=NAME, or COLUMN= for none")?;
    let name = (!name.is_empty()).then(|| name.to_owned());
    Ok((column.to_owned(), name))
}

fn size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>()? {
        ByteSize(0) => Err("a shard needs room for one sample".to_owned()),
        size => Ok(size),
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let wanted = arguments.members.wanted().map_err(Failure::Usage)?;
    let packing = Packing {
        input: input(arguments)?,
        pattern: arguments.output.clone(),
        limits: limits(arguments),
        shuffle: arguments.shuffle.then_some(arguments.seed),
        manifest: arguments.manifest.clone(),
        jpeg_index: arguments.jpeg_index,
        threads: arguments.jobs.unwrap_or_else(cores),
    };
    let spinner = ProgressBar::new_spinner().with_message("reading the input");
    spinner.enable_steady_tick(TICK);
    let plan = packing.plan();
    spinner.finish_and_clear();
    let plan = plan?;
    let kept = if arguments.dry_run { plan.rehearse()? } else { pack(&plan)? };
    let members = match wanted.filter(|_| !arguments.dry_run) {
        None => None,
        Some(wanted) => {
            let paths = plan.shards().map(|shard| shard.path.as_path());
            let manifest = (plan.manifest(), plan.manifest_path());
            Some(members::index_files(paths, manifest, &wanted)?)
        }
    };
    if members.is_none() && !arguments.dry_run {
        members::remove_stale(plan.manifest(), plan.manifest_path())?;
    }
    Ok(tell(arguments, &plan, kept, members)?)
}

fn limits(arguments: &Arguments) -> Limits {
    match (arguments.samples, arguments.bytes.map(|bytes| bytes.as_u64())) {
        (None, None) => Limits::default(),
        (samples, bytes) => {
            Limits { samples: samples.unwrap_or(u64::MAX), bytes: bytes.unwrap_or(u64::MAX) }
        }
    }
}

fn input(arguments: &Arguments) -> Done<Input> {
    let columns =
        Columns { fields: arguments.field.iter().cloned().collect(), key: arguments.key.clone() };
    let input = match arguments.inputs.as_slice() {
        [one] if Path::new(one).is_dir() => match arguments.classes {
            true => Input::ClassFolder(one.into()),
            false if is_mds(one.as_ref()) => Input::Mds { path: one.into(), columns },
            false => Input::Folder(one.into()),
        },
        [one] if is_list(one.as_ref()) && (one_file(one) || !is_parquet(one.as_ref())) => {
            let path = Path::new(one);
            let chosen = !columns.is_default() && is_parquet(path);
            match chosen || is_parquet(path) && is_table(path)? {
                true => Input::Tables { paths: vec![path.into()], columns },
                false => Input::List { path: path.into(), root: arguments.root.clone() },
            }
        }
        all if all.iter().all(|one| is_parquet(one.as_ref())) => {
            Input::Tables { paths: files(all)?, columns }
        }
        all => Input::Tars {
            paths: files(all)?,
            prefix_keys: arguments.prefix_keys,
            sort: arguments.sort,
        },
    };
    misplaced(arguments, &input).map_or(Ok(input), Err)
}

/// Returns true for a path that is a file as it stands, and no pattern.
fn one_file(path: &str) -> bool {
    Path::new(path).is_file()
}

/// The error for an option that does not apply to the input.
fn misplaced(arguments: &Arguments, input: &Input) -> Option<Failure> {
    let (list, tars) = (matches!(input, Input::List { .. }), matches!(input, Input::Tars { .. }));
    let folder = matches!(input, Input::ClassFolder(_));
    let table = matches!(input, Input::Mds { .. } | Input::Tables { .. });
    let misplaced = [
        (arguments.root.is_some() && !list, "--root applies to a list"),
        (arguments.prefix_keys && !tars, "--prefix-keys applies to shards"),
        (arguments.sort && !tars, "--sort applies to shards; a folder's samples are sorted"),
        (arguments.classes && !folder, "--classes applies to a folder"),
        (!arguments.field.is_empty() && !table, "--field applies to Parquet files and MDS"),
        (arguments.key.is_some() && !table, "--key applies to Parquet files and MDS"),
    ];
    let (_, what) = misplaced.iter().find(|(misplaced, _)| *misplaced)?;
    Some(Failure::Usage(Error::new(ErrorKind::Invalid, *what)))
}

/// The shards or tables that the command line names: files of this machine.
fn files(inputs: &[String]) -> Done<Vec<PathBuf>> {
    let elsewhere = |url: &str| {
        Error::new(ErrorKind::Invalid, "only shards that are files can be packed again")
            .at("url", url)
            .advise("copy them here first, or mount their store")
    };
    let mut paths = Vec::new();
    for input in inputs {
        let alone = Path::new(input);
        if alone.is_dir() || (is_list(alone) && !is_parquet(alone)) {
            let error = Error::new(ErrorKind::Invalid, "a folder or a list must be the only input");
            return Err(Failure::Usage(error.at("input", input)));
        }
        let mut list = |url: &str| Err(elsewhere(url));
        let urls = forebay_shard::expand(input, Commands::Refused, &mut list);
        for url in urls.map_err(|error| match error.kind() {
            ErrorKind::Invalid => Failure::Usage(error),
            _ => Failure::Failed(error),
        })? {
            match url.starts_with('/') {
                true => paths.push(PathBuf::from(url)),
                false => return Err(Failure::Usage(elsewhere(&url))),
            }
        }
    }
    Ok(paths)
}

fn pack(plan: &Plan) -> Result<usize> {
    let bar = ProgressBar::new(plan.bytes()).with_style(bar_style(
        "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {elapsed} (left {eta})",
    ));
    let packed = plan.pack(&|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    packed
}

fn tell(
    arguments: &Arguments,
    plan: &Plan,
    kept: usize,
    members: Option<members::Document>,
) -> Result<()> {
    let (manifest, bytes) = (plan.manifest(), plan.bytes());
    let samples = manifest.samples();
    let (indexed_photos, index_bytes) = plan.indexes();
    if arguments.answer.json {
        return print_json(&Document {
            dry_run: arguments.dry_run,
            manifest: plan.manifest_path(),
            hash: manifest.hash(),
            classes: plan.classes_path(),
            samples,
            bytes,
            kept,
            indexed_photos,
            index_bytes,
            shards: plan.shards().map(Shard::from).collect(),
            members,
        });
    }
    let size = |bytes| ByteSize(bytes).display().iec();
    for shard in plan.shards() {
        let (path, bytes) = (shard.path.display(), size(shard.bytes));
        print(&format!("{path}  {} samples  {bytes}", shard.samples))?;
    }
    let would = if arguments.dry_run { " would be written" } else { "" };
    let kept = if kept > 0 { format!(", {kept} of them there before") } else { String::new() };
    if let Some(path) = plan.classes_path() {
        let count: usize = plan.classes().values().map(Vec::len).sum();
        print(&format!("{}: the names of {count} classes", path.display()))?;
    }
    if arguments.jpeg_index {
        let verb = if arguments.dry_run { "would get" } else { "have" };
        print(&format!("{indexed_photos} photos {verb} an index: {}", size(index_bytes)))?;
    }
    let (path, shards) = (plan.manifest_path().display(), manifest.shards().len());
    print(&format!("{path}: {shards} shards, {samples} samples, {}{would}{kept}", size(bytes)))?;
    members.iter().flat_map(members::Document::lines).try_for_each(|line| print(&line))
}
