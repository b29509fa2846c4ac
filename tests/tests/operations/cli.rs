//! The command line as scripts see it: exit codes, documents, and what is refused before work
//! starts.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_client::{Address, Deadline, LOG_MAX, Launch, RuntimeDirectory};
use forebay_error::{ErrorKind, Problem};
use forebay_testkit::is_root;
use forebay_tests::{Daemon, Ended, PATIENCE, UserHome, eventually, run};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ACTOR;

fn assert_ends(command: Command, code: i32, word: &str) {
    let shown = format!("{command:?}");
    let ended = run(command);
    assert_eq!(ended.code, code, "{shown}: {ended:?}");
    assert!(ended.err.contains(word), "{shown}: no {word:?} in {}", ended.err);
    assert!(ended.out.is_empty(), "{shown}: {}", ended.out);
}

/// A folder of three samples.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, len) in [("a.jpg", 900), ("a.cls", 1), ("b.jpg", 700), ("c.jpg", 100)] {
        fs::write(folder.path().join(name), vec![b'7'; len]).unwrap();
    }
    folder
}

#[test]
fn wrong_usage_exits_with_2_and_starts_nothing() {
    let home = UserHome::new(ACTOR);
    let starvation = |more: [&'static str; 2]| {
        ["bench", "starvation", "/x.tar", "--daemon", "embedded"].into_iter().chain(more).collect()
    };
    let usage: Vec<(Vec<&str>, &str)> = vec![
        (vec![], "Usage"),
        (vec!["no-such-verb"], "no-such-verb"),
        (vec!["status", "--daemon", "bogus"], "embedded"),
        (vec!["status", "--daemon", "unix:"], "embedded"),
        (vec!["index", "/x.tar"], "--output"),
        (vec!["index", "/{0..", "-o", "m.json"], "urls"),
        (vec!["index", "/x.tar", "-o", "m.json", "--bandwidth", "10Gb/s"], "10Gbit/s"),
        (vec!["index", "pipe:cat /x.tar", "-o", "m.json"], "allow_pipe=True"),
        (vec!["dataset", "warm"], "URLS"),
        (vec!["dataset", "warm", "/x.tar", "--bandwidth", "fast"], "10Gbit/s"),
        (vec!["dataset", "warm", "/x.tar", "--stop", "1"], "--stop"),
        (vec!["dataset", "warm", "/x.tar", "--wait", "--dry-run"], "--dry-run"),
        (vec!["dataset", "check"], "URLS"),
        (vec!["dataset", "check", "/{0..", "--verify"], "urls"),
        (vec!["pack", "/tmp", "-o", "x.tar"], "{:06d}"),
        (vec!["pack", "/tmp", "--samples", "0"], "--samples"),
        (vec!["pack", "/tmp", "--bytes", "0"], "one sample"),
        (vec!["pack", "/tmp", "--bytes", "many"], "--bytes"),
        (vec!["pack", "/tmp", "--daemon", "embedded"], "--daemon"),
        (vec!["pack", "/tmp", "--field", "image"], "COLUMN=NAME"),
        (vec!["pack", "/tmp", "--key", "id"], "--key"),
        (vec!["pack", "/x.tar", "--classes"], "--classes"),
        (vec!["daemon", "--daemon", "embedded"], "--daemon"),
        (vec!["daemon", "--capacity", "1GB"], "--embedded"),
        (vec!["daemon", "--embedded", "--capacity", "lots"], "--capacity"),
        (starvation(["--profile", "nope"]), "resnet50-h100"),
        (starvation(["--threads", "0"]), "--threads"),
        (starvation(["--threads", "4000000000"]), "--threads"),
        (starvation(["--prefetch", "0"]), "--prefetch"),
        (starvation(["--prefetch", "4000000000"]), "--prefetch"),
        (starvation(["--batch-size", "0"]), "--batch-size"),
        (starvation(["--epochs", "0"]), "--epochs"),
        (starvation(["--steps", "1"]), "--steps"),
        (starvation(["--step", "1e300"]), "3600"),
        (starvation(["--step", "nan"]), "3600"),
        (starvation(["--step=-1", "--raw"]), "3600"),
    ];
    for (arguments, word) in usage {
        assert_ends(home.forebay(&arguments), 2, word);
    }
    let mut command = home.forebay(&["status"]);
    command.env("FOREBAY_DAEMON", "bogus");
    assert_ends(command, 2, "embedded");
    let mut command = home.forebay(&["daemon", "--embedded"]);
    command.env("FOREBAY_CAPACITY", "lots");
    assert_ends(command, 2, "FOREBAY_CAPACITY");
    // Nor does a client that would start a daemon, or find one.
    let mut command = home.forebay(&["index", "/x.tar", "-o", "/tmp/m.json"]);
    command.env("FOREBAY_CAPACITY", "lots");
    assert_ends(command, 2, "FOREBAY_CAPACITY");
    assert!(home.daemons().is_empty());
}

#[test]
fn every_verb_prints_its_version() {
    let home = UserHome::new(ACTOR);
    for verb in [&["--version"][..], &["daemon", "--version"], &["bench", "starvation", "-V"]] {
        let told = run(home.forebay(verb));
        assert_eq!(told.code, 0, "{told:?}");
        assert!(told.out.ends_with(&format!("{}\n", env!("CARGO_PKG_VERSION"))), "{told:?}");
    }
}

#[test]
fn absent_daemon_exits_with_3() {
    let home = UserHome::new(ACTOR);
    let nowhere = ["--daemon", "unix:/no/such/forebayd.sock"];
    for verb in [
        vec!["status"],
        vec!["index", "/x.tar", "-o", "/tmp/m.json"],
        vec!["bench", "starvation", "/x.tar"],
        vec!["dataset", "warm", "/x.tar"],
        vec!["dataset", "warm", "--stop", "1"],
        vec!["dataset", "check", "/x.tar"],
        vec!["checkpoint", "wait", "s3://b/x"],
        vec!["checkpoint", "rm", "s3://b/x"],
        vec!["checkpoint", "push", "/tmp", "s3://b/x"],
        vec!["checkpoint", "restore", "s3://b/x", "/tmp/never"],
    ] {
        assert_ends(home.forebay(&[&verb[..], &nowhere].concat()), 3, "/no/such");
    }
    assert_ends(home.forebay(&["status", "--daemon", "embedded"]), 3, "forebay daemon");
    assert!(home.daemons().is_empty());
}

#[test]
fn errors_of_json_verbs_are_documents() {
    let home = UserHome::new(ACTOR);
    let nowhere = "unix:/no/such\u{9b}31m/forebayd.sock";
    for verb in [&["status"][..], &["job", "ls"], &["dataset", "check", "/x.tar"], &["cost"]] {
        let ended = run(home.forebay(&[verb, &["--json", "--daemon", nowhere]].concat()));
        assert_eq!((ended.code, &*ended.out), (3, ""), "{ended:?}");
        assert!(!ended.err.contains('\u{9b}'), "{ended:?}");
        let error = serde_json::from_str::<Problem>(&ended.err).unwrap().into_error();
        assert_eq!(error.place("socket"), nowhere.strip_prefix("unix:"), "{error:?}");
    }
}

#[test]
fn daemon_of_another_user_exits_with_4() {
    if !is_root("a client is another user than the daemon") {
        return;
    }
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let home = UserHome::new(ACTOR);
    // Others may look for it, not connect.
    fs::set_permissions(daemon.socket().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    // Its own home, so that nothing but the socket is closed to it.
    let owned = TempDir::new().unwrap();
    std::os::unix::fs::chown(owned.path(), Some(65_534), Some(65_534)).unwrap();
    let actor = owned.path().join("program");
    // By a process of its own: a test beside this one that starts a program while the copy is open
    // for writing would keep it busy.
    assert!(Command::new("cp").arg(ACTOR).arg(&actor).status().unwrap().success());
    let address = format!("unix:{}", daemon.socket().display());
    let mut command = Command::new(actor);
    command.args(["status", "--daemon", &address]).env("XDG_RUNTIME_DIR", owned.path()).uid(65_534);
    assert_ends(command, 4, "d.sock");
    assert_eq!(run(home.forebay(&["status", "--daemon", &address])).code, 0);
}

/// The variable is for embedded daemons; a node daemon beside it takes its configuration. That its
/// socket is taken is no want of a daemon.
#[test]
fn node_daemon_uses_only_its_configuration() {
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let other = Daemon::disk();
    let config = other.path().join("forebay.toml");
    let text = format!(
        "[daemon]\nsocket = {:?}\nmemory = \"256MiB\"\n\
         [[tier]]\nname = \"nvme\"\npath = {:?}\ncapacity = \"1GiB\"\n",
        daemon.socket(),
        other.path().join("cache"),
    );
    fs::write(&config, text).unwrap();
    let home = UserHome::new(ACTOR);
    let arguments = ["daemon", "--config", config.to_str().unwrap()];
    for capacity in ["1GB", "lots", ""] {
        let mut command = home.forebay(&arguments);
        command.env("FOREBAY_CAPACITY", capacity);
        assert_ends(command, 1, "another daemon listens");
    }
    let absent = home.forebay(&["daemon", "--config", "/no/such/forebay.toml"]);
    assert_ends(absent, 1, "[[tier]]");
}

#[test]
fn index_and_pack_print_json_documents() {
    let home = UserHome::new(ACTOR);
    let (input, output) = (folder(), TempDir::new().unwrap());
    let pattern = output.path().join("made/o-{:02d}.tar");
    let pack = |more: &[&str]| {
        let given = [input.path(), &pattern].map(|path: &Path| path.to_str().unwrap());
        let packed = ["pack", given[0], "-o", given[1], "--samples", "2", "--json"];
        run(home.forebay(&[&packed, more].concat()))
    };
    let document = |ended: &Ended| -> Value {
        assert_eq!(ended.code, 0, "{ended:?}");
        serde_json::from_str(&ended.out).unwrap()
    };
    let mut plan = document(&pack(&["--dry-run"]));
    assert_eq!(fs::read_dir(output.path()).unwrap().count(), 0);
    let packed = document(&pack(&[]));
    assert_eq!(plan["dry_run"], true);
    plan["dry_run"] = false.into();
    assert_eq!(plan, packed);
    let shards: Vec<_> = ["made/o-00.tar", "made/o-01.tar"].map(|n| output.path().join(n)).into();
    let sizes: Vec<u64> = shards.iter().map(|path| path.metadata().unwrap().len()).collect();
    let each =
        |n: usize, samples| json!({"path": shards[n], "samples": samples, "bytes": sizes[n]});
    assert_eq!(packed["shards"], json!([each(0, 2), each(1, 1)]));
    assert_eq!((&packed["samples"], &packed["bytes"]), (&3.into(), &(sizes[0] + sizes[1]).into()));
    // Packing again has nothing to do: the plan says so too.
    for more in [&["--dry-run"][..], &[]] {
        assert_eq!(document(&pack(more))["kept"], 2);
    }
    assert_eq!(packed["kept"], 0);

    let manifest = output.path().join("m.json");
    let urls = output.path().join("made/o-{00..01}.tar");
    let given = [urls.to_str().unwrap(), "-o", manifest.to_str().unwrap()];
    let index = [&["index", "--daemon", "embedded", "--json"], &given[..]].concat();
    let indexed = document(&run(home.forebay(&index)));
    assert_eq!(indexed["manifest"], manifest.to_str().unwrap());
    assert_eq!((&indexed["shards"], &indexed["samples"]), (&2.into(), &3.into()));
    assert_eq!(indexed["bytes"], sizes[0] + sizes[1]);
    let written: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    assert_eq!(written["hash"], indexed["hash"]);
    // Packing wrote the same.
    assert_eq!(packed["hash"], indexed["hash"]);
    assert_eq!(
        fs::read(packed["manifest"].as_str().unwrap()).unwrap(),
        fs::read(&manifest).unwrap()
    );
    eventually("no daemon is left", || home.daemons().is_empty());
}

#[test]
fn unwritable_manifest_is_rejected_before_any_work() {
    let home = UserHome::new(ACTOR);
    let index =
        |output| home.forebay(&["index", "--daemon", "embedded", "/no/such.tar", "-o", output]);
    assert_ends(index("/no/such/folder/m.json"), 1, "folder");
    assert_ends(index("/tmp"), 1, "folder");
    assert!(home.daemons().is_empty() && !home.log().exists());
}

/// Each verb describes itself, and has `--daemon` where it asks one.
#[test]
fn help_describes_each_verb_and_its_options() {
    let home = UserHome::new(ACTOR);
    let mut described = BTreeSet::new();
    for (verb, asks) in [
        (vec!["daemon"], false),
        (vec!["status"], true),
        (vec!["pack"], false),
        (vec!["index"], true),
        (vec!["scrub"], true),
        (vec!["dataset", "warm"], true),
        (vec!["dataset", "check"], true),
        (vec!["fsck"], false),
        (vec!["bench"], false),
        (vec!["bench", "starvation"], true),
    ] {
        let ended = run(home.forebay(&[&verb[..], &["--help"]].concat()));
        assert_eq!(ended.code, 0, "{verb:?}");
        let (description, usage) = ended.out.split_once("Usage: ").expect("it shows its usage");
        assert!(usage.contains(&verb.join(" ")), "{verb:?}: {usage}");
        assert!(description.split_whitespace().count() >= 5, "{verb:?}: {description}");
        assert!(described.insert(description.to_owned()), "{verb:?}: as another verb's");
        assert_eq!(usage.contains("--daemon"), asks, "{verb:?}: {usage}");
    }
    let help = run(home.forebay(&["--help"])).out;
    assert!(["130", "143"].iter().all(|code| help.contains(code)), "exit codes: {help}");
}

fn fill_log(path: &Path) -> fs::File {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
    log.write_all(&vec![b'.'; usize::try_from(LOG_MAX).unwrap() + 1]).unwrap();
    log
}

/// A directory that is no cache is rejected before anything is made in it, by whoever names it.
#[test]
fn foreign_directory_stays_as_it_was() {
    let (home, foreign) = (UserHome::new(ACTOR), tempfile::tempdir().unwrap());
    fs::write(foreign.path().join("thesis.tex"), b"x").unwrap();
    let names = || -> Vec<_> {
        let entries = fs::read_dir(foreign.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    let directory = Ok(RuntimeDirectory::of(foreign.path()));
    let address = Address::Embedded(Launch { command: vec!["true".into()], directory });
    let error = address.connect(&Deadline::after(PATIENCE)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.place("found"), Some("thesis.tex"), "{error}");
    assert_eq!(error.place("directory"), foreign.path().to_str(), "{error}");
    assert_eq!(names(), ["thesis.tex"]);
    for arguments in [
        &["daemon", "--embedded"][..],
        &["index", "/x.tar", "-o", "/tmp/m.json", "--daemon", "embedded"],
        &["dataset", "warm", "s3://bucket/*.tar", "--daemon", "embedded"],
        &["doctor"],
    ] {
        let mut command = home.forebay(arguments);
        let output = command.env("FOREBAY_CACHE", foreign.path()).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        assert_eq!(names(), ["thesis.tex"], "{arguments:?}");
    }
}

/// A log ends up no longer than its limit and one line, whoever starts the daemon.
#[test]
fn long_log_of_an_embedded_daemon_is_truncated() {
    let home = UserHome::new(ACTOR);
    let log = fill_log(&home.log());
    let mut command = home.forebay(&["daemon", "--embedded"]);
    let mut daemon = command.stderr(log).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    daemon.stdout.take().unwrap().read_to_string(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let text = fs::read_to_string(home.log()).unwrap();
    assert!(text.len() as u64 <= LOG_MAX && text.contains("socket="), "{}", text.len());
    assert!(daemon.wait().unwrap().success());

    // A trainer cuts it too: what it starts may end before it would.
    fill_log(&home.log());
    let directory = Ok(RuntimeDirectory::of(home.cache()));
    let address = Address::Embedded(Launch { command: vec!["true".into()], directory });
    assert!(address.connect(&Deadline::after(PATIENCE)).is_err());
    assert_eq!(home.log().metadata().unwrap().len(), 0);
}
