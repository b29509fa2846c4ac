//! The keys of a terminal, while a live screen has it.
//!
//! Its rule: whatever ends the screen, the terminal is as it was before.

use std::io::{IsTerminal, Read, Stdin, Write};

use forebay_error::{Doing, Result};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc::{Receiver, channel};

use super::window::Way;

/// A screen of its own without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What Ctrl-C is where the terminal makes no signal of it.
const CTRL_C: u8 = 3;

/// What keys without a letter begin with.
const ESCAPE: u8 = 0x1b;

/// Bytes of a key at most: what is longer and has no end is none.
const KEY_MAX: usize = 32;

/// Keys that may wait for their turn.
const WAITING: usize = 16;

/// A key that does something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    End,
    Move(Way),
}

/// A terminal whose keys come one by one, until dropped.
pub(super) struct Keys {
    stdin: Stdin,
    before: Termios,
    pressed: Receiver<Key>,
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
        let (press, pressed) = channel(WAITING);
        let taken = Self { stdin, before, pressed };
        // It is left behind in its last read.
        let reads = move || {
            let mut typed = Vec::new();
            while let Some(keys) = read(&mut typed) {
                for key in keys {
                    if press.blocking_send(key).is_err() {
                        return;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("fb-keys".to_owned()).spawn(reads);
        thread.doing("start a thread that reads keys")?;
        let mut out = std::io::stdout();
        out.write_all(ENTER.as_bytes())
            .and_then(|()| out.flush())
            .doing("write to the terminal")?;
        Ok(Some(taken))
    }

    /// The next key that does something. Where nobody is at the terminal any more, the end.
    pub(super) async fn next(&mut self) -> Key {
        self.pressed.recv().await.unwrap_or(Key::End)
    }
}

/// Reads some more, and gives the keys that are whole; none at the end.
fn read(typed: &mut Vec<u8>) -> Option<Vec<Key>> {
    let mut some = [0; KEY_MAX];
    let read = std::io::stdin().lock().read(&mut some).ok().filter(|read| *read > 0)?;
    typed.extend_from_slice(&some[..read]);
    let mut keys = Vec::new();
    while let Some((key, len)) = first_key(typed) {
        typed.drain(..len);
        keys.extend(key);
    }
    if typed.len() > KEY_MAX {
        typed.clear();
    }
    Some(keys)
}

/// What the first key does, if anything, and its bytes; none if it is not whole.
fn first_key(typed: &[u8]) -> Option<(Option<Key>, usize)> {
    match typed {
        [] | [ESCAPE] | [ESCAPE, b'O'] => None,
        [ESCAPE, b'[', rest @ ..] => {
            // Parameters, and what ends it.
            let end = rest.iter().position(|byte| !(0x20..=0x3f).contains(byte))?;
            Some((way(&rest[..end], rest[end]).map(Key::Move), end + 3))
        }
        [ESCAPE, b'O', letter, ..] => Some((way(&[], *letter).map(Key::Move), 3)),
        [b'q' | b'Q' | CTRL_C, ..] => Some((Some(Key::End), 1)),
        [_, ..] => Some((None, 1)),
    }
}

fn way(parameters: &[u8], end: u8) -> Option<Way> {
    Some(match (parameters, end) {
        (_, b'A') => Way::Up,
        (_, b'B') => Way::Down,
        (b"5", b'~') => Way::PageUp,
        (b"6", b'~') => Way::PageDown,
        (_, b'H') | (b"1" | b"7", b'~') => Way::First,
        (_, b'F') | (b"4" | b"8", b'~') => Way::Last,
        _ => return None,
    })
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = tcsetattr(&self.stdin, OptionalActions::Now, &self.before);
        let mut out = std::io::stdout();
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What bytes do that come in these pieces.
    fn pressed(pieces: &[&[u8]]) -> Vec<Key> {
        let (mut typed, mut keys) = (Vec::new(), Vec::new());
        for piece in pieces {
            typed.extend_from_slice(piece);
            while let Some((key, len)) = first_key(&typed) {
                typed.drain(..len);
                keys.extend(key);
            }
        }
        keys
    }

    #[test]
    fn keys_are_what_terminals_send_for_them() {
        for (sent, way) in [
            (&b"\x1b[A"[..], Way::Up),
            (b"\x1bOA", Way::Up),
            (b"\x1b[B", Way::Down),
            (b"\x1b[1;2B", Way::Down),
            (b"\x1b[5~", Way::PageUp),
            (b"\x1b[6~", Way::PageDown),
            (b"\x1b[H", Way::First),
            (b"\x1b[1~", Way::First),
            (b"\x1bOF", Way::Last),
            (b"\x1b[4~", Way::Last),
        ] {
            assert_eq!(pressed(&[sent]), [Key::Move(way)], "{sent:?}");
            // As it comes, byte by byte, and with others about it.
            let bytes: Vec<_> = sent.chunks(1).collect();
            assert_eq!(pressed(&bytes), [Key::Move(way)], "{sent:?}");
            assert_eq!(pressed(&[b"x", sent, b"q"]), [Key::Move(way), Key::End], "{sent:?}");
        }
        // What does nothing is in nobody's way: F5, Alt-x, a lone escape, letters.
        assert_eq!(pressed(&[b"\x1b[15~\x1bx\x1bqabc\xc3\xa4"]), [Key::End]);
        assert_eq!(pressed(&[b"\x1b[\x03", b"\x03"]), [Key::End]);
        assert_eq!(pressed(&[b"Q"]), [Key::End]);
    }
}
