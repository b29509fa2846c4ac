//! A command that ran to its end, and the error it reported.

use std::process::{Command, Output, Stdio};

use forebay_error::{Error, ErrorKind};

/// Exit code and output of a command.
#[derive(Debug)]
pub struct Ended {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs a command to its end, without input.
///
/// # Panics
/// If it does not start, is killed, or writes bytes that are not text.
#[must_use]
pub fn run(mut command: Command) -> Ended {
    let output = command.stdin(Stdio::null()).output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("the output is text");
    let code = output.status.code().unwrap_or_else(|| panic!("killed: {:?}", output.status));
    Ended { code, out: text(output.stdout), err: text(output.stderr) }
}

/// The command with SIGINT at its default: background jobs of a shell ignore SIGINT.
#[must_use]
pub fn interruptible(command: &Command) -> Command {
    let mut interruptible = Command::new("env");
    interruptible.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => interruptible.env(name, value),
            None => interruptible.env_remove(name),
        };
    }
    interruptible
}

impl Ended {
    /// The error on standard error.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn error(&self) -> Error {
        reported_error(&self.err)
    }
}

/// The error that `forebay-actor once` wrote to standard output.
///
/// # Panics
/// If it wrote none.
#[must_use]
pub fn played_error(output: &Output) -> Error {
    assert!(!output.status.success(), "no error: {output:?}");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("not an error: {error}: {output:?}"))
}

/// Kind, message and places of an error that a command wrote as text:
/// `forebay: Kind: message (name=value, …); advice`. Advice becomes part of the message.
///
/// # Panics
/// If no line of the text has this form.
#[must_use]
pub fn reported_error(text: &str) -> Error {
    let found = text.lines().rev().find_map(|line| {
        let (kind, message) = line.strip_prefix("forebay: ")?.split_once(": ")?;
        Some((serde_json::from_value::<ErrorKind>(kind.into()).ok()?, message))
    });
    let (kind, message) = found.unwrap_or_else(|| panic!("no error is reported: {text}"));
    let error = Error::new(kind, message);
    places(message).into_iter().fold(error, |error, (name, value)| error.at(&name, value))
}

/// The `(name=value, …)` of an error's text.
fn places(message: &str) -> Vec<(String, String)> {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let named = |part: &str| {
        let (name, value) = part.split_once('=')?;
        is_name(name).then(|| (name.to_owned(), value.to_owned()))
    };
    let starts = message.match_indices(" (").map(|(at, _)| &message[at + 2..]);
    let Some(list) = starts.into_iter().find(|list| named(list).is_some()) else {
        return Vec::new();
    };
    let list = list.split_once("); ").map_or(list, |(list, _)| list);
    let list = list.strip_suffix(')').unwrap_or(list);
    let mut places: Vec<(String, String)> = Vec::new();
    for part in list.split(", ") {
        match (named(part), places.last_mut()) {
            (Some(place), _) => places.push(place),
            // A value may hold commas.
            (None, Some((_, value))) => *value += &format!(", {part}"),
            (None, None) => {}
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_errors_keep_their_kind_and_places() {
        let error = Error::new(ErrorKind::Full, "no room (none)")
            .at("dataset", "(rest)")
            .at("tiers", "a, b")
            .advise("make room (some)");
        let text = format!("forebay: a note\nforebay: Full: {error}\n");
        let read = reported_error(&text);
        assert_eq!(read.kind(), ErrorKind::Full);
        assert_eq!((read.place("dataset"), read.place("tiers")), (Some("(rest)"), Some("a, b")));
        assert_eq!(reported_error("forebay: Closed: gone").places().count(), 0);
    }
}
