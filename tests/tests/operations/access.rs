//! Access control of a node: users, groups and tenants at every socket, with processes that the
//! kernel tells apart.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Output;

use forebay_client::{Address, Next};
use forebay_error::{Error, ErrorKind};
use forebay_testkit::shard;
use forebay_tests::{
    Epoch, Origin, SharedNode, TrainerJob, epoch, eventually, job, job_with, loader, next,
    played_error,
};
use forebay_wire::PROTOCOL;
use forebay_wire::frame::{self, Receiver};
use forebay_wire::message::{Begin, Open, Reply, Request};

const SIZES: std::ops::Range<usize> = 3_000..3_001;
const SAMPLES: u64 = 4;

/// Users and groups that no system has.
const ALICE: u32 = 44_301;
const BOB: u32 = 44_302;
const VISION: u32 = 44_401;
const STAFF: u32 = 44_402;
const ADMINS: u32 = 44_403;

/// A member of vision, somebody who is only served, an admin, and root.
const MEMBER: (u32, u32) = (ALICE, VISION);
const SERVED: (u32, u32) = (BOB, STAFF);
const ADMIN: (u32, u32) = (BOB, ADMINS);
const ROOT: (u32, u32) = (0, 0);

/// The daemon's own socket, and that of the tenant of pods.
const MAIN: &str = "run/d.sock";
const PODS: &str = "run/pods/f.sock";

struct Bench {
    origin: Origin,
    node: SharedNode,
}

impl Bench {
    fn new() -> Option<Self> {
        Self::with(&format!("groups = [{STAFF}]\nadmin_group = {ADMINS}"), |origin| {
            format!(
                "{}[[dataset]]\nname = 'secret'\nmatch = 's3://bucket/secret/**'\n\
                 [[dataset]]\nname = 'images'\nmatch = 's3://bucket/images/**'\n\
                 allow = {{ groups = [{VISION}] }}\n\
                 [[dataset]]\nname = 'texts'\nmatch = 's3://bucket/texts/**'\n\
                 allow = {{ tenants = ['pods'] }}\n\
                 [[dataset]]\nname = 'files'\nmatch = '{{}}/run/files/**'\n\
                 allow = {{ groups = [{VISION}] }}\n\
                 [[tenant]]\nname = 'pods'\nsessions = 2\nopens = '5/h'\n\
                 [[listen]]\npath = '{{}}/run/pods/f.sock'\ntenant = 'pods'\nmode = '0666'\n\
                 [[listen]]\npath = '{{}}/run/group.sock'\ntenant = 'pods'\ngroup = {}\n\
                 [[listen]]\npath = '{{}}/run/jobs.sock'\nmode = '0666'\n\
                 [[listen]]\npath = '{{}}/run/admin.sock'\nadmin = true\nmode = '0666'\n\
                 [audit]\npath = '{{}}/log/audit.jsonl'\n",
                origin.rule(),
                SharedNode::user()
            )
        })
    }

    fn with(daemon: &str, more: impl FnOnce(&Origin) -> String) -> Option<Self> {
        let origin = Origin::new();
        for folder in ["secret", "images", "texts", "other"] {
            fs::create_dir(origin.path(folder)).unwrap();
            origin.put(&format!("{folder}/0.tar"), &shard(SAMPLES, 0, &SIZES));
        }
        let node = SharedNode::new(daemon, &more(&origin))?;
        Some(Self { origin, node })
    }

    fn part(&self, url: &str) -> TrainerJob {
        let open = job(&self.origin, vec![url.to_owned()]);
        TrainerJob { open, shards: 1, samples: SAMPLES, sizes: SIZES }
    }

    fn play(&self, socket: &str, user: (u32, u32), url: &str) -> Output {
        self.node.play(socket, user, &self.part(url))
    }

    fn assert_served(&self, socket: &str, user: (u32, u32), url: &str) {
        let played = self.play(socket, user, url);
        assert!(played.status.success(), "{url}: {}", String::from_utf8_lossy(&played.stderr));
    }

    /// Asserts that it is refused, and returns the error.
    fn assert_refused(&self, socket: &str, user: (u32, u32), url: &str) -> Error {
        let error = played_error(&self.play(socket, user, url));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{url}: {error}");
        error
    }

    fn fills(&self) -> u64 {
        self.node.status()["cache"]["fills"].as_u64().unwrap()
    }

    fn forebay(&self, socket: &str, user: (u32, u32), arguments: &[&str]) -> (i32, String, String) {
        let output = self.node.forebay(socket, user, &self.origin.environment(), arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }
}

const IMAGE: &str = "s3://bucket/images/0.tar";
const TEXT: &str = "s3://bucket/texts/0.tar";
const SECRET: &str = "s3://bucket/secret/0.tar";
const OTHER: &str = "s3://bucket/other/0.tar";

/// Bears promise 8: a data set is for those whom its `allow` names, cached or not, and for admins.
#[test]
fn data_set_is_served_to_users_its_allow_names() {
    let Some(bench) = Bench::new() else { return };
    let error = bench.assert_refused(MAIN, SERVED, IMAGE);
    assert_eq!(error.place("dataset"), Some("images"), "{error}");
    assert!(error.advice().unwrap().contains("`allow`"), "{error}");
    assert_eq!(bench.origin.server.counts().requests, 0, "nobody was asked for it");
    bench.assert_served(MAIN, MEMBER, IMAGE);
    eventually("the shard is whole", || bench.fills() == 1);
    bench.assert_refused(MAIN, SERVED, IMAGE);
    for url in [SECRET, TEXT, OTHER, "s3://elsewhere/0.tar", "s3://bucket/images"] {
        let error = bench.assert_refused(MAIN, MEMBER, url);
        // By `allow`, not for want of a [[source]].
        assert_eq!(error.place("url"), Some(url), "{error}");
        assert!(error.advice().unwrap().contains("`allow`"), "{error}");
    }
    // Whether there is anything behind a URL is not told.
    let there = bench.assert_refused(MAIN, MEMBER, SECRET).to_string();
    let nowhere = bench.assert_refused(MAIN, MEMBER, "s3://bucket/secret/none.tar");
    assert_eq!(there.replace("/0.tar", "/"), nowhere.to_string().replace("/none.tar", "/"));
    for user in [ROOT, ADMIN, (SharedNode::user(), SharedNode::user())] {
        for url in [SECRET, IMAGE, OTHER] {
            bench.assert_served(MAIN, user, url);
        }
    }
    // Lines are written beside what they tell of.
    eventually("every refusal is noted", || {
        let lines = bench.node.audit();
        let of = |url: &str, uid: u32| {
            let is = |line: &&serde_json::Value| {
                line["url"] == url && line["uid"] == uid && line["outcome"] == "denied"
            };
            lines.iter().filter(is).count()
        };
        (of(IMAGE, BOB), of(SECRET, ALICE), of(OTHER, ALICE)) == (2, 2, 1)
    });
    let lines = bench.node.audit();
    let first = lines.iter().find(|line| line["url"] == IMAGE).unwrap();
    assert_eq!((&first["event"], &first["dataset"]), (&"open".into(), &"images".into()));
    assert!(first["pid"].is_u64() && first["by"].as_str().unwrap().ends_with(MAIN), "{first}");
    let text = fs::read_to_string(bench.node.path("log/audit.jsonl")).unwrap();
    assert!(!text.contains("SK"), "{text}");
}

/// Bears promise 8: one that is cached is served by what `allow` says, whatever credentials a job
/// has, and another's store is never meant by it.
#[test]
fn job_credentials_and_endpoint_do_not_change_a_url() {
    let Some(bench) = Bench::new() else { return };
    let elsewhere = Origin::new();
    fs::create_dir(elsewhere.path("images")).unwrap();
    elsewhere.put("images/0.tar", &shard(SAMPLES, 7, &SIZES));
    bench.assert_served(MAIN, MEMBER, IMAGE);
    let with = |environment: BTreeMap<String, String>| {
        let open = job_with(environment, vec![IMAGE.to_owned()]);
        bench.node.play(
            MAIN,
            MEMBER,
            &TrainerJob { open, shards: 1, samples: SAMPLES, sizes: SIZES },
        )
    };
    for environment in [BTreeMap::new(), elsewhere.environment()] {
        let played = with(environment);
        assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
    }
    assert_eq!(elsewhere.server.counts().requests, 0);
}

/// Where no `[[source]]` says which store is meant, a job of others may not say it either.
#[test]
fn store_without_a_source_rule_is_denied_to_others() {
    for (source, has_endpoint, key) in [
        ("", false, None),
        ("[[source]]\nmatch = 's3://bucket/'\n", false, Some("region")),
        ("[[source]]\nmatch = 's3://bucket/'\nregion = 'r'\n", true, None),
    ] {
        let more = |_: &Origin| {
            format!(
                "{source}[[dataset]]\nname = 'all'\nmatch = '**'\nallow = {{ groups = [{VISION}] }}\n"
            )
        };
        let Some(bench) = Bench::with("", more) else { return };
        let mut part = bench.part(IMAGE);
        if !has_endpoint {
            part.open.origin.remove("AWS_ENDPOINT_URL");
        }
        let error = played_error(&bench.node.play(MAIN, MEMBER, &part));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert_eq!(error.place("key"), key, "{error}");
        let words = if has_endpoint { "AWS_ENDPOINT_URL" } else { "[[source]]" };
        assert!(error.to_string().contains(words), "{error}");
        let error = bench.assert_refused(MAIN, MEMBER, "http://127.0.0.1:1/0.tar");
        assert!(error.to_string().contains("[[source]]"), "{error}");
        assert_eq!(bench.origin.server.counts().requests, 0);
    }
}

/// Bears promise 8: a shard has one URL by which others get it.
#[test]
fn other_spellings_of_a_url_are_denied_too() {
    let more = |origin: &Origin| {
        let http = origin.server.endpoint();
        format!(
            "{}[[source]]\nmatch = '{http}/'\n\
             [[dataset]]\nname = 'secret'\nmatch = 's3://bucket/secret/**'\n\
             [[dataset]]\nname = 'web'\nmatch = '{http}/bucket/secret/**'\n\
             [[dataset]]\nname = 'all'\nmatch = '**'\nallow = {{ groups = [{VISION}] }}\n",
            origin.rule()
        )
    };
    let Some(bench) = Bench::with("", more) else { return };
    let http = bench.origin.server.endpoint();
    bench.assert_served(MAIN, MEMBER, IMAGE);
    bench.assert_served(MAIN, MEMBER, &format!("{http}/bucket/images/0.tar"));
    let port = http.rsplit(':').next().unwrap();
    eventually("nothing is under way", || bench.fills() == 2);
    let before = bench.origin.server.counts().requests;
    for url in [
        "s3://bucket/secret/0.tar",
        "s3://bucket//secret/0.tar",
        "s3://bucket/images/../secret/0.tar",
        "s3://bucket/./secret/0.tar",
        "s3://bucket/secret//0.tar",
        "s3://bucket/secret/0.tar/",
        "s3://Bucket/secret/0.tar",
        "S3://bucket/secret/0.tar",
        "s3://bucket/secret/0.tar?x",
    ] {
        bench.assert_refused(MAIN, MEMBER, url);
    }
    for path in [
        "/bucket/secret/0.tar",
        "/bucket/secret/0.tar?x",
        "//bucket//secret/0.tar",
        "/bucket/images/../secret/0.tar",
        "/bucket/images/%2e%2e/secret/0.tar",
        "/bucket/%73ecret/0.tar",
        "/bucket/secret%2F0.tar",
        "/bucket/secret/0.tar#x",
    ] {
        bench.assert_refused(MAIN, MEMBER, &format!("{http}{path}"));
    }
    bench.assert_refused(MAIN, MEMBER, &format!("HTTP://127.0.0.1:{port}/bucket/secret/0.tar"));
    bench.assert_refused(MAIN, MEMBER, &format!("http://127.1:{port}/bucket/secret/0.tar"));
    assert_eq!(bench.origin.server.counts().requests, before, "nobody was asked for any");
}

/// Bears promise 8: each way to learn of a shard asks the same question.
#[test]
fn every_interface_checks_access() {
    let Some(bench) = Bench::new() else { return };
    fs::set_permissions(bench.node.path("run"), fs::Permissions::from_mode(0o777)).unwrap();
    let manifest = bench.node.path("run/m.json");
    let index = |user: (u32, u32), url: &str| {
        let _ = fs::remove_file(&manifest);
        bench.forebay(MAIN, user, &["index", url, "-o", manifest.to_str().unwrap()])
    };
    for (user, url, code) in
        [(MEMBER, IMAGE, 0), (MEMBER, SECRET, 4), (SERVED, IMAGE, 4), (ADMIN, SECRET, 0)]
    {
        let (ended, _, said) = index(user, url);
        assert_eq!(ended, code, "{user:?} {url}: {said}");
    }
    // Of what a pattern means, those are told that the job may read.
    let (code, _, said) = index(MEMBER, "s3://bucket/**/*.tar");
    assert_eq!(code, 0, "{said}");
    let listed = fs::read_to_string(&manifest).unwrap();
    assert!(
        listed.contains(IMAGE) && !listed.contains("secret") && !listed.contains("texts"),
        "{listed}"
    );
    assert_eq!(index(MEMBER, "s3://bucket/secret/*.tar").0, 4);
    let before = bench.origin.server.counts().requests;
    assert_eq!(index(SERVED, "s3://bucket/**/*.tar").0, 4);
    assert_eq!(bench.origin.server.counts().requests, before, "what nobody may see is not listed");
    // Nothing that may be seen, and nothing: that is told alike.
    let nothing = |pattern: &str| {
        let (code, _, said) = index(MEMBER, pattern);
        assert_eq!(code, 1, "{said}");
        said.replace(pattern, "PATTERN")
    };
    assert_eq!(nothing("s3://bucket/*ecret/*.tar"), nothing("s3://bucket/*where/*.tar"));
    // Another's verbs.
    for verb in [
        &["status"][..],
        &["tier", "drain", "nvme"],
        &["dataset", "evict", IMAGE],
        &["dataset", "warm", IMAGE],
        &["dataset", "check", IMAGE],
        &["scrub"],
    ] {
        let (code, _, said) = bench.forebay(MAIN, MEMBER, verb);
        assert_eq!(code, 4, "{verb:?}: {said}");
    }
    for user in [ADMIN, ROOT] {
        assert_eq!(bench.forebay(MAIN, user, &["dataset", "evict", IMAGE]).0, 0);
    }
    let told = |event: &str, outcome: &str, uid: u32| {
        let lines = bench.node.audit();
        lines.iter().any(|l| l["event"] == event && l["outcome"] == outcome && l["uid"] == uid)
    };
    for event in ["status", "tier", "evict", "warm", "check", "scrub", "read", "list"] {
        eventually(event, || told(event, "denied", ALICE));
    }
    eventually("what admins did is noted", || {
        told("evict", "done", BOB) && told("evict", "done", 0)
    });
}

/// A job's own rights decide about the files its process opens; `allow` narrows them and adds
/// nothing.
#[test]
fn allow_restricts_files_and_never_grants_them() {
    let Some(bench) = Bench::new() else { return };
    for folder in ["files", "free"] {
        let folder = bench.node.path("run").join(folder);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("0.tar"), shard(SAMPLES, 0, &SIZES)).unwrap();
    }
    let kept = bench.node.path("run/files/0.tar").display().to_string();
    let free = bench.node.path("run/free/0.tar").display().to_string();
    bench.assert_served(MAIN, MEMBER, &kept);
    bench.assert_served(MAIN, SERVED, &free);
    for url in [kept.clone(), format!("file://{kept}"), kept.replace("/files", "//./free/../files")]
    {
        let error = bench.assert_refused(MAIN, SERVED, &url);
        assert_eq!(error.place("dataset"), Some("files"), "{error}");
    }
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o600)).unwrap();
    bench.assert_refused(MAIN, MEMBER, &kept);
}

/// Bears promise 8: by a tenant's socket everybody is that tenant, root and the daemon's own user
/// included, whatever a client says of itself.
#[test]
fn tenant_socket_makes_every_peer_that_tenant() {
    let Some(bench) = Bench::new() else { return };
    let found = fs::metadata(bench.node.path(PODS)).unwrap();
    assert_eq!((found.mode() & 0o777, found.uid()), (0o666, SharedNode::user()));
    for user in [ROOT, (SharedNode::user(), SharedNode::user()), (ALICE, VISION), (BOB, ADMINS)] {
        assert_eq!(bench.forebay(PODS, user, &["status"]).0, 4, "{user:?}");
    }
    bench.assert_served(PODS, ROOT, TEXT);
    bench.assert_refused(PODS, (ALICE, VISION), IMAGE);
    bench.assert_refused(PODS, ROOT, SECRET);
    let tenants = bench.node.status()["cache"]["tenants"].clone();
    assert_eq!((&tenants[0]["name"], &tenants[0]["shards"]), (&"pods".into(), &1.into()));
    // As root, who lies in every word there is.
    let socket = UnixStream::connect(bench.node.path(PODS)).unwrap();
    let mut receiver = Receiver::default();
    let release = "uid=0 admin=true \"tenant\":null\u{1b}[2J\n{}".to_owned();
    let mut open = bench.part(SECRET).open;
    open.job = "forebay-admin".to_owned();
    let list =
        |pattern: &str| Request::List { pattern: pattern.to_owned(), origin: BTreeMap::new() };
    for request in [
        Request::Hello { protocol: PROTOCOL, release },
        list("s3://bucket/secret\"}\n{\"event\":\"forged\"/*.tar"),
        Request::Open(Box::new(open)),
    ] {
        frame::send(&socket, &frame::encode(&request).unwrap(), &[]).unwrap();
    }
    assert!(matches!(receiver.receive(&socket).unwrap(), Reply::Welcome { .. }));
    for _ in 0..2 {
        let Reply::Failed { error, .. } = receiver.receive(&socket).unwrap() else { panic!() };
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    eventually("the pattern is noted", || {
        bench.node.audit().iter().any(|line| line["event"] == "list")
    });
    let lines = bench.node.audit();
    assert!(lines.iter().all(|line| line["event"] != "forged"), "{lines:#?}");
    let list = lines.iter().find(|line| line["event"] == "list").unwrap();
    assert_eq!((&list["uid"], &list["tenant"]), (&0.into(), &"pods".into()));
    assert!(list["url"].as_str().unwrap().starts_with("s3://bucket/secret\"}"), "{list}");
}

/// Memory of a tier has shards of everybody: a trainer maps it only if it may read all of them.
#[test]
fn memory_of_a_tier_is_lent_to_those_who_read_all() {
    let Some(bench) = Bench::with(&format!("groups = [{STAFF}]"), |origin| {
        format!(
            "{}[[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '32MiB'\n\
             [[dataset]]\nname = 'texts'\nmatch = 's3://bucket/texts/**'\n\
             allow = {{ tenants = ['pods'] }}\n[[tenant]]\nname = 'pods'\n\
             [[listen]]\npath = '{{}}/run/pods.sock'\ntenant = 'pods'\nmode = '0666'\n",
            origin.rule()
        )
    }) else {
        return;
    };
    // A shard moves when it is used again after it was kept.
    let moved = || {
        bench.assert_served(MAIN, ROOT, TEXT);
        let tiers = bench.node.status()["tiers"].clone();
        tiers.as_array().unwrap().iter().any(|tier| tier["moved_in"] == 1)
    };
    eventually("the shard is in memory", moved);
    eventually("root reads it in place", || is_lent(&bench, MAIN));
    assert!(!is_lent(&bench, "run/pods.sock"));
}

/// Plays an epoch by a trainer at `socket` that asks for memory of tiers. Returns true if it got
/// some, and a batch there.
fn is_lent(bench: &Bench, socket: &str) -> bool {
    let socket = UnixStream::connect(bench.node.path(socket)).unwrap();
    let (mut receiver, run, begin) = (Receiver::default(), 1, Begin::at(0, 0));
    for request in [
        Request::Hello { protocol: PROTOCOL, release: String::new() },
        Request::Borrow,
        Request::Open(Box::new(bench.part(TEXT).open)),
        Request::Play { run, begin },
    ] {
        frame::send(&socket, &frame::encode(&request).unwrap(), &[]).unwrap();
    }
    let (mut has_memory, mut lent, mut batches) = (false, 0, 0);
    loop {
        let batch = match receiver.receive(&socket).unwrap() {
            Reply::Memory { .. } => {
                assert_eq!(receiver.take_descriptors().len(), 2, "the memory and a pipe");
                has_memory = true;
                continue;
            }
            Reply::Lent { batch, memories, .. } => {
                assert!(has_memory && memories.iter().all(|memory| *memory > 0));
                lent += 1;
                batch
            }
            Reply::Placed { batch, .. } => batch,
            Reply::End(_) => break,
            Reply::Slab { .. } => {
                receiver.take_descriptor().unwrap();
                continue;
            }
            Reply::Welcome { .. } | Reply::Opened(_) | Reply::Learnt { .. } => continue,
            other => panic!("{other:?}"),
        };
        batches += 1;
        let release = Request::Release { slab: batch.slab, slot: batch.slot };
        frame::send(&socket, &frame::encode(&release).unwrap(), &[]).unwrap();
    }
    assert_eq!((batches, lent > 0), (1, has_memory));
    has_memory
}

/// The socket's mode decides who may connect, the configuration who is an admin there; the socket
/// goes with the daemon, and comes back with the next.
#[test]
fn each_socket_has_its_own_access_rules() {
    let Some(mut bench) = Bench::new() else { return };
    let group = "run/group.sock";
    assert_eq!(fs::metadata(bench.node.path(group)).unwrap().mode() & 0o777, 0o660);
    bench.assert_served(group, (ALICE, SharedNode::user()), TEXT);
    let error = bench.assert_refused(group, (ALICE, VISION), TEXT);
    let places = [error.place("socket").is_some(), error.place("uid").is_some()];
    assert_eq!(places, [true, false], "not even let in: {error}");
    let evict = |socket: &str, user| bench.forebay(socket, user, &["dataset", "evict", TEXT]).0;
    for (socket, code) in [("run/admin.sock", 0), ("run/jobs.sock", 4), (group, 4)] {
        assert_eq!((evict(socket, ROOT), socket), (code, socket));
        assert_eq!((evict(socket, ADMIN), socket), (code, socket));
    }
    bench.assert_served("run/jobs.sock", MEMBER, IMAGE);
    bench.assert_refused("run/jobs.sock", ROOT, IMAGE);
    bench.assert_refused("run/jobs.sock", MEMBER, SECRET);
    bench.node.end();
    for socket in [MAIN, PODS, group, "run/jobs.sock", "run/admin.sock"] {
        assert!(!bench.node.path(socket).exists(), "{socket}");
    }
    bench.node.start();
    bench.assert_served(PODS, ROOT, TEXT);
}

/// The kernel's stand-in for users whom this machine does not know is nobody, whatever group it
/// shows.
#[test]
fn overflow_user_gets_no_access() {
    let Some(bench) = Bench::new() else { return };
    let unknown: u32 =
        fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap().trim().parse().unwrap();
    for (socket, gid) in [(MAIN, VISION), (MAIN, ADMINS), (PODS, VISION)] {
        bench.assert_refused(socket, (unknown, gid), TEXT);
    }
    let error = bench.assert_refused(MAIN, (ALICE, ALICE), TEXT);
    let uid = ALICE.to_string();
    assert_eq!(error.place("uid"), Some(&*uid), "in no group that is named: {error}");
    eventually("both are noted", || {
        let denied = |uid: u32| {
            let lines = bench.node.audit();
            lines.iter().any(|line| line["event"] == "connect" && line["uid"] == uid)
        };
        denied(unknown) && denied(ALICE)
    });
}

/// A user's number behind a tenant's socket is not that user: what its commands say is another's.
#[test]
fn command_output_is_not_shared_across_user_namespaces() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.node.path("run/0.tar");
    fs::write(&file, shard(SAMPLES, 0, &SIZES)).unwrap();
    let url = format!("pipe:cat {}", file.display());
    bench.assert_served(MAIN, SERVED, &url);
    eventually("the shard is whole", || bench.fills() == 1);
    bench.assert_served(MAIN, SERVED, &url);
    bench.assert_served(PODS, SERVED, &url);
    eventually("it is another copy", || bench.fills() == 2);
}

/// Bears promise 8: an `allow` binds a job that runs, too, cached or not, from the moment that it
/// is in force.
#[test]
fn changed_allow_applies_to_running_jobs() {
    const TEXTS: u64 = 40;
    let Some(bench) = Bench::new() else { return };
    let texts: Vec<_> = (0..TEXTS).map(|n| format!("s3://bucket/texts/{n}.tar")).collect();
    for n in 0..TEXTS {
        bench.origin.put(&format!("texts/{n}.tar"), &shard(SAMPLES, n, &SIZES));
    }
    let path = bench.node.path("forebay.toml");
    let before = fs::read_to_string(&path).unwrap();
    let apply = |text: &str| {
        fs::write(&path, text).unwrap();
        let (code, out, error) = bench.forebay(MAIN, ROOT, &["config", "apply"]);
        assert_eq!(code, 0, "{out}{error}");
    };
    let address = || Address::Unix(bench.node.path(PODS));
    let open = || Open { prefetch: 1, ..job(&bench.origin, texts.clone()) };
    let running = loader(address(), open()).unwrap();
    running.start(Begin::at(0, 0)).unwrap();
    let mut had = Epoch::default();
    let Next::Batch(batch) = next(&running).unwrap() else { panic!("an epoch without batches") };
    had.take(&batch);
    drop(batch);
    // All of them are cached by another's hand: that opens nothing.
    let part = TrainerJob { open: open(), shards: TEXTS as u32, samples: SAMPLES, sizes: SIZES };
    assert!(bench.node.play(MAIN, ROOT, &part).status.success());
    apply(&before.replace("tenants = ['pods']", &format!("groups = [{VISION}]")));
    let error = loop {
        match next(&running) {
            Ok(Next::Batch(batch)) => had.take(&batch),
            Ok(Next::End(mut end)) => break end.errors.remove(0),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!((had.samples.len() as u64) < TEXTS * SAMPLES / 2, "{} were served", had.samples.len());
    had.assert_bytes(&SIZES);
    eventually("it is noted", || {
        let denied = |line: &serde_json::Value| {
            line["outcome"] == "denied" && line["tenant"] == "pods" && line["dataset"] == "texts"
        };
        bench.node.audit().iter().any(denied)
    });
    drop(running);
    bench.assert_refused(PODS, ROOT, TEXT);
    bench.assert_served(MAIN, MEMBER, TEXT);
    // And back.
    apply(&before);
    bench.assert_served(PODS, ROOT, TEXT);
    bench.assert_refused(MAIN, MEMBER, TEXT);
}

/// However many connect, nobody takes all the places: one tenant leaves some to others, and all of
/// them together to who administers.
#[test]
fn admins_connect_when_all_other_places_are_taken() {
    /// By one tenant's socket, and of others than admins together.
    const OF_A_TENANT: usize = 640;
    const OF_OTHERS: usize = 960;
    let more = "[[tenant]]\nname = 'pods'\n[[tenant]]\nname = 'batch'\n\
                [[listen]]\npath = '{}/run/pods.sock'\ntenant = 'pods'\n\
                [[listen]]\npath = '{}/run/batch.sock'\ntenant = 'batch'\n\
                [audit]\npath = '{}/log/audit.jsonl'\n";
    let Some(node) = SharedNode::new("", more) else { return };
    let connect = |socket: &str| {
        let socket = UnixStream::connect(node.path(socket)).unwrap();
        let hello = Request::Hello { protocol: PROTOCOL, release: "test".to_owned() };
        // Who was turned away has hung up.
        let _ = frame::send(&socket, &frame::encode(&hello).unwrap(), &[]);
        let reply: Reply = Receiver::default().receive(&socket).unwrap();
        (socket, reply)
    };
    let mut connected = Vec::new();
    let mut fill = |socket: &str, limit: usize| {
        while connected.len() < limit {
            let (socket, reply) = connect(socket);
            assert!(
                matches!(reply, Reply::Welcome { .. }),
                "{} are in: {reply:?}",
                connected.len()
            );
            connected.push(socket);
        }
    };
    let refused = |socket: &str, limit: usize| {
        let (_, reply) = connect(socket);
        let Reply::Failed { error, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.place("limit"), Some(&*limit.to_string()), "{error}");
    };
    fill("run/pods.sock", OF_A_TENANT);
    refused("run/pods.sock", OF_A_TENANT);
    fill("run/batch.sock", OF_OTHERS);
    refused("run/batch.sock", OF_OTHERS);
    refused("run/pods.sock", OF_A_TENANT);
    // An admin stops what is too much.
    assert!(node.status()["pid"].is_u64());
    assert_eq!(
        node.forebay("run/d.sock", ROOT, &BTreeMap::new(), &["job", "ls"]).status.code(),
        Some(0)
    );
    let denied =
        |line: &serde_json::Value| line["event"] == "connect" && line["outcome"] == "denied";
    eventually("it is noted", || node.audit().iter().filter(|line| denied(line)).count() == 3);
    // A place that comes free is another's.
    connected.truncate(OF_OTHERS - 1);
    eventually("there is room for one", || {
        let (socket, reply) = connect("run/batch.sock");
        let welcome = matches!(reply, Reply::Welcome { .. });
        connected.extend(welcome.then_some(socket));
        welcome
    });
    refused("run/batch.sock", OF_OTHERS);
}

/// A tenant has as many jobs as it may, opened as often as they may be; others are not touched by
/// it.
#[test]
fn tenant_jobs_are_limited() {
    let Some(bench) = Bench::new() else { return };
    let address = || Address::Unix(bench.node.path(PODS));
    let open = || bench.part(TEXT).open;
    let first = loader(address(), open()).unwrap();
    first.start(Begin::at(0, 0)).unwrap();
    drop(next(&first).unwrap());
    let second = loader(address(), open()).unwrap();
    let error = loader(address(), open()).err().unwrap();
    assert_eq!((error.kind(), error.place("sessions")), (ErrorKind::Unavailable, Some("2")));
    assert_eq!(error.place("tenant"), Some("pods"));
    let root = Address::Unix(bench.node.socket());
    assert_eq!(epoch(root, open()).unwrap().samples.len() as u64, SAMPLES);
    drop((first, second));
    eventually("their places are free", || {
        bench.node.status()["jobs"].as_array().unwrap().is_empty()
    });
    // Five an hour, of which two are used.
    for _ in 0..3 {
        epoch(address(), open()).unwrap();
        eventually("it left", || bench.node.status()["jobs"].as_array().unwrap().is_empty());
    }
    let error = loader(address(), open()).err().unwrap();
    assert_eq!((error.kind(), error.place("opens")), (ErrorKind::Unavailable, Some("5/h")));
    assert!(error.place("again_in_ms").is_some(), "{error}");
    // They are written beside what they tell of.
    eventually("both refusals are noted", || {
        bench.node.audit().iter().filter(|line| line["event"] == "open").count() == 2
    });
}
