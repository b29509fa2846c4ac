//! The daemon's own log as objects: every line is one, and each says whom and what it is about.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_client::{Address, Loader};
use forebay_tests::{Daemon, Installation, Origin, config, eventually, job, play};
use forebay_wire::message::Open;
use serde_json::Value;

const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");
const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 40;

#[test]
fn every_line_is_an_object_that_names_its_job_and_data_set() {
    let (origin, disk) = (Origin::with_shards(2, SAMPLES, &SIZES), Daemon::disk());
    let rest = format!(
        "log = 'json'\n[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n{}\
         [[dataset]]\nname = 'photos'\nmatch = 's3://bucket/**'\n",
        disk.path().join("cache"),
        origin.rule(),
    );
    let installation = Installation::new(ACTOR, disk.path(), 512 << 20, &rest);
    let daemon = installation.start();
    let name = "a job\nwith two lines and a \"quote\"";
    let open = Open { job: name.to_owned(), ..job(&origin, Origin::urls(2)) };
    let address = Address::Unix(installation.socket());
    let loader = Loader::open(config(address.clone(), open.clone())).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(2, SAMPLES, &SIZES);
    drop(loader);
    // A shard that there is none of: what fails names its data set and its URL.
    let missing = vec!["s3://bucket/none.tar".to_owned()];
    let loader = Loader::open(config(address, Open { urls: missing, ..open })).unwrap();
    assert!(play(&loader, 0, 0).is_err());
    drop(loader);
    eventually("both left", || daemon.log().matches("a job left").count() == 2);
    let log = daemon.log();
    daemon.stop();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for line in &lines {
        for key in ["timestamp", "level", "target", "message"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
    }
    let told = |message: &str| {
        let told = lines.iter().filter(|line| line["message"] == message);
        told.collect::<Vec<_>>()
    };
    for message in ["opened a job", "a job left"] {
        let told = told(message);
        assert_eq!(told.len(), 2, "{message}: {log}");
        for line in told {
            assert_eq!(
                (line["dataset"].as_str(), line["session"].is_u64()),
                (Some("photos"), true)
            );
            let job = line["job"].as_str().unwrap();
            assert!(job.contains("with two lines and a \"quote\""), "{line}");
        }
    }
    for line in lines.iter().filter(|line| line["url"].is_string()) {
        assert!(line["dataset"].is_string() || line["event"].is_string(), "{line}");
    }
}
