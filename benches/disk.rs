//! What the disk engines read, against `fio` on the same file: the first link of every figure.
//!
//! Its rule: contenders take turns within one run, in an order that turns round every round, and
//! the figure is the median of the rounds' ratios. A rate by itself says more about the moment.
//!
//! ```text
//! cargo bench -p forebay-benches --bench disk -- --directory /mnt/nvme
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

mod dice;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use dice::Dice;
use forebay_uring::{Arena, DiskFile, Engine, EngineChoice, EngineConfig, Open, Region};
use futures::stream::{FuturesUnordered, StreamExt};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::Value;

/// Reads under way at once for every contender: several times what keeps an NVMe drive busy.
const DEPTH: usize = 32;

/// What is read at once: a photo's record on sectors, and what a shard's fill or scan reads.
const RECORDS: [usize; 2] = [112 << 10, 1 << 20];

/// Writes of the file's making.
const PIECE: usize = 4 << 20;

/// Compares fio, the ring and the thread pool on random reads of one file.
#[derive(Parser)]
struct Arguments {
    /// Directory on the disk to measure; a file is made there and removed.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Size of the file in GiB: beyond the drive's own cache.
    #[arg(long, default_value_t = 2)]
    gib: u64,
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds per contender and round.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Write the document here.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// One contender in one round.
#[derive(Debug, Clone, Copy, Serialize)]
struct Run {
    bytes_per_second: f64,
    cpu_seconds_per_gb: f64,
}

/// All rounds at one record size.
#[derive(Debug, Default, Serialize)]
struct Rounds {
    record_bytes: usize,
    fio: Vec<Run>,
    ring: Vec<Run>,
    threads: Vec<Run>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments = Arguments::parse();
    let file = tempfile::Builder::new().prefix("disk-bench-").tempfile_in(&arguments.directory);
    let file = file.unwrap().into_temp_path();
    let bytes = arguments.gib << 30;
    make(&file, bytes).await;
    let length = Duration::from_secs(arguments.seconds);
    let mut all = Vec::new();
    for record_bytes in RECORDS {
        let mut rounds = Rounds { record_bytes, ..Rounds::default() };
        for round in 0..arguments.rounds {
            let mut turn = [0, 1, 2];
            turn.rotate_left(round % 3);
            for contender in turn {
                let task = Task { file: &file, bytes, record_bytes, length };
                match contender {
                    0 => rounds.fio.push(task.fio()),
                    1 => rounds.ring.push(task.engine(EngineChoice::Ring).await),
                    _ => rounds.threads.push(task.engine(EngineChoice::Threads).await),
                }
            }
        }
        rounds.show();
        all.push(rounds);
    }
    if let Some(out) = arguments.out {
        std::fs::write(out, serde_json::to_string_pretty(&all).unwrap() + "\n").unwrap();
    }
}

/// Fills the file with bytes that no drive compresses.
async fn make(path: &Path, bytes: u64) {
    let engine = start(EngineChoice::Auto);
    std::fs::remove_file(path).unwrap();
    let file = engine.open(path, Open::Create { len: bytes }).await.unwrap();
    let mut span = Arena::new(Region::create("make", PIECE).unwrap()).try_lease(PIECE).unwrap();
    let mut dice = Dice(1);
    for offset in (0..bytes).step_by(PIECE) {
        for word in span.chunks_exact_mut(8) {
            word.copy_from_slice(&dice.roll().to_le_bytes());
        }
        let done = engine.write(&file, offset, span).await;
        assert_eq!(done.result.unwrap(), PIECE);
        span = done.span;
    }
    engine.sync_data(&file).await.unwrap();
}

fn start(choice: EngineChoice) -> Engine {
    let depth = u32::try_from(DEPTH).unwrap();
    Engine::start(EngineConfig { name: "bench".to_owned(), choice, depth }).unwrap()
}

/// What every contender does.
#[derive(Clone, Copy)]
struct Task<'a> {
    file: &'a Path,
    bytes: u64,
    record_bytes: usize,
    length: Duration,
}

impl Task<'_> {
    async fn engine(self, choice: EngineChoice) -> Run {
        let engine = start(choice);
        let file = engine.open(self.file, Open::Read).await.unwrap();
        let region = Region::create("read", DEPTH * self.record_bytes).unwrap();
        engine.attach(&region).await.unwrap();
        let arena = Arena::new(region);
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        let lanes: FuturesUnordered<_> = (1..=DEPTH as u64)
            .map(|seed| self.lane(&engine, &file, &arena, seed, begin + self.length))
            .collect();
        let read = lanes.fold(0, |sum, read| async move { sum + read }).await as f64;
        Run {
            bytes_per_second: read / begin.elapsed().as_secs_f64(),
            cpu_seconds_per_gb: (cpu_seconds() - cpu) / read * 1e9,
        }
    }

    /// One read after the other until `end`; the bytes read.
    async fn lane(
        self,
        engine: &Engine,
        file: &DiskFile,
        arena: &Arena,
        seed: u64,
        end: Instant,
    ) -> u64 {
        let record = self.record_bytes as u64;
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut span = arena.lease(self.record_bytes).await.unwrap();
        let mut read = 0;
        while Instant::now() < end {
            let offset = dice.roll() % (self.bytes / record) * record;
            let done = engine.read(file, offset, span).await;
            assert_eq!(done.result.unwrap(), self.record_bytes);
            span = done.span;
            read += record;
        }
        read
    }

    /// fio at its best: fixed buffers on huge pages, a registered file.
    fn fio(self) -> Run {
        let out = Command::new("fio")
            .args(["--name=disk", "--readonly", "--rw=randread", "--norandommap", "--direct=1"])
            .args(["--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1", "--time_based"])
            .args(["--output-format=json", &format!("--iodepth={DEPTH}")])
            .arg(format!("--filename={}", self.file.display()))
            .arg(format!("--bs={}", self.record_bytes))
            .arg(format!("--runtime={}", self.length.as_secs()))
            .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
            .stderr(Stdio::inherit())
            .output()
            .expect("fio is installed");
        assert!(out.status.success(), "fio failed: {}", String::from_utf8_lossy(&out.stdout));
        let told: Value = serde_json::from_slice(&out.stdout).unwrap();
        let job = &told["jobs"][0];
        let number = |value: &Value| value.as_f64().unwrap();
        let rate = number(&job["read"]["bw_bytes"]);
        let cpu_share = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
        Run { bytes_per_second: rate, cpu_seconds_per_gb: cpu_share / rate * 1e9 }
    }
}

impl Rounds {
    fn show(&self) {
        println!("random reads of {} KiB, depth {DEPTH}, medians", self.record_bytes >> 10);
        for (name, runs) in [("fio", &self.fio), ("ring", &self.ring), ("threads", &self.threads)] {
            println!(
                "  {name:8} {:6.3} GB/s  {:6.4} CPU s/GB  {:4.2} of fio  {:4.2} of ring",
                median(runs.iter().map(|run| run.bytes_per_second)) / 1e9,
                median(runs.iter().map(|run| run.cpu_seconds_per_gb)),
                ratio(runs, &self.fio),
                ratio(runs, &self.ring),
            );
        }
    }
}

fn ratio(of: &[Run], to: &[Run]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of.bytes_per_second / to.bytes_per_second))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
