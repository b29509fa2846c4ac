//! CPU time of processes, as the kernel accounts it.

use forebay_error::{Doing, Error, ErrorKind, Result};

/// Fields of /proc/PID/stat between the command's closing parenthesis and `utime` (proc(5)).
const FIELDS_BEFORE_UTIME: usize = 11;

/// Seconds of CPU that process `pid` has used, all threads together.
///
/// # Errors
/// `NotFound` if there is no such process.
pub(crate) fn seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).doing("read a process's CPU time")?;
    // The command may contain anything, parentheses included; what follows the last one is numbers.
    let numbers = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = numbers.split_whitespace().skip(FIELDS_BEFORE_UTIME);
    let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok());
    match (ticks(), ticks()) {
        (Some(user), Some(system)) => {
            Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
        }
        _ => {
            Err(Error::new(ErrorKind::Invalid, "a process's CPU time makes no sense")
                .at("path", path))
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_shows() {
        let pid = std::process::id();
        let before = super::seconds(pid).unwrap();
        let mut x = 1_u64;
        while super::seconds(pid).unwrap() < before + 0.02 {
            x = x.wrapping_mul(3);
        }
        assert_ne!(x, 0);
        assert!(super::seconds(0).is_err());
    }
}
