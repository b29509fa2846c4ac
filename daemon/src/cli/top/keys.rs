//! The keys of a terminal, while a live screen has it.
//!
//! Its rule: whatever ends the screen, the terminal is as it was before.

use std::io::{IsTerminal, Read, Stdin, Write};
use std::time::Instant;

use forebay_error::{Doing, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// A screen of its own without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What Ctrl-C is where the terminal makes no signal of it.
const CTRL_C: u8 = 3;

/// A terminal whose keys come one by one, until dropped.
pub(super) struct Keys {
    stdin: Stdin,
    before: Termios,
}

impl Keys {
    /// Takes the terminal that keys come from; none if they come from none.
    pub(super) fn taken() -> Result<Option<Self>> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin).doing("ask for the terminal's modes")?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(&stdin, OptionalActions::Now, &modes).doing("set the terminal's modes")?;
        let taken = Self { stdin, before };
        let mut out = std::io::stdout();
        out.write_all(ENTER.as_bytes())
            .and_then(|()| out.flush())
            .doing("write to the terminal")?;
        Ok(Some(taken))
    }

    /// Waits for the key that ends the screen; whether it came before `until`.
    pub(super) fn end_before(&self, until: Instant) -> Result<bool> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(&self.stdin, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                // Such as that the window has another size.
                Err(Errno::INTR) => return Ok(false),
                Err(error) => {
                    let polled: std::io::Result<()> = Err(error.into());
                    polled.doing("wait for a key")?;
                }
            }
            let mut pressed = [0; 64];
            let read = self.stdin.lock().read(&mut pressed).doing("read a key")?;
            // Nobody is at the terminal any more, or somebody has seen enough.
            if read == 0 || pressed[..read].iter().any(|key| ends(*key)) {
                return Ok(true);
            }
        }
    }
}

fn ends(key: u8) -> bool {
    matches!(key, b'q' | b'Q' | CTRL_C)
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = tcsetattr(&self.stdin, OptionalActions::Now, &self.before);
        let mut out = std::io::stdout();
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
    }
}
