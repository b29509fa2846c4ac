//! Size, opening and filters of a member index, at the sizes that data sets have.
//!
//! Each round opens the index anew and filters by one column and by two. Resident memory is that of
//! the whole process, which wrote the index before. `--json FILE` keeps rounds with the machine.
//! ```text
//! cargo bench --workspace --bench members -- --json FILE
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use forebay_bench::machine::Machine;
use forebay_engine::filter::Filter;
use forebay_shard::members::{MemberIndex, Value, Writer, path_of};
use forebay_shard::{Index, Manifest, ManifestShard, Member, Sample};
use serde_json::{Value as Json, json};

/// Samples of a shard: photos of 100 KB in shards of 1 GB.
const SAMPLES: u64 = 10_000;

/// Members of a sample: photo, label, caption and facts.
const FIELDS: [&str; 4] = ["jpg", "cls", "txt", "json"];

/// Bytes of a page of memory, as `/proc/self/statm` counts.
const PAGE: u64 = 4096;

/// Filters over one column and over two; of each value of `width` one in a hundred passes.
const FILTERS: [&str; 2] = ["width < 10", "width < 10 and score >= 0.5"];

/// Measures a member index.
#[derive(Parser)]
struct Arguments {
    /// Directory for the index.
    #[arg(long, default_value = "target")]
    disk: PathBuf,
    /// Members, in millions.
    #[arg(long, default_value_t = 100)]
    millions: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// File for rounds, medians and machine.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let folder = tempfile::Builder::new().prefix("members-bench-").tempdir_in(&arguments.disk);
    let folder = folder.unwrap();
    let members = arguments.millions * 1_000_000;
    let samples = members / FIELDS.len() as u64;
    let began = Instant::now();
    let path = write(folder.path(), samples.div_ceil(SAMPLES));
    let built = began.elapsed().as_secs_f64();
    let bytes = std::fs::metadata(&path).unwrap().len();
    let per_member = bytes as f64 / members as f64;
    println!("{members} members take {bytes} bytes, {per_member:.2} each; written in {built:.1} s");
    let rounds: Vec<Json> = (0..arguments.rounds).map(|_| round(&path)).collect();
    let all = json!({
        "what": "a member index with two columns: seconds, bytes of resident memory",
        "machine": Machine::this().unwrap().with_storage(folder.path()).unwrap(),
        "members": members,
        "bytes": bytes,
        "bytes_per_member": per_member,
        "written_s": built,
        "open_s": median(&rounds, "open_s"),
        "resident_bytes": median(&rounds, "resident_bytes"),
        "one_column_s": median(&rounds, "one_column_s"),
        "two_columns_s": median(&rounds, "two_columns_s"),
        "rounds": rounds,
    });
    if let Some(path) = arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&all).unwrap() + "\n").unwrap();
    }
}

/// Opens the index, and filters its samples.
fn round(path: &Path) -> Json {
    let began = Instant::now();
    let index = MemberIndex::open(path).unwrap();
    let opened = began.elapsed().as_secs_f64();
    let bytes = resident();
    let shards: Vec<usize> = (0..index.shards().len()).collect();
    let filtered = FILTERS.map(|text| {
        let began = Instant::now();
        let filter = Filter::new(&[text.to_owned()], &index).unwrap();
        let choices = filter.choose(&index, &shards).unwrap();
        let chosen: u64 = choices.iter().map(|choice| choice.count()).sum();
        assert!(chosen > 0, "{text} passes none");
        began.elapsed().as_secs_f64()
    });
    let one = json!({
        "open_s": opened,
        "resident_bytes": bytes,
        "one_column_s": filtered[0],
        "two_columns_s": filtered[1],
    });
    println!("  {one}");
    one
}

fn write(folder: &Path, shards: u64) -> PathBuf {
    let path = path_of(&folder.join("m.json"));
    let columns = ["width", "score"].map(str::to_owned);
    let mut writer = Writer::create(&path, &columns).unwrap();
    let mut listed = Vec::new();
    for shard in 0..shards {
        let (index, bytes) = shard_of(shard * SAMPLES);
        writer.begin(bytes, &format!("{shard:032x}")).unwrap();
        for (number, sample) in (shard * SAMPLES..).zip(&index.samples) {
            let width = Value::Int((mixed(number) % 1000) as i64);
            let score = Value::Float((mixed(number + 7) % 1000) as f64 / 1000.0);
            writer.add(&index, sample, vec![width, score]).unwrap();
        }
        writer.end().unwrap();
        let url = format!("s3://bucket/train-{shard:06}.tar");
        listed.push(ManifestShard { url, samples: SAMPLES, bytes: Some(bytes) });
    }
    writer.finish(&Manifest::new(listed).unwrap()).unwrap();
    path
}

/// Index of a shard whose first sample has this number, and the shard's bytes.
fn shard_of(first: u64) -> (Index, u64) {
    let mut index = Index { fields: FIELDS.map(str::to_owned).to_vec(), ..Index::default() };
    let mut at = 0;
    for number in first..first + SAMPLES {
        let start = index.members.len() as u32;
        for field in 0..FIELDS.len() as u64 {
            let len = match field {
                0 => 50_000 + mixed(number) % 100_000,
                field => 1 + mixed(number + field) % 300,
            };
            let offset = at + 512;
            let crc32c = mixed(number * 4 + field) as u32;
            index.members.push(Member { field: field as _, offset, len, crc32c });
            at = (offset + len).next_multiple_of(512);
        }
        let own = &index.members[start as usize..];
        index.samples.push(Sample {
            key: format!("{number:09}"),
            offset: own[0].offset,
            end: own.last().unwrap().end(),
            members: start..index.members.len() as u32,
            bad: None,
        });
    }
    (index, at + 1024)
}

/// Spreads numbers evenly (Fibonacci hashing, by 2^64 over the golden ratio).
fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE
}

fn median(rounds: &[Json], figure: &str) -> f64 {
    let mut figures: Vec<f64> = rounds.iter().filter_map(|round| round[figure].as_f64()).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
