//! HTTP as it crosses a socket: what is sent is what a test wrote, right or wrong.

use std::io::{Read, Write};

use serde_json::Value;

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its head, in small letters.
    pub head: String,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// The answer to one request, over a connection that ends with it. `headers`: each ends with `\r\n`.
    ///
    /// # Panics
    /// If there is none.
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
        // Who is refused before all was read may be cut off, before or behind the answer.
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

    /// Its body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn document(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// That it is a problem of this kind.
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
