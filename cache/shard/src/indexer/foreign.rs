//! Content that lies behind a shard's name and is no tar: pointers, pages and error documents.
//!
//! The guess goes by the first bytes alone, and the error shows them, made printable.

use forebay_error::{Error, ErrorKind, printable};

/// Bytes that are looked at: an error document of a store fits.
pub(super) const LOOKED_AT: usize = 4096;

/// Characters of the content that an error shows: enough to recognise it, too few for a page.
const SHOWN_CHARS: usize = 80;

/// Characters of a store's own message that an error shows.
const MESSAGE_CHARS: usize = 200;

/// Kind of content, and the advice for it.
type Guess = (&'static str, &'static str);

/// The first bytes of binary formats that are uploaded in place of a tar.
const BINARIES: [(&[u8], &str); 6] = [
    (b"PAR1", "a Parquet file"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"%PDF", "a PDF document"),
];

/// Returns `error`, of an archive whose first header is none, with what the bytes seem to be.
pub(super) fn explain(error: Error, first: &[u8]) -> Error {
    let text = String::from_utf8_lossy(first);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let Some((content, advice)) = guess(first, text) else {
        return match first.iter().any(|&byte| byte != 0) {
            true => error.at("first_bytes", shown(text, SHOWN_CHARS)),
            false => error,
        };
    };
    let offset = error.place("offset").unwrap_or("0").to_owned();
    let error = Error::new(ErrorKind::Corrupt, format!("the shard is {content}, not a tar"))
        .at("offset", offset)
        .at("content", content)
        .at("first_bytes", shown(text, SHOWN_CHARS))
        .advise(advice);
    [("code", "Code"), ("store_message", "Message")].into_iter().fold(
        error,
        |error, (place, name)| match element(text, name).filter(|_| content == STORE_ERROR.0) {
            Some(value) => error.at(place, shown(value, MESSAGE_CHARS)),
            None => error,
        },
    )
}

const STORE_ERROR: Guess = (
    "an error document of a store",
    "mend what the store's code and message name, then fetch it again",
);

fn guess(first: &[u8], text: &str) -> Option<Guess> {
    let binary = BINARIES.iter().find(|(magic, _)| first.starts_with(magic));
    if let Some((_, content)) = binary {
        return Some((content, "pack the samples as a tar, or check the URL"));
    }
    let lower: String = text.chars().take(LOOKED_AT).collect::<String>().to_ascii_lowercase();
    let begins = |starts: &[&str]| starts.iter().any(|start| lower.starts_with(start));
    if begins(&["version https://git-lfs", "version https://hawser"]) {
        let advice =
            "fetch the file itself: `git lfs pull`, or the URL from which the host serves it";
        return Some(("a Git LFS pointer", advice));
    }
    if begins(&["<?xml", "<error"]) && lower.contains("<code>") {
        return Some(STORE_ERROR);
    }
    if begins(&["<!doctype html", "<html", "<head", "<body"]) || lower.contains("<html") {
        let advice = "open the URL in a browser: a login, an error page, or a page about the file";
        return Some(("an HTML page", advice));
    }
    if begins(&["<?xml", "<"]) {
        return Some(("an XML document", "check the URL, and the server's answer to it"));
    }
    if begins(&["{", "["]) {
        return Some(("a JSON document", "check the URL, and the server's answer to it"));
    }
    let is_text = !text.is_empty()
        && !text.contains(char::REPLACEMENT_CHARACTER)
        && text.chars().all(|c| !c.is_control() || c.is_whitespace());
    is_text.then_some(("a text", "check the URL, and the server's answer to it"))
}

/// The text of an XML element.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}

fn shown(text: &str, chars: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    printable(&words).chars().take(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(first: &[u8]) -> Error {
        let error = Error::new(ErrorKind::Corrupt, "a tar header has a wrong checksum");
        explain(error.at("offset", 0), first)
    }

    #[test]
    fn content_is_named_by_its_first_bytes() {
        for (first, content) in [
            (
                &b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"[..],
                "a Git LFS pointer",
            ),
            (b"{\"error\": \"Repository not found\"}", "a JSON document"),
            (b"\xef\xbb\xbf\n<!DOCTYPE html><title>Log in</title>", "an HTML page"),
            (b"<?xml version=\"1.0\"?><!DOCTYPE html PUBLIC \"x\"><html>", "an HTML page"),
            (
                b"<?xml version=\"1.0\"?><Error><Code>SlowDown</Code></Error>",
                "an error document of a store",
            ),
            (b"<?xml version=\"1.0\"?><feed/>", "an XML document"),
            (b"s3://bucket/000.tar\ns3://bucket/001.tar\n", "a text"),
            (b"PAR1\x15\x04", "a Parquet file"),
        ] {
            let error = explained(first);
            assert_eq!(error.place("content"), Some(content), "{error}");
            assert_eq!((error.kind(), error.place("offset")), (ErrorKind::Corrupt, Some("0")));
            assert!(error.advice().is_some(), "{error}");
        }
        for other in [&b"\0\0\0\0"[..], b"\x01\x02\xfe\xff", b""] {
            assert_eq!(explained(other).place("content"), None);
        }
        assert!(explained(b"\x01\x02\xfe").place("first_bytes").is_some());
    }

    #[test]
    fn code_and_message_of_the_store_are_shown() {
        let error = explained(
            b"<Error><Code>AccessDenied</Code>\n<Message>Request has\nexpired\x1b[31m</Message></Error>",
        );
        assert_eq!(error.place("code"), Some("AccessDenied"));
        let message = error.place("store_message").unwrap();
        assert!(
            message.starts_with("Request has expired") && !message.contains('\x1b'),
            "{message}"
        );
    }
}
