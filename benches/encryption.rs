//! CPU time of an encrypted tier, compared with a plain one on the same disk.
//!
//! Contenders take turns in each round, and each figure is CPU time of the whole process, the
//! kernel's share included. `--json FILE` keeps the rounds with the machine.
//! ```text
//! cargo bench --workspace --bench encryption -- --json FILE
//! ```
//! | figure | work per byte |
//! |---|---|
//! | cipher | AES-256-XTS in place over 4 MiB that are in no cache |
//! | crc | CRC32C over the same |
//! | read | O_DIRECT read of 1 MiB into registered memory, then CRC32C |
//! | write | CRC32C over a part of 4 MiB, then O_DIRECT write of it |

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends at a surprise")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use forebay_bench::machine::Machine;
use forebay_shard::BLOCK_BYTES;
use forebay_shard::checksum::crc32c;
use forebay_uring::{
    Arena, CIPHER_KEY_BYTES, CipherKey, DiskFile, Engine, EngineConfig, FileCipher, Open, Region,
    Span, fill_random,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// Bytes of one read of the engine.
const READ: usize = 1 << 20;

/// Bytes of a part that a fill writes.
const PART_BYTES: usize = BLOCK_BYTES as usize;

/// Reads and writes at once: a batch's neighbours.
const AT_ONCE: usize = 8;

/// Compares an encrypted tier with a plain one.
#[derive(Parser)]
struct Arguments {
    /// Directory on the disk to measure.
    #[arg(long, default_value = "target")]
    disk: PathBuf,
    /// Bytes that each contender moves in a round, in MiB.
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// File for rounds, medians and machine.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Seconds of CPU of this process so far.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Measured files.
struct Bench {
    engine: Engine,
    arena: Arena,
    cipher: FileCipher,
    /// A plain file and an encrypted one.
    files: [DiskFile; 2],
    bytes: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments = Arguments::parse();
    let folder = tempfile::Builder::new().prefix("encryption-bench-").tempdir_in(&arguments.disk);
    let folder = folder.unwrap();
    let bench = Bench::make(folder.path(), arguments.mib << 20).await;
    let mut rounds = Vec::new();
    for round in 0..arguments.rounds {
        let mut figures = [[0.0; 2]; 3];
        // Whoever comes first finds the caches of the last.
        for turn in 0..2 {
            let is = (turn + round) % 2;
            figures[0][is] = bench.compute(is == 1);
            figures[1][is] = bench.read(is).await;
            figures[2][is] = bench.write(is).await;
        }
        let [[crc, cipher], read, write] = figures;
        let one = json!({
            "crc": crc, "cipher": cipher,
            "read": of(read), "write": of(write),
        });
        println!("  {one}");
        rounds.push(one);
    }
    let ratio = |name: &str| median(&rounds, |round| round[name]["ratio"].as_f64());
    let all = json!({
        "what": "seconds of CPU per GB; plain, encrypted, and their ratio in the same round",
        "machine": Machine::this().unwrap().with_storage(folder.path()).unwrap(),
        "mib": arguments.mib,
        "engine": bench.engine.kind(),
        "crc": median(&rounds, |round| round["crc"].as_f64()),
        "cipher": median(&rounds, |round| round["cipher"].as_f64()),
        "read_ratio": ratio("read"),
        "write_ratio": ratio("write"),
        "rounds": rounds,
    });
    println!("encrypted of plain: read {:.2}, write {:.2}", ratio("read"), ratio("write"));
    if let Some(path) = arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&all).unwrap() + "\n").unwrap();
    }
}

fn of([plain, encrypted]: [f64; 2]) -> Value {
    json!({ "plain": plain, "encrypted": encrypted, "ratio": encrypted / plain })
}

fn median(rounds: &[Value], figure: impl Fn(&Value) -> Option<f64>) -> f64 {
    let mut figures: Vec<f64> = rounds.iter().filter_map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

impl Bench {
    async fn make(folder: &Path, bytes: usize) -> Self {
        let mut key = Zeroizing::new([0; CIPHER_KEY_BYTES]);
        fill_random(&mut key[..]).unwrap();
        let cipher = FileCipher::new(&Arc::new(CipherKey::new(key).unwrap()), 1);
        let config = EngineConfig { name: "bench".to_owned(), ..EngineConfig::default() };
        let engine = Engine::start(config).unwrap();
        let region = Region::create("bench", 2 * AT_ONCE * PART_BYTES).unwrap();
        engine.attach(&region).await.unwrap();
        let open = async |name: &str| {
            let create = Open::Create { len: bytes as u64 };
            engine.open(&folder.join(name), create).await.unwrap()
        };
        let files = [open("plain").await, open("encrypted").await.encrypted(cipher.clone())];
        let bench = Self { engine, arena: Arena::new(region), cipher, files, bytes };
        // The files have their bytes before the first round.
        for is in [0, 1] {
            bench.write(is).await;
        }
        bench
    }

    /// Seconds per GB of a run that began at `since`.
    fn per_gb(&self, since: f64) -> f64 {
        (cpu() - since) / (self.bytes as f64 / 1e9)
    }

    /// CRC32C or the cipher alone.
    fn compute(&self, by_cipher: bool) -> f64 {
        let mut parts: Vec<Span> =
            (0..AT_ONCE).map(|_| self.arena.try_lease(PART_BYTES).unwrap()).collect();
        let since = cpu();
        for number in 0..self.bytes / PART_BYTES {
            let part = &mut parts[number % AT_ONCE];
            match by_cipher {
                true => self.cipher.decrypt(0, part).unwrap(),
                false => drop(std::hint::black_box(crc32c(part))),
            }
        }
        self.per_gb(since)
    }

    async fn read(&self, is: usize) -> f64 {
        let since = cpu();
        for first in (0..self.bytes).step_by(AT_ONCE * READ) {
            let reads = (0..AT_ONCE).map(|at| forebay_uring::Read {
                file: self.files[is].clone(),
                offset: (first + at * READ) as u64,
                into: self.arena.try_lease(READ).unwrap(),
            });
            for read in self.engine.read_many(reads.collect()) {
                let done = read.await;
                assert_eq!(done.result.unwrap(), READ);
                std::hint::black_box(crc32c(&done.span));
            }
        }
        self.per_gb(since)
    }

    async fn write(&self, is: usize) -> f64 {
        let since = cpu();
        for first in (0..self.bytes).step_by(AT_ONCE * PART_BYTES) {
            let mut writes = Vec::new();
            for at in 0..AT_ONCE {
                let offset = (first + at * PART_BYTES) as u64;
                let part = self.arena.try_lease(PART_BYTES).unwrap().freeze();
                std::hint::black_box(crc32c(&part));
                let file = &self.files[is];
                writes.push(match is {
                    0 => self.engine.write_frozen(file, offset, part),
                    _ => {
                        let memory = self.arena.try_lease(PART_BYTES).unwrap();
                        self.engine.write_encrypted(file, offset, &part, memory)
                    }
                });
            }
            for write in writes {
                assert_eq!(write.await.result.unwrap(), PART_BYTES);
            }
        }
        self.per_gb(since)
    }
}
