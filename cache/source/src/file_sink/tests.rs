//! Files as a store: what a crash leaves is no object, and nothing is replaced unasked.

use super::*;

const PART: u64 = sink::PART_BYTES_MIN;

struct Bench {
    dir: tempfile::TempDir,
    sink: FileSink,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, sink: FileSink::new(Duration::from_secs(60)) }
    }

    fn url(&self, name: &str) -> String {
        format!("file://{}/{name}", self.dir.path().display())
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join(name)).unwrap()
    }

    /// Names of all files, unfinished ones included.
    fn files(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join(folder)).unwrap();
        let name = |entry: std::io::Result<DirEntry>| entry.unwrap().file_name().into_string();
        entries.map(|entry| name(entry).unwrap()).collect()
    }
}

#[tokio::test]
async fn put_makes_folders_and_leaves_only_the_object() {
    let bench = Bench::new();
    let url = bench.url("a/b/k");
    let tag = bench.sink.put(&url, Bytes::from_static(b"one"), Overwrite::Rejected).await.unwrap();
    let found = bench.sink.head(&url).await.unwrap().unwrap();
    assert_eq!(found, Found { len: 3, tag, version: None });
    let again = bench.sink.put(&url, Bytes::from_static(b"two"), Overwrite::Rejected).await;
    let again = again.unwrap_err();
    assert_eq!((again.kind(), again.place("reason")), (ErrorKind::Invalid, Some("exists")));
    assert_eq!(bench.read("a/b/k"), b"one");
    let other = bench.sink.put(&url, Bytes::new(), Overwrite::Allowed).await.unwrap();
    assert_ne!(other, found.tag);
    assert_eq!((bench.read("a/b/k"), bench.files("a/b")), (Vec::new(), vec!["k".to_owned()]));
}

#[tokio::test]
async fn leftovers_of_crashes_are_not_listed() {
    let bench = Bench::new();
    for (name, len) in [("s/k", 1), ("s/t/l", 2), ("s2/k", 3)] {
        let bytes = Bytes::from(vec![1; len]);
        bench.sink.put(&bench.url(name), bytes, Overwrite::Allowed).await.unwrap();
    }
    bench.sink.begin_upload(&bench.url("s/t/m"), PART).await.unwrap();
    std::fs::write(bench.dir.path().join(format!("s/{PUT}{}", random())), b"half").unwrap();
    std::os::unix::fs::symlink("k", bench.dir.path().join("s/link")).unwrap();
    let named = |name: &str, len| Named { name: name.to_owned(), len };
    for folder in ["s", "s/"] {
        let listed = bench.sink.list(&bench.url(folder)).await.unwrap();
        assert_eq!(listed, [named("k", 1), named("t/l", 2)]);
    }
    assert_eq!(bench.sink.list(&bench.url("no")).await.unwrap(), []);
    assert_eq!(bench.files("s").len(), 4, "the test has leftovers");
    // Those of last week are gone with the next listing.
    let old = std::time::SystemTime::now() - LEFTOVER - Duration::from_secs(60);
    let unfinished = bench.files("s").into_iter().filter(|name| is_unfinished(name));
    for name in unfinished.chain(["k".to_owned()]) {
        let file = File::options().write(true).open(bench.dir.path().join("s").join(name));
        file.unwrap().set_modified(old).unwrap();
    }
    bench.sink.list(&bench.url("s")).await.unwrap();
    let mut left = bench.files("s");
    left.sort();
    assert_eq!(left, ["k", "link", "t"]);
    assert_eq!(bench.files("s/t").len(), 2, "a young upload stays");
}

#[tokio::test]
async fn upload_goes_on_with_its_id_alone() {
    let bench = Bench::new();
    let url = bench.url("a/k");
    let upload = bench.sink.begin_upload(&url, PART).await.unwrap();
    let parts: Vec<Bytes> =
        [PART, PART, 7].iter().zip(1..).map(|(len, n)| vec![n; *len as usize].into()).collect();
    let last = bench.sink.upload_part(&url, &upload, 2, parts[2].clone()).await.unwrap();
    let stored = serde_json::to_string(&(&upload, &last)).unwrap();
    let later = FileSink::new(Duration::from_secs(60));
    let (upload, last): (UploadId, PartTag) = serde_json::from_str(&stored).unwrap();
    let first = later.upload_part(&url, &upload, 0, parts[0].clone()).await.unwrap();
    let gap = later.complete(&url, &upload, &[first.clone(), last.clone()]).await.unwrap_err();
    assert_eq!((gap.kind(), gap.place("part")), (ErrorKind::Invalid, Some("1")));
    let second = later.upload_part(&url, &upload, 1, parts[1].clone()).await.unwrap();
    let fewer = later.complete(&url, &upload, &[first.clone(), second.clone()]).await;
    assert_eq!(fewer.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(later.head(&url).await.unwrap(), None);
    let tag = later.complete(&url, &upload, &[first.clone(), second, last]).await.unwrap();
    assert_eq!(later.head(&url).await.unwrap().map(|found| found.tag), Some(tag));
    assert_eq!(bench.read("a/k"), parts.concat());
    assert_eq!(bench.files("a"), ["k"]);
    let gone = later.complete(&url, &upload, &[first]).await.unwrap_err();
    assert_eq!((gone.kind(), gone.place("reason")), (ErrorKind::NotFound, Some("no-upload")));
}

#[tokio::test]
async fn lost_and_invented_uploads_are_told() {
    let bench = Bench::new();
    let url = bench.url("k");
    let upload = bench.sink.begin_upload(&url, PART).await.unwrap();
    bench.sink.abort(&url, &upload).await.unwrap();
    bench.sink.abort(&url, &upload).await.unwrap();
    let ids = ["", "x", "5242880-../../etc/passwd", "5242880-0"].map(UploadId::new);
    for id in ids.into_iter().chain([upload]) {
        let bytes = Bytes::from_static(b"x");
        let error = bench.sink.upload_part(&url, &id, 0, bytes).await.unwrap_err();
        let told = (error.kind(), error.place("reason"));
        assert_eq!(told, (ErrorKind::NotFound, Some("no-upload")), "{id:?}");
    }
    assert!(bench.files("").is_empty());
}

#[tokio::test]
async fn unfit_parts_and_paths_are_rejected() {
    let bench = Bench::new();
    let url = bench.url("k");
    let small = bench.sink.begin_upload(&url, PART - 1).await.unwrap_err();
    assert_eq!(small.kind(), ErrorKind::Invalid);
    let upload = bench.sink.begin_upload(&url, PART).await.unwrap();
    let large = Bytes::from(vec![0; PART as usize + 1]);
    for (number, bytes) in
        [(0, Bytes::new()), (sink::PARTS_MAX, Bytes::from_static(b"x")), (0, large)]
    {
        let error = bench.sink.upload_part(&url, &upload, number, bytes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    for parts in [&[][..], &[PartTag::new("x")], &[PartTag::new("7:1")]] {
        let error = bench.sink.complete(&url, &upload, parts).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{parts:?}: {error}");
    }
    for url in [&bench.url("a/../k"), &bench.url(&format!("{UPLOAD}x")), "relative", "/"] {
        let error = bench.sink.put(url, Bytes::new(), Overwrite::Allowed).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
    }
}

#[tokio::test]
async fn small_documents_are_read_and_removed() {
    let bench = Bench::new();
    let url = bench.url("a/k");
    assert_eq!(bench.sink.get(&url, 4).await.unwrap(), None);
    bench.sink.delete(&url).await.unwrap();
    bench.sink.put(&url, Bytes::from_static(b"four"), Overwrite::Allowed).await.unwrap();
    assert_eq!(bench.sink.get(&url, 4).await.unwrap().as_deref(), Some(&b"four"[..]));
    let large = bench.sink.get(&url, 3).await.unwrap_err();
    assert_eq!((large.kind(), large.place("limit")), (ErrorKind::Corrupt, Some("3")));
    assert_eq!(bench.sink.get(&bench.url("a"), 4).await.unwrap(), None, "a folder is no object");
    assert_eq!(bench.sink.head(&bench.url("a/k/l")).await.unwrap(), None);
    bench.sink.delete(&url).await.unwrap();
    bench.sink.delete(&url).await.unwrap();
    assert_eq!(bench.sink.head(&url).await.unwrap(), None);
    assert!(bench.sink.conditional(&url).await.unwrap());
}

/// A mount that hangs holds the turns on it, and none on others.
#[tokio::test]
async fn hanging_mount_delays_no_other() {
    let bench = Bench::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mounts = [bench.dir.path(), memory.path()].map(|path| mount_point(path).unwrap());
    assert_ne!(mounts[0], mounts[1], "/dev/shm is a mount of its own");
    let url = bench.url("k");
    let upload = bench.sink.begin_upload(&url, PART).await.unwrap();
    let file = place_of(bench.dir.path(), &upload);
    std::fs::remove_file(&file).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // Each waits in `open` for a reader.
    let hang = |_| bench.sink.upload_part(&url, &upload, 0, Bytes::from_static(b"x"));
    let mut hanging = futures::future::join_all((0..AT_ONCE).map(hang));
    let other = format!("file://{}/k", memory.path().display());
    tokio::select! {
        biased;
        _ = &mut hanging => panic!("nothing hangs"),
        put = bench.sink.put(&other, Bytes::from_static(b"x"), Overwrite::Allowed) => {
            put.unwrap();
        }
    }
    assert_ne!(bench.sink.server(&url), bench.sink.server(&other));
    let _reader = File::options().read(true).write(true).open(&file).unwrap();
    assert!(hanging.await.iter().all(Result::is_err), "a pipe cannot be synced");
}
