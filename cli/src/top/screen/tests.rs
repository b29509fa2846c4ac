//! Screens of status documents that are made here.

use serde_json::json;

use super::*;

fn job(session: u64, name: &str, share: f64) -> Value {
    json!({
        "session": session, "name": name, "tenant": "vision", "wrong_shards": 0,
        "progress": { "waiting_seconds": 0.0, "lately": {
            "seconds": 10.0, "samples_per_second": 1234.4, "bytes_per_second": 3.0e8,
            "waited_share": share, "waited_for": { "origin": share * 0.9, "tier_read": share * 0.1 },
        } },
    })
}

fn status() -> Value {
    json!({
        "release": "0.1.0", "uptime_seconds": 7300.0,
        "jobs": [job(1, "calm", 0.0), job(2, "a-job-with-a-name-that-is-as-long-as-a-path/and/more", 0.34)],
        "cache": {
            "used_bytes": 1_u64 << 40, "capacity_bytes": 3_u64 << 40, "origin_bytes": 5 * 1024,
            "datasets": [{ "name": "imagenet", "used_bytes": 10, "shards": 3, "cache": "always", "evict": "clairvoyant" },
                         { "name": "(rest)", "used_bytes": 20, "shards": 1, "cache": "never", "evict": "sieve" }],
            "tenants": [{ "name": "(none)", "used_bytes": 30, "shards": 4 }],
        },
        "tiers": [{ "name": "nvme", "class": "nvme", "mode": "enabled", "condition": "failing", "why": "EIO",
                    "used_bytes": 1_u64 << 40, "capacity_bytes": 3_u64 << 40, "hits": 98, "misses": 2 }],
        "sources": [{ "endpoint": "https://s3.example", "bytes": 1_u64 << 30, "under_way": 3, "limit": 64,
                      "waiting": 0, "retries": 7, "down": false }],
        "gpus": { "host": "node7", "devices": [
            { "index": 0, "uuid": "GPU-0", "pci_bus_id": "00000000:06:00.0", "model": "NVIDIA H100 80GB HBM3",
              "is_monitored": true, "sm_share": 0.71, "jpeg_shares": [0.3, 0.1], "pcie_in_bytes_per_second": 1.5e9,
              "memory_bytes": 80, "memory_used_bytes": 20, "jobs": [{ "session": 1, "name": "calm" }], "other_processes": 2 },
            { "index": 1, "uuid": "GPU-1", "pci_bus_id": "00000000:07:00.0", "model": "NVIDIA H100 80GB HBM3",
              "failing": "it fell off the bus", "is_monitored": false, "jobs": [], "other_processes": 0 }] },
        "fills": { "running": 4 }, "warm_ups": [],
        "foresight": { "bandwidth": 1_u64 << 30, "slack": -3.0, "jobs": [
            { "job": 2, "lacks": { "url": "s3://bucket/000042.tar", "needed_in": 40.0, "arrives_in": 12.0 } },
            { "job": 1, "lacks": null }] },
    })
}

fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

#[test]
fn where_nothing_is_foreseen_no_links_are_told() {
    let mut status = status();
    status["foresight"] = json!({ "bandwidth": 1_250_000_000, "slack": null, "jobs": [] });
    let lines = Screen { status: &status, before: None, width: 120 }.lines();
    let all = texts(&lines).join("\n");
    assert!(
        all.contains("4 shards on their way; of no job it is known what it reads next\n"),
        "{all}"
    );
    status["jobs"] = json!([]);
    let lines = Screen { status: &status, before: None, width: 120 }.lines();
    assert!(texts(&lines).contains(&"4 shards on their way"));
}

#[test]
fn it_says_what_the_page_says_whoever_waits_first() {
    let status = status();
    let lines = Screen { status: &status, before: None, width: 120 }.lines();
    let all = texts(&lines).join("\n");
    for words in [
        "up 2 h  2 jobs  cache 1.0 TiB of 3.0 TiB",
        "4 shards on their way; the next fetch is 3.0 s late; links bring 1.0 GiB/s",
        "1 of 2 jobs wait; a-job-with-a-name",
        "for 34 % of its time, for origin most.\nTier nvme is failing.",
        "origin 31 %, tier read 3 %",
        "needed in 40 s, arrives in 12 s: s3://bucket/000042.tar",
        "all it needs is here",
        "98 %  failing, enabled, EIO",
        "71 %  20 %  1.4 GiB/s    25 %  calm, 2 others",
        "it fell off the bus",
        "imagenet",
        "cached: never",
        "3 of 64",
    ] {
        assert!(all.contains(words), "{words}:\n{all}");
    }
    let at = |words: &str| all.find(words).unwrap_or_else(|| panic!("{words}:\n{all}"));
    assert!(at("\na-job-with") < at("\ncalm"), "{all}");
    // One tenant alone is everybody.
    assert!(!all.contains("TENANT"), "{all}");
    let of = |words: &str| lines.iter().find(|line| line.text.starts_with(words)).unwrap().look;
    assert_eq!((of("a-job"), of("calm"), of("nvme")), (Look::Bad, Look::Plain, Look::Bad));
    assert_eq!((of("0 NVIDIA"), of("1 NVIDIA")), (Look::Plain, Look::Bad));
}

/// Eight ranks are one job, and one line: what all of them read, and what the worst waits for. Others are not pushed off the screen.
#[test]
fn ranks_of_a_job_are_one_line() {
    let mut status = status();
    let ranks = (10..18).map(|n| job(n, "resnet", if n == 13 { 0.5 } else { 0.01 }));
    let all: Vec<_> = ranks.chain([job(1, "calm", 0.0)]).collect();
    status["jobs"] = all.into();
    status["foresight"]["jobs"] = json!([
        { "job": 10, "lacks": null },
        { "job": 11, "lacks": { "url": "s3://b/11.tar", "needed_in": 2.0, "arrives_in": 1.0 } },
        { "job": 12, "lacks": { "url": "s3://b/12.tar", "needed_in": 9.0, "arrives_in": 30.0 } },
        { "job": 1, "lacks": null },
    ]);
    status["jobs"][5]["progress"]["waiting_seconds"] = 62.0.into();
    let lines = Screen { status: &status, before: None, width: 120 }.lines();
    let of = |words: &str| lines.iter().find(|line| line.text.starts_with(words)).unwrap();
    assert!(lines[0].text.contains("  2 jobs, 9 ranks  "), "{lines:?}");
    assert_eq!(
        lines[1].text,
        "1 of 2 jobs wait; a rank of resnet does for 50 % of its time, for origin most."
    );
    assert_eq!(lines[2].text, "a rank of resnet waits now, 62 s so far.");
    let line = of("resnet");
    let cells: Vec<_> = line.text.split_whitespace().collect();
    assert_eq!(cells[..5], ["resnet", "(vision)", "8", "9875", "2.2"], "{line:?}");
    assert!(line.text.contains("50 %  origin 45 %, tier read 5 %"), "{line:?}");
    assert_eq!((line.look, of("calm").look), (Look::Bad, Look::Plain));
    // What is late is told first, though another is needed sooner.
    let late = of("  needed in");
    assert_eq!(
        (late.text.as_str(), late.look),
        ("  needed in 9.0 s, arrives in 30 s: s3://b/12.tar", Look::Bad)
    );
    assert_eq!(of("  waits now").text, "  waits now, 62 s so far");
    assert_eq!(lines.iter().filter(|line| line.text.starts_with("resnet")).count(), 1);
}

/// A shard that has no room before it is needed is no fault of its origin, nor of anything else.
#[test]
fn what_a_job_lacks_is_told_with_why_it_does_not_come() {
    let mut status = status();
    status["jobs"] = json!([job(1, "calm", 0.0)]);
    let lacks = |refused: Value| json!({ "job": 1, "shards": 9, "lacks": { "url": "s3://b/1.tar", "needed_in": 4.0, "refused": refused } });
    for (foreseen, told, look) in [
        (
            lacks("room".into()),
            "  needed in 4.0 s, it has no room before then: what is here is needed sooner, or a quota is full: s3://b/1.tar",
            Look::Aside,
        ),
        (
            lacks("origin".into()),
            "  needed in 4.0 s, its origin does not give it: s3://b/1.tar",
            Look::Bad,
        ),
        (json!({ "job": 1, "shards": 9 }), "  all it needs is here", Look::Aside),
        (
            json!({ "job": 1, "shards": 0 }),
            "  kept by its use: what it lacks is not known beforehand",
            Look::Aside,
        ),
    ] {
        status["foresight"]["jobs"] = json!([foreseen]);
        let lines = Screen { status: &status, before: None, width: 160 }.lines();
        let calm = lines.iter().position(|line| line.text.starts_with("calm")).unwrap();
        assert_eq!((lines[calm + 1].text.trim_end(), lines[calm + 1].look), (told, look));
    }
}

/// All of it is told before anything else, and none of it beside words that all is well.
#[test]
fn what_does_not_answer_is_no_good_news() {
    let calm = json!({ "jobs": [job(1, "calm", 0.0)] });
    let of = |what: Value| {
        let mut status = calm.clone();
        status.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        let (said, is_well) = Screen { status: &status, before: None, width: 120 }.verdict();
        (said.join(" "), is_well)
    };
    let well = |said: &str| (said.to_owned(), true);
    let sick = |said: &str| (said.to_owned(), false);
    let source =
        |down: bool| json!({ "sources": [{ "endpoint": "https://s3.example", "down": down }] });
    let tier = |limit: u64| json!({ "tiers": [{ "name": "nvme", "condition": "normal", "capacity_bytes": 1000, "limit_bytes": limit }] });
    assert_eq!(of(tier(1000)), well("No job waits for data."));
    assert_eq!(of(tier(950)), well("No job waits for data."));
    assert_eq!(of(tier(512)), sick("Others fill the disk of tier nvme: it may hold 512 B now."));
    let down = |mode: &str| json!({ "tiers": [{ "name": "nvme", "condition": "down", "mode": mode, "capacity_bytes": 1, "limit_bytes": 1 }] });
    assert_eq!(of(down("enabled")), sick("Tier nvme is down."));
    assert_eq!(of(down("disabled")), well("No job waits for data."));
    let filled = tier(950);
    let lines = Screen { status: &filled, before: None, width: 120 }.lines();
    let told = "others fill the disk: it may hold 950 B now";
    assert!(texts(&lines).iter().any(|line| line.contains(told)), "{lines:?}");
    let lacks = |lacks: Value| of(json!({ "foresight": { "lacks": lacks } }));
    assert_eq!(
        lacks(json!({ "cache": 1024, "bandwidth": 2048.0 })),
        sick("1.0 KiB more of cache, or 2.0 KiB/s more of link would let jobs read on.")
    );
    assert_eq!(
        lacks(json!({ "cache": null, "bandwidth": 2048.0 })),
        sick("2.0 KiB/s more of link would let jobs read on.")
    );
    assert_eq!(lacks(Value::Null), well("No job waits for data."));
    let mount = |hangs: bool| json!({ "mounts": [{ "mount": "/lustre", "hangs": hangs, "readers": [7, 8], "stuck": [8] }] });
    for fine in [json!({}), source(false), mount(false)] {
        assert_eq!(of(fine), well("No job waits for data."));
    }
    assert_eq!(of(source(true)), sick("https://s3.example does not answer."));
    assert_eq!(of(mount(true)), sick("/lustre hangs; readers stuck there: 1."));
    // In its first second, and later.
    let waits = |progress: Value| json!({ "jobs": [{ "name": "slow", "progress": progress }] });
    assert_eq!(
        of(waits(json!({ "waiting_seconds": 62.0 }))),
        sick("1 of 1 jobs wait. slow waits now, 62 s so far.")
    );
    let lately = json!({ "waited_share": 1.0, "waited_for": { "origin": 0.0 } });
    assert_eq!(
        of(waits(json!({ "waiting_seconds": 62.0, "lately": lately }))),
        sick("1 of 1 jobs wait; slow does for 100 % of its time. slow waits now, 62 s so far.")
    );
    assert_eq!(of(waits(json!({ "waiting_seconds": 0.2 }))), well("No job waits for data."));
    let status = mount(true);
    let lines = Screen { status: &status, before: None, width: 120 }.lines();
    let line = lines.iter().find(|line| line.text.starts_with("/lustre  ")).unwrap();
    assert_eq!((line.look, line.text.ends_with("2      1  hangs")), (Look::Bad, true), "{line:?}");
}

#[test]
fn it_fits_narrow_terminals_and_figures_stay() {
    let status = status();
    for width in [80, 60, 40] {
        let lines = Screen { status: &status, before: Some(&status), width }.lines();
        for line in &lines {
            assert!(measure_text_width(&line.text) <= width, "{width}: {line:?}");
        }
    }
    let lines = Screen { status: &status, before: None, width: 80 }.lines();
    let job = lines.iter().find(|line| line.text.starts_with("a-job")).unwrap();
    assert!(job.text.contains("1234") && job.text.contains("34 %"), "{job:?}");
    assert!(job.text.contains("origin 31"), "{job:?}");
}

#[test]
fn what_names_hold_does_nothing_to_the_terminal() {
    let mut status = status();
    status["jobs"][0]["name"] = "\x1b[2J\nforged".into();
    status["foresight"]["jobs"][0]["lacks"]["url"] = "s3://b/\x1b]0;x\x07.tar".into();
    let lines = Screen { status: &status, before: None, width: 100 }.lines();
    assert!(texts(&lines).iter().all(|text| !text.contains(char::is_control)), "{lines:?}");
}

#[test]
fn rates_are_of_the_time_between() {
    let at = |seconds: f64, bytes: u64| json!({ "uptime_seconds": seconds, "cache": { "origin_bytes": bytes } });
    let (before, now) = (at(1.0, 1024), at(3.0, 5 * 1024));
    let rates = |status, before| Screen { status, before: Some(before), width: 80 }.rates();
    let told = rates(&now, &before).unwrap();
    assert!(told.starts_with("2.0 KiB/s fetched, 0 B/s"), "{told}");
    assert_eq!(rates(&at(1.0, 0), &at(9.0, 5000)), None);
    assert!(!texts(&Screen { status: &at(1.0, 0), before: None, width: 80 }.lines()).is_empty());
}
