//! CPU time of processes, as the kernel accounts it.
//!
//! A process counts with its descendants: running children, theirs included, and those it waited
//! for.

use std::fs;

use forebay_error::{Doing, Error, ErrorKind, Result};

/// Fields of /proc/PID/stat between the command's closing parenthesis and `utime` (proc(5)).
const FIELDS_BEFORE_UTIME: usize = 11;

/// The fields that are added up: `utime`, `stime`, and the same of children that were waited for.
const TIMES: usize = 4;

/// Seconds of CPU that process `pid` has used and who works for it, all threads together.
///
/// # Errors
/// `NotFound` if there is no such process.
pub(crate) fn seconds(pid: u32) -> Result<f64> {
    let own = own_ticks(pid)?;
    // Those that end while they are looked at are counted where they are waited for.
    let children = below(pid).into_iter().filter_map(|child| own_ticks(child).ok());
    let ticks = own + children.sum::<u64>();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Processes that `pid` started and that run, those that they started included. None of them is
/// asked twice: a process has one parent.
pub(crate) fn below(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("children")));
    let children: Vec<u32> =
        lists.flatten().flat_map(|list| numbers(&list).collect::<Vec<_>>()).collect();
    children.into_iter().flat_map(|child| [vec![child], below(child)].concat()).collect()
}

fn numbers(list: &str) -> impl Iterator<Item = u32> {
    list.split_whitespace().filter_map(|number| number.parse().ok())
}

fn own_ticks(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).doing("read a process's CPU time")?;
    // The command may contain anything, parentheses included; what follows the last one is numbers.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: Vec<u64> = fields
        .skip(FIELDS_BEFORE_UTIME)
        .take(TIMES)
        .filter_map(|field| field.parse().ok())
        .collect();
    if ticks.len() < TIMES {
        let error = Error::new(ErrorKind::Invalid, "a process's CPU time is unreadable");
        return Err(error.at("path", path));
    }
    Ok(ticks.iter().sum())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn cpu_time_grows_with_work() {
        let pid = std::process::id();
        let before = seconds(pid).unwrap();
        let mut x = 1_u64;
        while seconds(pid).unwrap() < before + 0.02 {
            x = x.wrapping_mul(3);
        }
        assert_ne!(x, 0);
        assert!(seconds(0).is_err());
    }

    /// A reader counts towards its daemon, while it runs and after its end.
    #[test]
    fn child_processes_count_towards_their_parent() {
        // It computes, says so, and waits for the end of what it reads; its parent does nothing.
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo; read end";
        let mut parent = Command::new("sh")
            .args(["-c", &format!("( {work} ); echo; read end")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(parent.stdout.take().unwrap()).lines();
        said.next().unwrap().unwrap();
        let pid = parent.id();
        let (all, own) = (seconds(pid).unwrap(), own_ticks(pid).unwrap());
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(below(pid).len(), 1);
        assert!(all >= own as f64 / ticks + 0.05, "{all} {own}");
        std::io::Write::write_all(parent.stdin.as_mut().unwrap(), b"end\n").unwrap();
        said.next().unwrap().unwrap();
        assert!(below(pid).is_empty());
        assert!(seconds(pid).unwrap() >= all);
        drop(parent.stdin.take());
        parent.wait().unwrap();
    }
}
