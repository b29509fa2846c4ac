//! Skips of tests that need what a machine may lack: root, mounts, FUSE.
//!
//! A test is skipped only where `FOREBAY_TESTS_MAY_SKIP` names its requirement; anywhere else
//! it fails. Each skip is a line of the file `FOREBAY_SKIPS`, which `make test` lists at its end.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// Requirements that may be skipped, comma-separated; empty or unset: none.
const MAY_SKIP: &str = "FOREBAY_TESTS_MAY_SKIP";

/// File that lists the skips; unset: `skips` in the build's target directory.
const SKIPS: &str = "FOREBAY_SKIPS";

/// Something that a test needs and a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// Becoming another user.
    Root,
    /// Mounting a tmpfs.
    Mount,
    /// Loop devices with a file system of their own.
    Loop,
    /// Mounting by FUSE, with nbdkit and nbdfuse.
    Fuse,
    /// A second name of this machine that its resolver knows.
    SecondName,
    /// Extended attributes on the file system of the build.
    Xattr,
    /// Transfers past the page cache in the temporary directory.
    DirectIo,
    /// A kernel that collapses pages into huge ones.
    HugePages,
    /// A GPU and its driver.
    Gpu,
}

impl Requirement {
    /// The name, as `FOREBAY_TESTS_MAY_SKIP` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Mount => "mount",
            Self::Loop => "loop",
            Self::Fuse => "fuse",
            Self::SecondName => "second-name",
            Self::Xattr => "xattr",
            Self::DirectIo => "direct-io",
            Self::HugePages => "huge-pages",
            Self::Gpu => "gpu",
        }
    }

    /// Returns the way to provide it.
    fn advice(self) -> &'static str {
        match self {
            Self::Root => "run the tests as root, in a container for instance",
            Self::Mount => "run the tests as root where `mount -t tmpfs` is allowed",
            Self::Loop => "run the tests as root where /dev/loop-control is",
            Self::Fuse => {
                "run the tests as root where /dev/fuse is; `make setup-tests` installs the rest"
            }
            Self::SecondName => "name ::1 ip6-localhost in /etc/hosts",
            Self::Xattr => "build on a file system with extended attributes",
            Self::DirectIo => "let TMPDIR name a folder on a disk",
            Self::HugePages => "run Linux 6.1 or newer",
            Self::Gpu => "run `make gpu-test` on a machine with one",
        }
    }
}

/// Skips a test, or the rest of it, where that is allowed.
///
/// # Panics
/// If `FOREBAY_TESTS_MAY_SKIP` does not name the requirement: the test fails.
#[track_caller]
pub fn skip(requirement: Requirement, why: &str) {
    let name = requirement.name();
    let allowed = std::env::var(MAY_SKIP).unwrap_or_default();
    assert!(
        is_named(name, &allowed),
        "this test needs {name}: {why}; {}, or skip it: {MAY_SKIP}={name}",
        requirement.advice()
    );
    let thread = std::thread::current();
    let program = std::env::current_exe().expect("a process knows its program");
    let binary = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo adds a hash to the name of the file.
    let file = binary.rsplit_once('-').map_or(&*binary, |(file, _)| file);
    let line = format!("{name}\t{file}::{}\t{why}\n", thread.name().unwrap_or_default());
    let path = std::env::var_os(SKIPS).map_or_else(
        || program.ancestors().nth(3).expect("tests lie in the target directory").join("skips"),
        PathBuf::from,
    );
    let mut list = OpenOptions::new().append(true).create(true).open(&path);
    let written = list.as_mut().map(|list| list.write_all(line.as_bytes()));
    assert!(matches!(written, Ok(Ok(()))), "{} cannot be written: {written:?}", path.display());
}

fn is_named(name: &str, allowed: &str) -> bool {
    allowed.split([',', ' ']).any(|allowed| allowed == name)
}

/// True for root; otherwise the test is skipped, or fails.
#[must_use]
#[track_caller]
pub fn is_root(why: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(Requirement::Root, why);
    }
    is_root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_requirements_may_be_skipped() {
        for (name, allowed, is_allowed) in [
            ("root", "", false),
            ("root", "root", true),
            ("root", "gpu,root", true),
            ("root", "fuse root", true),
            ("fuse", "root", false),
            ("second-name", "second", false),
        ] {
            assert_eq!(is_named(name, allowed), is_allowed, "{name} of {allowed:?}");
        }
    }
}
