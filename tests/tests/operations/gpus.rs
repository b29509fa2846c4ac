//! A daemon's report on GPUs whose driver misbehaves. `make gpu-test` covers real drivers.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use forebay_tests::{Answer, Daemon, Installation, daemon_status, eventually};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde_json::Value;

use crate::ACTOR;

const MEMORY: u64 = 512 << 20;

/// File name of the driver's library.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// A node whose loader finds the driver's library in `libraries`.
fn node(place: &Path, libraries: &Path) -> Installation {
    let cache = place.join("cache");
    let rest = format!("[[tier]]\nname = 'nvme'\npath = {cache:?}\ncapacity = '1GiB'\n");
    Installation::new(ACTOR, place, MEMORY, &rest).with("LD_LIBRARY_PATH", libraries.to_owned())
}

fn scraped(node: &Installation) -> Vec<String> {
    let socket = UnixStream::connect(node.socket()).unwrap();
    let answer = Answer::to(socket, ("GET", "/metrics"), "host: localhost\r\n", "");
    assert_eq!(answer.status, 200);
    let lines = answer.body.lines().filter(|line| line.starts_with("forebay_gpu_"));
    lines.map(str::to_owned).collect()
}

fn failing(node: &Installation) -> String {
    let status = daemon_status(&node.socket()).unwrap();
    status.pointer("/gpus/failing").and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[test]
fn unloadable_driver_is_reported() {
    let disk = Daemon::disk();
    fs::write(disk.path().join(LIBRARY), "no library").unwrap();
    let node = node(disk.path(), disk.path());
    let daemon = node.start();
    assert!(failing(&node).contains(LIBRARY), "{}", failing(&node));
    assert_eq!(scraped(&node), ["forebay_gpu_driver_up 0"]);
    let said = node.forebay(&["status"]).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.lines().any(|line| line.starts_with("gpus") && line.contains(LIBRARY)), "{said}");
    let log = daemon.log();
    let is_warning = |line: &&str| line.contains(" WARN ") && line.contains(LIBRARY);
    assert_eq!(log.lines().filter(is_warning).count(), 1, "{log}");
    daemon.stop();
}

/// As with a driver that hangs in the kernel: it is asked, and whoever asked does not come back. It
/// tells nothing of GPUs.
const HANGING: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int nvmlInit_v2(void) {
    close(open(getenv("PIPE"), O_RDONLY));
    return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
}
"#;

/// The message of the binding to NVIDIA's library for that answer.
const NOT_LOADED: &str = "NVIDIA driver is not loaded";

/// Asserts that the driver is reported, and not for an answer of its own or for want of its
/// library.
fn assert_silent(node: &Installation) {
    let failing = failing(node);
    let is_other = failing.contains(LIBRARY) || failing.contains(NOT_LOADED);
    assert!(!failing.is_empty() && !is_other, "{failing}");
}

#[test]
fn hanging_driver_blocks_no_request() {
    let disk = Daemon::disk();
    let (pipe, source) = (disk.path().join("pipe"), disk.path().join("nvml.c"));
    // Whoever opens it waits for a writer.
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::write(&source, HANGING).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(disk.path().join(LIBRARY)).arg(&source);
    assert!(compiler.status().unwrap().success());
    let node = node(disk.path(), disk.path()).with("PIPE", pipe.clone());

    let daemon = node.start();
    assert_silent(&node);
    assert_eq!(scraped(&node), ["forebay_gpu_driver_up 0"]);
    daemon.stop();

    let daemon = node.start();
    assert_silent(&node);
    // It comes back, and says what is wrong; later ones do not hang.
    let writer = open(&pipe, OFlags::WRONLY, Mode::empty()).unwrap();
    let pipe = open(&pipe, OFlags::RDWR, Mode::empty()).unwrap();
    eventually("it answers", || failing(&node) == NOT_LOADED);
    assert!(daemon.log().contains(NOT_LOADED), "{}", daemon.log());
    drop((writer, pipe));
    daemon.stop();
}
