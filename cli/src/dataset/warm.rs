//! `forebay dataset warm`.
//!
//! The progress shown is the daemon's own count. The list is sent once, in pieces; the daemon keeps
//! it, and fetches.

use std::io::Write;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use forebay_api::requests::WarmUp;
use forebay_api::warm::Warming;
use forebay_client::{Admin, Deadline};
use forebay_config::Rate;
use forebay_error::{Error, ErrorKind};
use forebay_source::Options;
use forebay_wire::message::LeftOut;
use indicatif::ProgressBar;
use serde::Serialize;

use super::super::{
    ANSWER_TIMEOUT, CONNECT_TIMEOUT, Change, Done, Failure, Launcher, Named, WithLeftOut,
    bar_style, print, print_json, unexpected,
};
use super::check::{Answer, ShardStatus, ask};
use super::distinct;

/// A daemon that runs has a list of a million shards, and begins, within this.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of restarts of the daemon a wait survives: one that keeps ending needs attention.
const DAEMONS: usize = 5;

/// Interval of progress lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Fetch shards into the cache before a job wants them.
///
/// The daemon fetches what is not there behind everything that jobs want, and stops where it would
/// push out what it fetched before. Without --wait the command ends at once and the daemon goes on
/// by itself, for as long as it runs: `forebay status` shows how far it is. Shards whose fetch has
/// begun when a warm-up is stopped still arrive. A daemon is started if none runs.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Warm {
    /// Shards: URLs or paths, with braces (`{000..099}`) and globs; or a data set's name, for what
    /// its pattern matches.
    #[arg(required_unless_present = "stop", value_name = "URLS")]
    urls: Vec<String>,
    /// Fetch at this rate at most, like `2Gbit/s` or `500MB/s`; what jobs want, too, comes as they
    /// need it.
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<Rate>,
    /// Wait for the end and show how far it is; Ctrl-C stops it. A daemon that is restarted
    /// meanwhile goes on with what is missing. Exit code 1 tells that shards could not be had, and
    /// which.
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// Stop the warm-up of this number instead, as `forebay status` shows it.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["urls", "bandwidth", "wait", "dry_run"])]
    stop: Option<u64>,
    #[command(flatten)]
    change: Change,
}

/// Plan of a dry run.
#[derive(Serialize)]
struct Plan<'a> {
    dry_run: bool,
    shards: usize,
    fetch: Vec<&'a str>,
    bytes: u64,
}

pub(super) fn run(arguments: &Warm, launcher: &Launcher) -> Done {
    if let Some(number) = arguments.stop {
        return stop(arguments, number);
    }
    let Named { urls, left_out } = distinct(&arguments.urls, &arguments.change.target, launcher)?;
    if arguments.change.dry_run {
        return rehearse(arguments, &urls, &left_out, launcher);
    }
    if arguments.wait {
        let told = wait(arguments, &urls, launcher)?;
        return tell(&told, &left_out, arguments.change.output.json);
    }
    let admin = arguments.change.target.admin(launcher)?;
    let told: Warming = admin
        .post("/api/v1/warm-ups", &asked(arguments, &urls), &Deadline::after(BEGIN_TIMEOUT))
        .map_err(Failure::of_request)?;
    if arguments.change.output.json {
        return Ok(print_json(&WithLeftOut { document: &told, left_out: &left_out })?);
    }
    let Warming { number, shards, .. } = told;
    Ok(print(&format!(
        "warm-up {number} of {shards} shards continues in the daemon\n`forebay status` shows its progress, `forebay dataset warm --stop {number}` ends it; the same command with --wait waits for it"
    ))?)
}

fn stop(arguments: &Warm, number: u64) -> Done {
    let admin = arguments.change.target.admin_if_running()?;
    let path = format!("/api/v1/warm-ups/{number}");
    let stopped = admin.delete(&path, &Deadline::after(ANSWER_TIMEOUT));
    let _: Warming = stopped.map_err(Failure::of_request)?;
    if arguments.change.output.json {
        return Ok(print_json(&serde_json::json!({ "number": number, "stopped": true }))?);
    }
    Ok(print(&format!("warm-up {number} is stopped"))?)
}

fn rehearse(arguments: &Warm, urls: &[String], left_out: &LeftOut, launcher: &Launcher) -> Done {
    let admin = arguments.change.target.admin(launcher)?;
    let answers = ask(&admin, urls, false, |_| Ok(()))?;
    let would =
        |answer: &&Answer<'_>| !matches!(answer.state, ShardStatus::Whole | ShardStatus::Broken);
    let would: Vec<_> = answers.iter().filter(would).collect();
    let bytes = would.iter().filter_map(|answer| answer.missing_bytes()).sum();
    let fetch: Vec<_> = would.iter().map(|answer| answer.url).collect();
    if arguments.change.output.json {
        let document = &Plan { dry_run: true, shards: urls.len(), fetch, bytes };
        return Ok(print_json(&WithLeftOut { document, left_out })?);
    }
    for url in &fetch {
        print(&format!("{}  would be fetched", forebay_error::shown(url)))?;
    }
    let size = ByteSize(bytes).display().iec();
    Ok(print(&format!("{} of {} shards, {size}, would be fetched", fetch.len(), urls.len()))?)
}

fn asked(arguments: &Warm, urls: &[String]) -> WarmUp {
    let bandwidth = arguments.bandwidth.map(|rate| rate.bytes());
    WarmUp { urls: urls.to_vec(), origin: Options::from_env().into_map(), bandwidth }
}

/// Watches a warm-up to its end, at the next daemon if the first one ends before.
fn wait(arguments: &Warm, urls: &[String], launcher: &Launcher) -> Done<Warming> {
    let mut screen = Screen::new(urls.len());
    let mut admin = arguments.change.target.admin(launcher)?;
    let (mut before, mut daemons) = (Warming::default(), 1);
    loop {
        let (last, lost) = match follow(&admin, arguments, urls, &before, &mut screen) {
            (last, None) => {
                screen.clear();
                return Ok(last);
            }
            (last, Some(error)) => (last, error),
        };
        before = last;
        let is_gone = matches!(lost.kind(), ErrorKind::Closed | ErrorKind::Unavailable);
        if !is_gone || daemons == DAEMONS {
            screen.clear();
            return Err(Failure::of_request(
                lost.advise("fetched shards stay; the same command continues with the rest"),
            ));
        }
        daemons += 1;
        screen.say("the daemon has ended; waiting for it, or for another");
        admin = find_again(arguments, launcher)?;
    }
}

/// Follows the warm-up across restarts of the daemon; returns the last progress, and the reason if
/// it was not the end.
fn follow(
    admin: &Admin,
    arguments: &Warm,
    urls: &[String],
    before: &Warming,
    screen: &mut Screen,
) -> (Warming, Option<Error>) {
    let mut last = before.clone();
    let show = |told: Warming| {
        last = together(before, told);
        screen.show(&last);
        Ok(())
    };
    let asked = asked(arguments, urls);
    let deadline = Deadline::after(BEGIN_TIMEOUT);
    match admin.follow("/api/v1/warm-ups?follow=true", &asked, show, &deadline) {
        Ok(()) if last.done => (last, None),
        Ok(()) => (last, Some(unexpected())),
        Err(error) => (last, Some(error)),
    }
}

/// Adds the progress of two daemons in sequence: shards the first one fetched are found by the
/// second.
fn together(before: &Warming, now: Warming) -> Warming {
    Warming {
        fetched: before.fetched + now.fetched,
        cached: now.cached.saturating_sub(before.fetched),
        bytes: before.bytes + now.bytes,
        ..now
    }
}

fn find_again(arguments: &Warm, launcher: &Launcher) -> Done<Admin> {
    let mut last = None;
    let found =
        Deadline::after(CONNECT_TIMEOUT).retry(|| match arguments.change.target.admin(launcher) {
            Ok(admin) => Ok(Some(admin)),
            Err(failure) => {
                let error = failure.error().clone();
                last = Some(failure);
                if error.kind() == ErrorKind::PermissionDenied { Err(error) } else { Ok(None) }
            }
        });
    match (found, last) {
        (Ok(Some(admin)), _) => Ok(admin),
        (_, Some(failure)) => Err(failure),
        (Ok(None), None) => Err(unexpected().into()),
        (Err(error), None) => Err(error.into()),
    }
}

fn tell(told: &Warming, left_out: &LeftOut, json: bool) -> Done {
    if json {
        print_json(&WithLeftOut { document: told, left_out })?;
    } else {
        for failure in &told.failures {
            print(&format!("{}: {}", failure.kind, failure.error))?;
        }
        print(&summary(told))?;
    }
    if told.failed + told.untried == 0 {
        return Ok(());
    }
    let advice = match told.untried {
        0 => "the list gives the reasons; fix them and run it again",
        _ => {
            "too many failed in a row and the rest was skipped, or it was stopped; fix the cause and run it again"
        }
    };
    Err(Error::new(ErrorKind::Unavailable, "not all shards are in the cache")
        .at("failed", told.failed)
        .at("untried", told.untried)
        .advise(advice)
        .into())
}

fn summary(told: &Warming) -> String {
    let size = ByteSize(told.bytes).display().iec();
    let Warming { shards, fetched, cached, failed, untried, .. } = told;
    let left = if *untried > 0 { format!(", {untried} not tried") } else { String::new() };
    format!(
        "{shards} shards: {fetched} fetched ({size}), {cached} cached before, {failed} failed{left}"
    )
}

/// A bar on a terminal; elsewhere a line now and then.
struct Screen {
    bar: ProgressBar,
    begun: Instant,
    line: Instant,
}

impl Screen {
    fn new(shards: usize) -> Self {
        let style = "{bar:40} {pos}/{len} shards  {msg}  {elapsed} (left {eta})";
        let bar = ProgressBar::new(shards as u64).with_style(bar_style(style));
        let now = Instant::now();
        Self { bar, begun: now, line: now }
    }

    fn show(&mut self, told: &Warming) {
        let done = told.fetched + told.cached + told.failed;
        let seconds = self.begun.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        let size = ByteSize(told.bytes).display().iec();
        let rate = ByteSize((told.bytes as f64 / seconds) as u64).display().iec();
        let failed =
            if told.failed > 0 { format!("  {} failed", told.failed) } else { String::new() };
        let message = format!("{size}  {rate}/s{failed}");
        if self.bar.is_hidden() {
            if self.line.elapsed() >= LINE_EVERY && !told.done {
                self.line = Instant::now();
                self.say(&format!("{done} of {} shards  {message}", told.shards));
            }
            return;
        }
        self.bar.set_message(message);
        self.bar.set_position(done);
    }

    fn say(&self, line: &str) {
        // Nothing is left to tell it to if standard error is gone.
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "forebay: {line}");
        });
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
