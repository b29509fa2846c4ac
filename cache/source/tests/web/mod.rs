//! A web server that answers what a test says, and keeps what it was asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request's line and headers.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    #[allow(dead_code, reason = "not every test looks at methods")]
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// All headers, as they came.
    pub(crate) headers: Vec<String>,
}

impl Asked {
    /// A header's value, if it is there.
    #[allow(dead_code, reason = "not every test looks at headers")]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&String| {
            line.split_once(':').is_some_and(|(have, _)| have.eq_ignore_ascii_case(name))
        };
        self.headers.iter().find(named)?.split_once(':').map(|(_, value)| value.trim())
    }
}

/// Status of a reply whose body is all of it, head included; the connection ends behind it.
#[allow(dead_code, reason = "not every test answers by hand")]
pub(crate) const RAW: u16 = 0;

/// Reply: status, more headers, body.
pub(crate) type Said = (u16, Vec<String>, String);

/// A server on loopback. Its thread ends with the process.
pub(crate) struct Web {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Web {
    /// Answers every request by `answer`.
    pub(crate) fn new(answer: impl Fn(&Asked) -> Said + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (theirs, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, answer) = (theirs.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &asked, &*answer));
            }
        });
        Self { address, asked }
    }

    /// Returns the URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, asked: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Said) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut stream = stream;
    while let Some(Ok(first)) = lines.next() {
        let headers = lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty());
        let headers = headers.collect();
        let word = |at| first.split(' ').nth(at).unwrap_or_default().to_owned();
        let request = Asked { method: word(0), target: word(1), headers };
        asked.lock().unwrap().push(request.clone());
        let (status, headers, body) = answer(&request);
        if status == RAW {
            // The other side may have gone; it is then past caring.
            let _ = stream.write_all(body.as_bytes());
            return;
        }
        let mut text = format!("HTTP/1.1 {status} As Told\r\nContent-Length: {}\r\n", body.len());
        for header in headers {
            text.push_str(&header);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        if !first.starts_with("HEAD ") {
            text.push_str(&body);
        }
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}
