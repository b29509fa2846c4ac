//! A configuration file as an admin meets it: checked, shown, compared, completed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_error::{ErrorKind, Problem};
use forebay_tests::{UserHome, reported_error};
use serde_json::Value;
use tempfile::TempDir;

use crate::ACTOR;

const TOML: &str = "[[tier]]\nname = 'nvme'\npath = '/mnt/nvme0'\ncapacity = '3TiB'\n\
    [[source]]\nmatch = 's3://ml/'\nproxy = 'http://user:hunter2@proxy.example:3128'\n\
    [[dataset]]\nname = 'imagenet'\nmatch = 's3://ml/imagenet/**'\nquota = { max = '500GiB' }\n\
    [[dataset]]\nname = 'rest'\nmatch = '**'\n";

const YAML: &str = "tier:\n- {name: nvme, path: /mnt/nvme0, capacity: 3TiB}\nsource:\n- match: s3://ml/\n  \
    proxy: http://user:hunter2@proxy.example:3128\ndataset:\n- name: imagenet\n  match: s3://ml/imagenet/**\n  \
    quota: {max: 500GiB}\n- {name: rest, match: '**'}\n";

/// Code, standard output and standard error of a command that asks no daemon.
fn forebay(home: &UserHome, arguments: &[&str]) -> (i32, String, String) {
    let mut command: Command = home.forebay(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(home.daemons().is_empty(), "{arguments:?} started a daemon");
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[test]
fn valid_file_passes_in_every_language() {
    let (home, files) = (UserHome::new(ACTOR), Files::new());
    for (name, text) in [("f.toml", TOML), ("f.yaml", YAML), ("f.yml", YAML)] {
        let file = files.put(name, text);
        let (code, out, err) = forebay(&home, &["config", "check", &file]);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.starts_with(&file) && out.lines().count() == 1, "{out}");
    }
    let (_, shown, _) = forebay(&home, &["config", "show", &files.put("f.toml", TOML), "--json"]);
    let file = files.put("shown.json", &shown);
    let (code, out, err) = forebay(&home, &["config", "check", &file, "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["good"], true);
    let has = ["tiers", "sources", "datasets", "tenants"].map(|what| told["has"][what].as_u64());
    assert_eq!(has, [1, 1, 2, 0].map(Some), "{told}");
}

#[test]
fn invalid_file_reports_every_mistake() {
    let (home, files) = (UserHome::new(ACTOR), Files::new());
    let wrong = TOML.replace("quota", "quotta").replace("'**'", "'s3://ml/imagenet/*.tar'");
    let file = files.put("wrong.toml", &wrong);
    let (code, out, err) = forebay(&home, &["config", "check", &file]);
    assert_eq!((code, reported_error(&err).kind()), (1, ErrorKind::Invalid), "{err}");
    let [unknown, shadowed] = out.lines().collect::<Vec<_>>()[..] else { panic!("{out}") };
    assert!(unknown.starts_with(&format!("{file}:11:1: ")), "{unknown}");
    assert!(unknown.contains("`quotta`") && unknown.ends_with("`quota`?"), "{unknown}");
    assert!(shadowed.starts_with(&format!("{file}:14:9: ")), "{shadowed}");
    assert!(shadowed.contains("(dataset=rest, shadowed_by=imagenet)"), "{shadowed}");

    let wrong = wrong.replace("quotta", "quota").replace("3TiB", "3 parsecs");
    let file = files.put("wrong.toml", &wrong);
    let (code, out, err) = forebay(&home, &["config", "check", &file, "--json"]);
    let error: Problem = serde_json::from_str(&err).unwrap();
    assert_eq!((code, error.kind), (1, ErrorKind::Invalid), "{err}");
    let told: Value = serde_json::from_str(&out).unwrap();
    let places = told["mistakes"].as_array().unwrap().iter();
    let places: Vec<_> = places.map(|one| (one["line"].clone(), one["column"].clone())).collect();
    assert_eq!(places, [(4.into(), 12.into()), (14.into(), 9.into())]);
    assert_eq!(told["good"], false);
    assert_eq!(told["mistakes"][1]["places"]["shadowed_by"], "imagenet");
    assert!(told["mistakes"][1]["advice"].is_string());

    let (code, out, err) = forebay(&home, &["daemon", "--config", &file]);
    assert!(code == 1 && out.is_empty(), "{out}");
    let error = reported_error(&err);
    assert_eq!((error.place("line"), error.place("column")), (Some("4"), Some("12")), "{err}");
    let (code, _, err) = forebay(&home, &["config", "check", "/no/such/forebay.toml"]);
    assert_eq!((code, reported_error(&err).kind()), (1, ErrorKind::NotFound), "{err}");
}

#[test]
fn diff_shows_changes_and_no_secrets() {
    let (home, files) = (UserHome::new(ACTOR), Files::new());
    let old = files.put("old.toml", TOML);
    let new = files.put("new.yaml", &YAML.replace("500", "600").replace("hunter2", "hunter3"));
    let same = files.put("same.yaml", YAML);
    let (code, out, err) = forebay(&home, &["config", "diff", &old, &same]);
    assert_eq!((code, out.lines().count(), err.as_str()), (0, 1, ""));
    let (code, out, err) = forebay(&home, &["config", "diff", &old, &new]);
    assert_eq!((code, out.lines().count(), err.as_str()), (0, 2, ""), "{out}");
    let has =
        |words: [&str; 3]| out.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(["imagenet", "quota.max", "500GiB -> 600GiB"]), "{out}");
    assert!(has(["s3://ml/", "proxy", ""]) && !out.contains("hunter"), "{out}");
    let (_, out, _) = forebay(&home, &["config", "diff", &old, &new, "--json"]);
    assert!(!out.contains("hunter"), "{out}");
    let told: Value = serde_json::from_str(&out).unwrap();
    let changes = told["changes"].as_array().unwrap();
    let of = |section: &str| changes.iter().find(|change| change["section"] == section).unwrap();
    let (quota, proxy) = (of("dataset"), of("source"));
    assert_eq!(
        (changes.len(), &proxy["key"], &proxy["hidden"]),
        (2, &"proxy".into(), &true.into())
    );
    assert_eq!((&quota["key"], &quota["to"]), (&"quota.max".into(), &"600GiB".into()));
    assert_eq!((&quota["change"], &quota["name"]), (&"changed".into(), &"imagenet".into()));
    let (code, _, err) = forebay(&home, &["config", "diff", &old, "/no/such.toml"]);
    assert!(code == 1 && err.contains("/no/such.toml"), "{err}");
}

#[test]
fn config_show_prints_every_section_without_secrets() {
    let (home, files) = (UserHome::new(ACTOR), Files::new());
    let file = files.put("f.toml", TOML);
    let (code, out, _) = forebay(&home, &["config", "show", &file]);
    assert!(
        code == 0 && out.contains("evict = \"clairvoyant\"") && !out.contains("hunter2"),
        "{out}"
    );
    assert!(out.contains("[daemon]"), "{out}");
}

#[test]
fn schema_completions_and_man_pages_are_complete() {
    let (home, files) = (UserHome::new(ACTOR), Files::new());
    let (code, out, _) = forebay(&home, &["config", "schema"]);
    let schema: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    let evict = &schema["$defs"]["Dataset"]["properties"]["evict"];
    assert!(evict["enum"].as_array().unwrap().contains(&"s3fifo".into()), "{evict}");
    assert!(evict["description"].is_string(), "{evict}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, out, _) = forebay(&home, &["completions", shell]);
        assert_eq!(code, 0);
        assert!(out.contains("scrub") && out.contains("policy"), "{shell}");
        assert!(!out.contains("actor"), "{shell}: the command's own name counts");
    }
    assert_eq!(forebay(&home, &["completions", "tcsh"]).0, 2);
    let directory = files.0.path().join("a/manual");
    let (code, _, err) = forebay(&home, &["man", directory.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    let page = |name: &str| -> PathBuf { directory.join(format!("{name}.1")) };
    for name in ["forebay", "forebay-status", "forebay-config-check", "forebay-tier-drain"] {
        assert!(page(name).is_file(), "{name}");
    }
    let check = fs::read_to_string(page("forebay-config-check")).unwrap();
    assert!(check.contains("json"), "{check}");
    for hidden in ["forebay-reader", "forebay-credentials", "forebay-man"] {
        assert!(!page(hidden).exists(), "{hidden}");
    }
    let taken = files.put("file", "");
    let (code, _, err) = forebay(&home, &["man", Path::new(&taken).to_str().unwrap()]);
    assert!(code == 1 && err.contains("directory="), "{err}");
}
