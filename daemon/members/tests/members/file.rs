//! Lists in a file.

use std::fs;
use std::path::PathBuf;

use forebay_cluster::MAX_MEMBERS;
use forebay_config::settings::MembersSource;
use forebay_error::ErrorKind;
use tempfile::TempDir;

use super::nodes::{has, member, reports, start};

const TWO: &str = "a 10.0.0.1:9481 4\nb 10.0.0.2:9481 8\n";

struct List {
    path: PathBuf,
    _folder: TempDir,
}

impl List {
    fn new(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let list = Self { path: folder.path().join("members"), _folder: folder };
        list.write(text);
        list
    }

    fn write(&self, text: &str) {
        fs::write(&self.path, text).unwrap();
    }

    fn source(&self) -> MembersSource {
        MembersSource::File(self.path.clone())
    }
}

#[tokio::test]
async fn changed_file_changes_the_members() {
    let list = List::new(TWO);
    let members = start(list.source(), member("a", "10.0.0.1:9481")).await.unwrap();
    has(&members, &["a", "b"]).await;
    assert_eq!(members.ring().member("b").unwrap().slots, 8);
    let report = members.report();
    assert!(report.is_listed && !report.is_frozen && report.since.is_some(), "{report:?}");
    assert_eq!((report.last_error, report.source), (None, list.path.display().to_string()));
    list.write(&format!("{TWO}c 10.0.0.3:9481\n"));
    has(&members, &["a", "b", "c"]).await;
    // As editors and deployment tools do it.
    let other = list.path.with_extension("new");
    fs::write(&other, "b 10.0.0.2:9481\n").unwrap();
    fs::rename(&other, &list.path).unwrap();
    has(&members, &["b"]).await;
    assert!(!members.report().is_listed);
}

#[tokio::test]
async fn bad_file_leaves_the_last_good_list_in_force() {
    let list = List::new(TWO);
    let members = start(list.source(), member("a", "10.0.0.1:9481")).await.unwrap();
    let before = members.ring();
    let long = |count| (0..count).map(|n| format!("n{n} h:1\n")).collect::<String>();
    for bad in [
        None,
        Some(String::new()),
        Some("# nobody\n".to_owned()),
        Some("a\n".to_owned()),
        Some("a 10.0.0.1:9481\na 10.0.0.3:9481\n".to_owned()),
        Some(long(MAX_MEMBERS + 1)),
        Some(format!("{TWO}#{}\n", " ".repeat(1 << 20))),
    ] {
        match &bad {
            None => fs::remove_file(&list.path).unwrap(),
            Some(text) => list.write(text),
        }
        let report = reports(&members, |report| report.is_frozen).await;
        assert!(report.last_error.is_some() && report.is_listed, "{report:?}");
        assert_eq!(members.ring(), before, "{report:?}");
        list.write(TWO);
        let report = reports(&members, |report| !report.is_frozen).await;
        assert_eq!((report.last_error, members.ring()), (None, before.clone()));
    }
}

#[tokio::test]
async fn two_nodes_of_one_name_are_reported_by_address() {
    let list = List::new(TWO);
    let members = start(list.source(), member("a", "10.0.0.1:9481")).await.unwrap();
    list.write("b 10.0.0.7:9481\nb 10.0.0.8:9481\n");
    let report = reports(&members, |report| report.is_frozen).await;
    let error = report.last_error.unwrap();
    assert!(error.contains("10.0.0.7:9481") && error.contains("10.0.0.8:9481"), "{error}");
    assert_eq!(report.members, members.ring().members());
}

#[tokio::test]
async fn bad_file_at_the_start_is_an_error() {
    let own = || member("a", "10.0.0.1:9481");
    for (text, line) in [("", None), ("a h:1\nb\n", Some("2")), ("a h:1\na h:2\n", None)] {
        let list = List::new(text);
        let error = start(list.source(), own()).await.err().unwrap();
        assert_eq!((error.kind(), error.place("line")), (ErrorKind::Invalid, line), "{error}");
        assert_eq!(error.place("source"), list.path.to_str());
    }
    let list = List::new("");
    fs::remove_file(&list.path).unwrap();
    let error = start(list.source(), own()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn node_that_is_missing_in_the_file_is_not_listed() {
    let list = List::new(TWO);
    let members = start(list.source(), member("c", "10.0.0.3:9481")).await.unwrap();
    assert!(!members.report().is_listed);
    list.write(&format!("{TWO}c 10.0.0.3:9481\n"));
    has(&members, &["a", "b", "c"]).await;
    assert!(members.report().is_listed);
}

/// Administrators write the file, so a node cannot leave it.
#[tokio::test]
async fn file_lists_a_node_that_leaves() {
    let list = List::new(TWO);
    let members = start(list.source(), member("a", "10.0.0.1:9481")).await.unwrap();
    members.leave().await.unwrap();
    has(&members, &["a", "b"]).await;
}
