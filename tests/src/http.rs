//! HTTP over a raw socket: requests are sent as a test wrote them, valid or not.

use std::io::{Read, Write};

use serde_json::Value;

/// Answer to one request.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Head, in lower case.
    pub head: String,
    /// Body.
    pub body: String,
}

impl Answer {
    /// Sends one request over a connection of its own. Each of `headers` ends with `\r
    /// `.
    ///
    /// # Panics
    /// If there is no answer.
    #[must_use]
    pub fn to(
        mut socket: impl Read + Write,
        (method, path): (&str, &str),
        headers: &str,
        body: &str,
    ) -> Self {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        // A rejected request may be cut off before or after its answer.
        let _ = socket.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).expect("an answer is text");
        let parts = answer.split_once("\r\n\r\n");
        let (head, body) = parts.unwrap_or_else(|| panic!("no answer to {request}: {answer:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {head}"));
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// Parses the body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[must_use]
    pub fn document(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Asserts that it is a problem document of this kind.
    ///
    /// # Panics
    /// If it is not.
    pub fn assert_problem(&self, status: u16, kind: &str) {
        assert_eq!(self.status, status, "{} {}", self.head, self.body);
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        let problem = self.document();
        assert_eq!(problem["kind"], kind, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
    }
}
