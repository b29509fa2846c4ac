//! `forebay doctor`: is this machine ready for the daemon, and what mends it if not.
//!
//! It changes nothing of the machine, and a check that cannot look says so instead of guessing.
//!
//! ```text
//!   Plan         the daemon that would run            plan.rs
//!   Machine      the kernel's facts                   machine.rs     ┐
//!   Trial        small trials of the daemon's work    trial.rs       ├─► findings ─► Report   finding.rs
//!   MountFacts   the mount of a tier's directory      mount_facts.rs ┘
//! ```

mod audit;
mod certificates;
mod cgroup;
mod clock;
mod cluster;
mod descriptors;
mod direct;
mod directory;
mod disk;
mod encryption;
mod file_system;
mod finding;
mod http;
mod listen;
mod machine;
mod memlock;
mod memory;
mod mount_facts;
mod mount_unit;
mod pages;
mod plan;
mod programs;
mod ring;
mod socket;
mod space;
mod trial;

use std::path::{Path, PathBuf};

use forebay_config::settings::NodeTier;
use forebay_error::{Error, ErrorKind, Result};

use self::clock::{Facts, Moment};
use self::finding::{Finding, Report};
use self::machine::Machine;
use self::mount_facts::MountFacts;
use self::mount_unit::DaemonUnit;
use self::plan::{Plan, without_advice};
use self::socket::Listener;
use self::trial::Trial;
use super::daemon::Io;
use super::{Done, Launcher, Output, print, print_json};

/// Tell whether this machine is ready for the daemon, and what mends it if not.
///
/// One line a check: `ok`; `warn`, which works, but slower or not for long; `wrong`, with which the
/// daemon does not start, fails later or is of no use; `skipped`, with the reason. Below each
/// `warn` and `wrong`, `fix:` names the command, or the file and line to change (`mend` in --json).
///
/// Limits (memlock, open files, control group) are those of the daemon if one answers, else those
/// that one started from here would have: run it as the daemon's user, in its container. Nothing is
/// changed, and no daemon started; on each disk one block is written to a file without a name, and
/// read back.
///
/// Exit codes: 0 nothing is wrong, 1 something is.
///
/// Examples:
///   forebay doctor                              what a daemon here would be, by its configuration
///   sudo -u forebay forebay doctor --config FILE
///   forebay doctor --cache /mnt/nvme0/me        an embedded daemon's cache, there
///   forebay doctor --json | jq '.checks[] | select(.verdict != "ok")'
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Arguments {
    /// The node daemon's configuration. Unset: /etc/forebay/forebay.toml if there is one, else what
    /// an embedded daemon decides for itself.
    #[arg(long, value_name = "FILE", conflicts_with = "cache")]
    config: Option<PathBuf>,
    /// Look at an embedded daemon whose cache is in this directory.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// The I/O engine that the daemon is to use.
    #[arg(long, value_name = "ENGINE", env = "FOREBAY_IO", default_value = "auto")]
    io: Io,
    /// Measure each tier's disk: writes 256 MiB in sequence, reads them back and removes them.
    #[arg(long)]
    probe: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let report = Report::of(look(arguments, launcher)?);
    if arguments.output.json {
        print_json(&report)?;
    } else {
        print(&report.to_string())?;
    }
    match report.counts.wrong {
        0 => Ok(()),
        wrong => Err(Error::new(ErrorKind::Invalid, "this machine is not ready for the daemon")
            .at("wrong", wrong)
            .advise("see the `fix:` lines, or `mend` in --json")
            .into()),
    }
}

/// Returns the findings for a configuration, in words.
pub(super) fn report(config: Option<&Path>, launcher: &Launcher) -> Result<String> {
    let config = config.map(Path::to_owned);
    let arguments = Arguments {
        config,
        cache: None,
        io: Io::Auto,
        probe: false,
        output: Output { json: false },
    };
    Ok(Report::of(look(&arguments, launcher)?).to_string())
}

fn look(arguments: &Arguments, launcher: &Launcher) -> Result<Vec<Finding>> {
    let began = Moment::now();
    let (plan, config) = Plan::make(arguments.config.as_deref(), arguments.cache.as_deref());
    let asked = plan.socket.as_deref().map(socket::ask);
    let machine = match &asked {
        Some(Ok(Some(Listener { pid: Some(pid), .. }))) => Machine::this().with_daemon(*pid),
        _ => Machine::this(),
    };
    let trial = Trial::start(arguments.io.into())?;
    let engine = trial.engine();
    let tiers: Vec<_> = plan
        .on_disk()
        .map(|(at, tier, path)| (at, tier, path, MountFacts::look(&machine, path)))
        .collect();
    let mut found = vec![
        config,
        ring::check(&machine, &engine),
        memlock::check(&machine, &plan, &engine),
        pages::check(&machine, plan.memory, &trial.pages()),
        memory::check(&machine, &plan, in_memory(&tiers)),
    ];
    found.extend(cgroup::check(&machine, &plan));
    found.push(descriptors::check(&machine, &plan));
    let unit = DaemonUnit::find();
    for (at, tier, path, facts) in &tiers {
        let facts = match facts {
            Ok(facts) => facts,
            Err(error) => {
                let found_here = Finding::wrong(
                    "directory",
                    without_advice(error),
                    format!("see `findmnt --target {}` and `dmesg`", path.display()),
                );
                found.push(found_here.of(&tier.name));
                continue;
            }
        };
        let others: Vec<(&NodeTier, &MountFacts)> = tiers
            .iter()
            .filter(|(other, ..)| other != at)
            .filter_map(|(_, tier, _, facts)| Some((*tier, facts.as_ref().ok()?)))
            .collect();
        let mut of_tier = vec![
            directory::check(&plan, *at, facts),
            file_system::check(&plan, *at, facts),
            space::check(&plan, *at, facts, &others),
            disk::check(&machine, &plan, *at, facts),
        ];
        of_tier.extend(encryption::check(&machine, &plan, *at, tier));
        of_tier.extend(mount_unit::check(&plan, *at, facts, unit.as_ref()));
        of_tier.extend(tried(&trial, facts, arguments.probe));
        found.extend(of_tier.into_iter().map(|finding| finding.of(&tier.name)));
    }
    found.push(socket::check(&plan, asked.as_ref()));
    let listener = asked.as_ref().and_then(|asked| asked.as_ref().ok()?.as_ref());
    let user = listener.and_then(Listener::program_user);
    found.push(programs::check(&plan, launcher, user.as_ref()));
    found.push(certificates::check());
    found.extend(listen::check(&plan));
    found.extend(http::check(&machine, &plan));
    found.extend(cluster::check(&plan, listener.and_then(Listener::cluster)));
    found.extend(audit::check(&plan, |folder| MountFacts::look(&machine, folder)));
    found.extend(clock::check(&machine, &Facts::since(began)));
    Ok(found)
}

/// Returns the findings of a trial write, if this user may write.
fn tried(trial: &Trial, facts: &MountFacts, probe: bool) -> Vec<Finding> {
    if !facts.writable {
        return vec![Finding::skipped("direct_io", "this user may not write there")];
    }
    if trial.engine().is_err() {
        return vec![Finding::skipped(
            "direct_io",
            "there is no engine to write with: see io_uring",
        )];
    }
    let mut found = vec![direct::check(&facts.nearest, &trial.direct(&facts.nearest))];
    if probe {
        found.push(direct::measured(&trial.measure(&facts.nearest)));
    }
    found
}

/// Bytes of tiers that turn out to lie in memory.
fn in_memory<T, P>(tiers: &[(T, &NodeTier, P, Result<MountFacts>)]) -> u64 {
    let lies_there = |facts: &Result<MountFacts>| {
        let mount = facts.as_ref().ok().and_then(|facts| facts.mount.as_ref());
        mount.is_some_and(mount_facts::Mount::is_in_memory)
    };
    let there = tiers.iter().filter(|(_, _, _, facts)| lies_there(facts));
    there.fold(0, |sum, (_, tier, ..)| sum.saturating_add(tier.capacity))
}
