//! Speed and cost of a cold shard's way from its origin onto a disk, compared with common download
//! tools; time to the first sample; cost of many readers and of a slow tail.
//!
//! Both sides fetch the same object from the same server to the same disk, in turns, and end
//! synced. CPU is the client's alone: its own threads, or the tool with its sync. Medians and
//! spreads are printed, and nothing else should run meanwhile.
//! ```text
//! cargo bench --workspace --bench origin -- --directory /mnt/nvme cold ranks tail clients place
//! python3 benches/link/delay_line.py -- cargo bench --workspace --bench origin -- link first batch
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

mod batch;
mod clients;
mod contest;
mod far;
mod near;
mod place;
mod rivals;
mod run;
#[path = "../tier.rs"]
mod tier;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde_json::json;

/// Measures fetches from origins.
#[derive(Parser)]
struct Arguments {
    /// Measurements to run.
    #[arg(value_enum, default_values_t = [What::Cold, What::Ranks, What::Tail])]
    what: Vec<What>,
    /// Directory on the disk to write to; a folder is made there and removed.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Size of the shard in MiB.
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Lanes of the epochs whose first batch is measured
    #[arg(long, value_delimiter = ',', default_values_t = batch::LANES)]
    lanes: Vec<u32>,
    /// File that the figures are added to.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum, PartialEq, Eq)]
enum What {
    /// Cold fetches from servers on loopback.
    Cold,
    /// The two clients of S3 that there are, beside each other.
    Clients,
    /// Cold fetches over the link that `delay_line.py` makes.
    Link,
    /// The first sample of a cold shard over that link.
    First,
    /// The first batch of a cold epoch over that link.
    Batch,
    /// A cold epoch of eight shards over that link.
    Epoch,
    /// Eight readers of the same shards.
    Ranks,
    /// Some parts that come a hundred times later than the others; over that link if there is one.
    Tail,
    /// A file read where it is, against a tier.
    Place,
}

/// Set-up of a measurement.
struct Bench {
    /// Folder to write to.
    directory: PathBuf,
    /// The folder that servers serve, with the shard in it.
    root: tempfile::TempDir,
    /// Bytes of the shard.
    bytes: u64,
    rounds: usize,
    lanes: Vec<u32>,
}

/// The bucket, and the shard in it.
const BUCKET: &str = "bucket";
const KEY: &str = "shard.tar";

fn main() {
    if tier::was_reader() {
        return;
    }
    let arguments = Arguments::parse();
    let root = tempfile::Builder::new().prefix("origin-bench-").tempdir_in(&arguments.directory);
    let root = root.unwrap();
    std::fs::create_dir(root.path().join(BUCKET)).unwrap();
    let shard = root.path().join(BUCKET).join(KEY);
    forebay_benches::make_shard(std::fs::File::create(&shard).unwrap(), arguments.mib << 20);
    let bytes = std::fs::metadata(&shard).unwrap().len();
    let Arguments { directory, rounds, lanes, .. } = arguments;
    let bench = Bench { directory, root, bytes, rounds, lanes };
    let mut all = serde_json::Map::new();
    for what in arguments.what {
        println!("{what:?}");
        let told = match what {
            What::Cold => near::cold(&bench),
            What::Clients => clients::clients(&bench),
            What::Link => far::link(&bench),
            What::First => far::first(&bench),
            What::Batch => batch::batch(&bench),
            What::Epoch => batch::epoch(&bench),
            What::Ranks => near::ranks(&bench),
            What::Tail => near::tail(&bench),
            What::Place => place::place(&bench),
        };
        all.insert(format!("{what:?}").to_lowercase(), told);
    }
    if let Some(path) = arguments.json {
        let before = std::fs::read(&path).unwrap_or_default();
        let mut record = serde_json::from_slice(&before).unwrap_or_else(|_| json!({}));
        for (name, told) in all {
            record[name] = told;
        }
        std::fs::write(path, serde_json::to_string_pretty(&record).unwrap() + "\n").unwrap();
    }
}
