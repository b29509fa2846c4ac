//! The audit log's files.
//!
//! A line is whole or not there, and what one file holds is on the disk before the next
//! begins.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forebay_config::settings::AuditConfig;
use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::OFlags;

/// For the daemon's user alone.
const PRIVATE: u32 = 0o600;

/// Mode of a folder created for the log.
const PRIVATE_FOLDER: u32 = 0o700;

/// The file that is written, and where those before it go.
pub(super) struct LogFile {
    config: AuditConfig,
    file: File,
    /// Identity of the open file: its path may name another file by now.
    identity: (u64, u64),
    len: u64,
    /// It ends in the middle of a line.
    torn: bool,
}

impl LogFile {
    pub(super) fn open(config: AuditConfig) -> Result<Self> {
        let at = |error: Error| error.at("audit", config.path.display());
        if let Some(folder) = config.path.parent() {
            let mut made = DirBuilder::new();
            made.recursive(true).mode(PRIVATE_FOLDER);
            made.create(folder).doing("make the audit log's directory").map_err(at)?;
        }
        let (file, identity, len, torn) = open(&config.path).map_err(at)?;
        Ok(Self { config, file, identity, len, torn })
    }

    /// Adds a line, to the next file if this one is full.
    pub(super) fn append(&mut self, line: &[u8]) -> Result<()> {
        self.try_append(line).map_err(|error| error.at("audit", self.config.path.display()))
    }

    fn try_append(&mut self, line: &[u8]) -> Result<()> {
        let there = fs::symlink_metadata(&self.config.path).ok();
        if there.map(|found| (found.dev(), found.ino())) != Some(self.identity) {
            // Somebody moved it away, or removed it; what it holds is safe before the next begins.
            self.file.sync_all().doing("sync the audit log")?;
            self.reopen()?;
        }
        if self.len > 0 && self.len + line.len() as u64 > self.config.max_bytes {
            self.rotate()?;
        }
        if self.torn {
            self.put(b"\n")?;
            self.torn = false;
        }
        self.put(line)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a line is none. One that stays, because it may only grow, ends where the
                // next begins.
                self.torn |= self.file.set_len(self.len).is_err();
                Err(Error::from_io("write the audit log", &error))
            }
        }
    }

    pub(super) fn sync(&mut self) -> Result<()> {
        self.file.sync_all().doing("sync the audit log")
    }

    /// Moves every file on by one, and begins another.
    fn rotate(&mut self) -> Result<()> {
        self.sync()?;
        let path = &self.config.path;
        for older in (0..self.config.keep).rev() {
            match fs::rename(numbered(path, older), numbered(path, older + 1)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::from_io("rotate the audit log", &error));
                }
                _ => {}
            }
        }
        if self.config.keep == 0 {
            fs::remove_file(path).doing("rotate the audit log")?;
        }
        self.reopen()?;
        let folder = path_of_folder(&self.config.path);
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .doing("sync the audit log's directory")
    }

    fn reopen(&mut self) -> Result<()> {
        (self.file, self.identity, self.len, self.torn) = open(&self.config.path)?;
        Ok(())
    }
}

fn path_of_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The log before so many others.
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// The file at `path`, its identity, its length, and whether it ends in the middle of a line.
fn open(path: &Path) -> Result<(File, (u64, u64), u64, bool)> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(PRIVATE)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .doing("open the audit log")?;
    let found = file.metadata().doing("stat the audit log")?;
    if !found.is_file() {
        let error = Error::new(ErrorKind::Invalid, "the audit log is not a regular file");
        return Err(error.advise("name a regular file, or a path that does not exist yet"));
    }
    if found.permissions().mode() & 0o777 != PRIVATE {
        let private = fs::Permissions::from_mode(PRIVATE);
        file.set_permissions(private).doing("make the audit log private")?;
    }
    let torn = match found.len() {
        0 => false,
        _ => {
            let mut last = [0];
            file.seek(SeekFrom::End(-1)).doing("read the audit log")?;
            file.read_exact(&mut last).doing("read the audit log")?;
            last != *b"\n"
        }
    };
    Ok((file, (found.dev(), found.ino()), found.len(), torn))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    struct Bench {
        directory: TempDir,
    }

    impl Bench {
        fn new() -> Self {
            Self { directory: TempDir::new().unwrap() }
        }

        fn open(&self, max_bytes: u64, keep: u32) -> LogFile {
            let path = self.directory.path().join("a.jsonl");
            LogFile::open(AuditConfig { path, max_bytes, keep }).unwrap()
        }

        fn put(&self, text: &str) {
            fs::write(self.directory.path().join("a.jsonl"), text).unwrap();
        }

        /// Names and texts, in order.
        fn files(&self) -> Vec<(String, String)> {
            let listed =
                fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
            let mut files: Vec<_> = listed
                .map(|path| {
                    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE);
                    (name, fs::read_to_string(path).unwrap())
                })
                .collect();
            files.sort();
            files
        }
    }

    fn named(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn log_files_are_bounded_in_size_and_number() {
        let bench = Bench::new();
        let mut log = bench.open(4, 2);
        for line in ["a\n", "b\n", "c\n", "d\n", "e\n", "f\n", "long\n", "g\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        let wanted = [("a.jsonl", "g\n"), ("a.jsonl.1", "long\n"), ("a.jsonl.2", "e\nf\n")];
        assert_eq!(bench.files(), named(&wanted));
        drop(log);
        let mut log = bench.open(4, 0);
        log.append(b"h\n").unwrap();
        log.append(b"i\n").unwrap();
        assert_eq!(bench.files()[0], named(&[("a.jsonl", "i\n")])[0]);
    }

    #[test]
    fn truncated_line_is_ended_before_the_next() {
        let bench = Bench::new();
        bench.put("whole\nhal");
        let mut log = bench.open(1 << 20, 1);
        log.append(b"next\n").unwrap();
        assert_eq!(bench.files(), named(&[("a.jsonl", "whole\nhal\nnext\n")]));
    }

    #[test]
    fn moved_or_removed_log_file_is_created_again() {
        let bench = Bench::new();
        let at = |name: &str| bench.directory.path().join(name);
        let mut log = bench.open(1 << 20, 1);
        log.append(b"a\n").unwrap();
        fs::rename(at("a.jsonl"), at("away")).unwrap();
        log.append(b"b\n").unwrap();
        assert_eq!(bench.files(), named(&[("a.jsonl", "b\n"), ("away", "a\n")]));
        fs::remove_file(at("a.jsonl")).unwrap();
        log.append(b"c\n").unwrap();
        assert_eq!(bench.files(), named(&[("a.jsonl", "c\n"), ("away", "a\n")]));
        // A path that names another file is not written to.
        fs::remove_file(at("a.jsonl")).unwrap();
        std::os::unix::fs::symlink(at("away"), at("a.jsonl")).unwrap();
        assert!(log.append(b"d\n").is_err());
        fs::remove_file(at("a.jsonl")).unwrap();
        log.append(b"e\n").unwrap();
        assert_eq!(bench.files(), named(&[("a.jsonl", "e\n"), ("away", "a\n")]));
    }
}
