//! `forebay-origin`: a directory as an S3 and HTTP server, for demonstrations, tests and benches.
//!
//! The first line on standard output is the address, printed once it listens. The server runs
//! until it is interrupted, terminated, or its standard input ends. Each line of that input is
//! answered by a line with the numbers of requests and of body bytes so far.

use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;
use forebay_error::{Doing, Result};
use forebay_testkit::{ACCESS_KEY, S3Server, SECRET_KEY};

/// Serve DIR/BUCKET/KEY by S3 (signed requests) and by plain HTTP (unsigned GET and HEAD)
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Directory to serve; its folders are the buckets
    #[arg(long)]
    dir: PathBuf,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Access key that is accepted
    #[arg(long, default_value = ACCESS_KEY)]
    access_key: String,
    /// Secret key that is accepted
    #[arg(long, default_value = SECRET_KEY)]
    secret_key: String,
    /// Stop when standard input ends, that is, when the process that started this one does; answer
    /// each line with the requests and the body bytes so far
    #[arg(long)]
    until_eof: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let address = SocketAddr::new(options.host, options.port);
    let server =
        S3Server::start_at(&options.dir, address, &options.access_key, &options.secret_key)?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on {}", server.endpoint()).doing("say where it listens")?;
    out.flush().doing("say where it listens")?;
    if options.until_eof {
        for line in std::io::stdin().lock().lines() {
            line.doing("wait for the end of input")?;
            let counts = server.counts();
            let bytes: u64 = counts.bytes.values().sum();
            writeln!(out, "{} {bytes}", counts.requests).doing("say what was asked for")?;
            out.flush().doing("say what was asked for")?;
        }
    } else {
        loop {
            // The server's threads do the work; a signal ends the process.
            std::thread::park();
        }
    }
    Ok(())
}
