//! A test's process in which the emulator is CUDA. The one rule: a test is run again in a process
//! of its own, for libraries are looked for when a process starts.

use std::path::Path;
use std::process::Command;

use forebay_decode::WithNvjpeg;

/// Set in the process that has the emulator: the folder where it lies.
const EMULATED: &str = "FOREBAY_EMULATED";

/// Runs `test`, the calling one, again in a process for which the emulator is CUDA; true there.
pub(crate) fn is_emulated<T: Fn()>(_test: T, wishes: &[(&str, &str)]) -> bool {
    if std::env::var_os(EMULATED).is_some() {
        return true;
    }
    // A function's type has its path, which begins with the name of the program.
    let test = std::any::type_name::<T>().split_once("::").unwrap().1;
    let program = std::env::current_exe().unwrap();
    let emulator = program.with_file_name("libforebay_emulator.so");
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1", "libnvjpeg.so"] {
        std::os::unix::fs::symlink(&emulator, folder.path().join(name)).unwrap();
    }
    let output = Command::new(program)
        .args([test, "--exact", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env(EMULATED, folder.path())
        .envs(wishes.iter().map(|(name, value)| (format!("FOREBAY_EMULATOR_{name}"), value)))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let also = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{also}");
    false
}

/// Where nvJPEG is there.
pub(crate) fn nvjpeg() -> WithNvjpeg {
    let folder = std::env::var_os(EMULATED).unwrap();
    WithNvjpeg { paths: vec![Path::new(&folder).join("libnvjpeg.so")], backend: None }
}
