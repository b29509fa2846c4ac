//! Two clients of S3, each as it comes, reading the same ranges of the same object: what either
//! costs.
//!
//! Nothing is kept, so that the clients alone are compared; both have as many requests
//! under way, of the same size, and read each to its end.

use std::net::SocketAddr;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Config, Credentials, Region};
use forebay_store::PART_BYTES;
use forebay_testkit::{ACCESS_KEY, Nginx, SECRET_KEY};
use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};
use serde_json::{Value, json};

use crate::contest::spread;
use crate::run::timed;
use crate::{BUCKET, Bench, KEY};

/// Requests under way.
const AT_ONCE: usize = 8;

/// Any: the server looks at no signature.
const REGION: &str = "us-east-1";

fn sdk(address: SocketAddr) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(format!("http://{address}"))
        .credentials_provider(Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "bench"))
        .force_path_style(true);
    Client::from_conf(config.build())
}

fn store(address: SocketAddr) -> AmazonS3 {
    AmazonS3Builder::new()
        .with_endpoint(format!("http://{address}"))
        .with_allow_http(true)
        .with_region(REGION)
        .with_bucket_name(BUCKET)
        .with_access_key_id(ACCESS_KEY)
        .with_secret_access_key(SECRET_KEY)
        .build()
        .unwrap()
}

async fn by_sdk(client: &Client, first: u64, last: u64) -> u64 {
    let get = client.get_object().bucket(BUCKET).key(KEY).range(format!("bytes={first}-{last}"));
    let mut body = get.send().await.unwrap().body;
    let mut bytes = 0;
    while let Some(chunk) = body.try_next().await.unwrap() {
        bytes += chunk.len() as u64;
    }
    bytes
}

async fn by_store(store: &AmazonS3, first: u64, last: u64) -> u64 {
    let range = Some(GetRange::Bounded(first..last + 1));
    let options = GetOptions { range, ..GetOptions::default() };
    let got = store.get_opts(&Path::from(KEY), options).await.unwrap();
    got.into_stream().try_fold(0, async |sum, chunk| Ok(sum + chunk.len() as u64)).await.unwrap()
}

/// Reads the shard by either, in turns.
pub(crate) fn clients(bench: &Bench) -> Value {
    let nginx = Nginx::start(bench.root.path()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ranges = |total: u64| {
        let part = PART_BYTES as u64;
        (0..total.div_ceil(part)).map(move |n| (n * part, ((n + 1) * part).min(total) - 1))
    };
    let (sdk, store) = (sdk(nginx.address()), store(nginx.address()));
    let read = |name: &str| {
        let parts =
            futures::stream::iter(ranges(bench.bytes)).map(async |(first, last)| match name {
                "aws-sdk-s3" => by_sdk(&sdk, first, last).await,
                _ => by_store(&store, first, last).await,
            });
        let bytes =
            runtime.block_on(parts.buffer_unordered(AT_ONCE).fold(0, async |sum, part| sum + part));
        assert_eq!(bytes, bench.bytes, "{name}");
    };
    let gb = bench.bytes as f64 / 1e9;
    let names = ["aws-sdk-s3", "object_store"];
    let mut tooks = [Vec::new(), Vec::new()];
    for round in 0..bench.rounds {
        for turn in 0..names.len() {
            let which = (turn + round) % names.len();
            tooks[which].push(timed(|| read(names[which])));
        }
    }
    let mut told = serde_json::Map::new();
    for (name, tooks) in names.into_iter().zip(&tooks) {
        let rates: Vec<f64> = tooks.iter().map(|took| gb / took.seconds).collect();
        let cpus: Vec<f64> = tooks.iter().map(|took| took.cpu / gb).collect();
        let (rate, cpu) = (spread(rates.clone()), spread(cpus.clone()));
        println!(
            "  {name:12} {:6.3} GB/s ({:.3}..{:.3})  {:5.2} CPU-s/GB ({:.2}..{:.2})",
            rate[0], rate[1], rate[2], cpu[0], cpu[1], cpu[2]
        );
        told.insert(name.to_owned(), json!({ "gb_per_second": rates, "cpu_seconds_per_gb": cpus }));
    }
    Value::Object(told)
}
