//! Read rates of the disk engines, compared with `fio` on the same file: the first link of every
//! figure.
//!
//! Contenders take turns within one run, in an order that reverses every round, and the figure is
//! the median of the rounds' ratios. A rate by itself says more about the moment. The processor
//! time of checked reads, as a trainer makes them, is compared with a bound from the same round's
//! figures: fio's time and one pass of CRC32C over the same freshly read bytes, each with a fifth
//! on top.
//! ```text
//! cargo bench --workspace --bench disk -- --directory /mnt/nvme
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_bench::dice::Dice;
use forebay_shard::checksum::crc32c;
use forebay_uring::{
    Arena, DiskFile, Engine, EngineChoice, EngineConfig, Open, PageReport, Region,
};
use futures::stream::{FuturesUnordered, StreamExt};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::Value;

/// Reads under way at once for every contender: several times what keeps an NVMe drive busy.
const DEPTH: usize = 32;

/// Bytes of one read: a photo's record on sectors, and a read of a shard's fill or scan.
const RECORDS: [usize; 2] = [112 << 10, 1 << 20];

/// Allowed processor time of checked reads, over fio's time and over a pass of CRC32C: a fifth more
/// than either costs alone.
const ALLOWANCE: f64 = 1.2;

/// One record in this many is timed during its check: reading a thread's time is a system call,
/// which would itself be some percent of a small record's check.
const TIMED: u64 = 8;

/// The huge page of x86-64 and of arm64 with 4 KiB base pages, which fio asks for too.
const HUGE_PAGE: usize = 2 << 20;

/// Writes of the file's making.
const PIECE: usize = 4 << 20;

/// Compares fio and the disk engines on random reads of one file.
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

/// The ring in one round, with every record checked.
#[derive(Debug, Clone, Copy, Serialize)]
struct Checked {
    #[serde(flatten)]
    run: Run,
    /// Time of the checks alone.
    crc_seconds_per_gb: f64,
}

/// All rounds at one record size.
#[derive(Debug, Default, Serialize)]
struct Rounds {
    record_bytes: usize,
    /// The pages of fio's buffers.
    fio_memory: &'static str,
    /// The pages of the engines' buffers.
    memory: PageReport,
    fio: Vec<Run>,
    ring: Vec<Run>,
    threads: Vec<Run>,
    #[cfg(feature = "tokio-uring")]
    tokio_uring: Vec<Run>,
    checked: Vec<Checked>,
}

/// Contenders in their turns.
#[derive(Debug, Clone, Copy)]
enum Contender {
    Fio,
    Checked,
    Engine(EngineChoice),
}

const CONTENDERS: &[Contender] = &[
    Contender::Fio,
    Contender::Engine(EngineChoice::Ring),
    Contender::Engine(EngineChoice::Threads),
    #[cfg(feature = "tokio-uring")]
    Contender::Engine(EngineChoice::TokioUring),
    Contender::Checked,
];

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
        let task = Task { file: &file, bytes, record_bytes, length };
        for round in 0..arguments.rounds {
            let mut turn = CONTENDERS.to_vec();
            turn.rotate_left(round % CONTENDERS.len());
            for contender in turn {
                rounds.turn(task, contender).await;
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
    let engine = start(EngineChoice::Auto, path);
    std::fs::remove_file(path).unwrap();
    let file = engine.open(path, Open::Create { len: bytes }).await.unwrap();
    let mut span = Arena::new(Region::create("make", PIECE).unwrap()).try_lease(PIECE).unwrap();
    let mut dice = Dice::new(1);
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

/// An engine for the disk of the file at `near`.
fn start(choice: EngineChoice, near: &Path) -> Engine {
    let depth = u32::try_from(DEPTH).unwrap();
    let config =
        EngineConfig { name: "bench".to_owned(), choice, depth, near: Some(near.to_owned()) };
    Engine::start(config).unwrap()
}

/// Task of every contender.
#[derive(Clone, Copy)]
struct Task<'a> {
    file: &'a Path,
    bytes: u64,
    record_bytes: usize,
    length: Duration,
}

impl Task<'_> {
    /// Reads with every record checked or none, and the pages of the buffers.
    async fn engine(self, choice: EngineChoice, check: bool) -> (Checked, PageReport) {
        let engine = start(choice, self.file);
        let file = engine.open(self.file, Open::Read).await.unwrap();
        let region = Region::create("read", DEPTH * self.record_bytes).unwrap();
        engine.attach(&region).await.unwrap();
        let pages = region.pages();
        let arena = Arena::new(region);
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        let lanes: FuturesUnordered<_> = (1..=DEPTH as u64)
            .map(|seed| {
                let mut check =
                    check.then_some(Check { dice: Dice::new(seed), seconds: 0.0, bytes: 0 });
                let end = begin + self.length;
                let (engine, file, arena) = (&engine, &file, &arena);
                async move {
                    let read = self.lane(engine, file, arena, seed, end, check.as_mut()).await;
                    (read, check)
                }
            })
            .collect();
        let done: Vec<(u64, Option<Check>)> = lanes.collect().await;
        let read = done.iter().map(|(read, _)| *read).sum::<u64>() as f64;
        let run = Run {
            bytes_per_second: read / begin.elapsed().as_secs_f64(),
            cpu_seconds_per_gb: (cpu_seconds() - cpu) / read * 1e9,
        };
        let checks = || done.iter().filter_map(|(_, check)| check.as_ref());
        let timed = checks().map(|check| check.bytes).sum::<u64>().max(1) as f64;
        let seconds: f64 = checks().map(|check| check.seconds).sum();
        (Checked { run, crc_seconds_per_gb: seconds / timed * 1e9 }, pages)
    }

    /// One read after the other until `end`; the bytes read.
    async fn lane(
        self,
        engine: &Engine,
        file: &DiskFile,
        arena: &Arena,
        seed: u64,
        end: Instant,
        mut check: Option<&mut Check>,
    ) -> u64 {
        let record = self.record_bytes as u64;
        let mut dice = Dice::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut span = arena.lease(self.record_bytes).await.unwrap();
        let mut read = 0;
        while Instant::now() < end {
            let offset = dice.roll() % (self.bytes / record) * record;
            let done = engine.read(file, offset, span).await;
            assert_eq!(done.result.unwrap(), self.record_bytes);
            span = done.span;
            read += record;
            if let Some(check) = &mut check {
                check.pass(&span);
            }
        }
        read
    }

    /// fio at its best: fixed buffers on the largest pages to be had, a registered file.
    fn fio(self) -> (Run, &'static str) {
        let (memory, pages) = fio_memory(DEPTH * self.record_bytes);
        let out = Command::new("fio")
            .args(["--name=disk", "--readonly", "--rw=randread", "--norandommap", "--direct=1"])
            .args(["--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1", "--time_based"])
            .args(["--output-format=json", &format!("--iodepth={DEPTH}")])
            .arg(format!("--filename={}", self.file.display()))
            .arg(format!("--bs={}", self.record_bytes))
            .arg(format!("--runtime={}", self.length.as_secs()))
            .arg(memory)
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
        (Run { bytes_per_second: rate, cpu_seconds_per_gb: cpu_share / rate * 1e9 }, pages)
    }
}

/// Returns the source and the name of fio's buffers of `bytes` in all: reserved huge pages if there
/// are enough, else memory that glibc asks the kernel to put on huge pages, where it may.
fn fio_memory(bytes: usize) -> (&'static str, &'static str) {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let field = |name: &str| -> usize {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or(0)
    };
    let free = field("HugePages_Free:") * (field("Hugepagesize:") << 10);
    // One page more: fio aligns its buffers inside what it maps.
    if free >= bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE {
        return ("--iomem=mmaphuge", "reserved huge pages");
    }
    let transparent = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let pages = match transparent {
        Ok(text) if !text.contains("[never]") => {
            "transparent huge pages, as none are reserved (vm.nr_hugepages)"
        }
        _ => "4 KiB pages, as huge ones are neither reserved (vm.nr_hugepages) nor transparent",
    };
    ("--iomem=malloc", pages)
}

/// The checks of one lane.
struct Check {
    dice: Dice,
    /// Processor time of the checks that were timed.
    seconds: f64,
    /// Bytes of those.
    bytes: u64,
}

impl Check {
    fn pass(&mut self, record: &[u8]) {
        if self.dice.roll().is_multiple_of(TIMED) {
            let begin = thread_cpu_seconds();
            black_box(crc32c(black_box(record)));
            self.seconds += thread_cpu_seconds() - begin;
            self.bytes += record.len() as u64;
        } else {
            black_box(crc32c(black_box(record)));
        }
    }
}

impl Rounds {
    async fn turn(&mut self, task: Task<'_>, contender: Contender) {
        let choice = match contender {
            Contender::Fio => {
                let (run, pages) = task.fio();
                self.fio_memory = pages;
                return self.fio.push(run);
            }
            Contender::Checked => {
                return self.checked.push(task.engine(EngineChoice::Ring, true).await.0);
            }
            Contender::Engine(choice) => choice,
        };
        let (Checked { run, .. }, pages) = task.engine(choice, false).await;
        self.memory = pages;
        match choice {
            EngineChoice::Threads => self.threads.push(run),
            #[cfg(feature = "tokio-uring")]
            EngineChoice::TokioUring => self.tokio_uring.push(run),
            EngineChoice::Auto | EngineChoice::Ring => self.ring.push(run),
        }
    }

    fn show(&self) {
        println!("random reads of {} KiB, depth {DEPTH}, medians", self.record_bytes >> 10);
        let PageReport { hugetlb, collapsed, small } = self.memory;
        println!("  fio's buffers lie on {}", self.fio_memory);
        println!(
            "  ours on reserved huge pages {} KiB, collapsed {} KiB, small {} KiB",
            hugetlb >> 10,
            collapsed >> 10,
            small >> 10
        );
        let checked: Vec<Run> = self.checked.iter().map(|checked| checked.run).collect();
        let contenders: &[(&str, &[Run])] = &[
            ("fio", &self.fio),
            ("ring", &self.ring),
            ("threads", &self.threads),
            #[cfg(feature = "tokio-uring")]
            ("tokio", &self.tokio_uring),
            ("checked", &checked),
        ];
        for (name, runs) in contenders {
            println!(
                "  {name:8} {:6.3} GB/s  {:6.4} CPU s/GB  {:4.2} of fio  {:4.2} of ring",
                median(runs.iter().map(|run| run.bytes_per_second)) / 1e9,
                median(runs.iter().map(|run| run.cpu_seconds_per_gb)),
                ratio(runs, &self.fio),
                ratio(runs, &self.ring),
            );
        }
        self.show_bound();
    }

    /// Checked reads against what they may cost.
    fn show_bound(&self) {
        let crc = |checked: &Checked| checked.crc_seconds_per_gb;
        let bounds = || {
            let rounds = self.fio.iter().zip(&self.checked);
            rounds.map(|(fio, checked)| ALLOWANCE * (fio.cpu_seconds_per_gb + crc(checked)))
        };
        let shares = self.checked.iter().zip(bounds());
        let share = median(shares.map(|(checked, bound)| checked.run.cpu_seconds_per_gb / bound));
        println!(
            "  checked reads take {:6.4} CPU s/GB; {ALLOWANCE} x fio's {:6.4} + {ALLOWANCE} x CRC32C's {:6.4} \
             = {:6.4}: {share:4.2} of the bound, {}",
            median(self.checked.iter().map(|checked| checked.run.cpu_seconds_per_gb)),
            median(self.fio.iter().map(|run| run.cpu_seconds_per_gb)),
            median(self.checked.iter().map(crc)),
            median(bounds()),
            if share <= 1.0 { "within it" } else { "OVER it" },
        );
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

/// Processor time of all threads.
fn cpu_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// Processor time of the calling thread.
fn thread_cpu_seconds() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
