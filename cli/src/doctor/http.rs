//! The API over TCP: whether the daemon can have its port, and what admins show there.
//!
//! The port is taken for an instant, and nobody is listened to on it.

use std::net::SocketAddr;
use std::path::Path;

use forebay_config::http::{Tls, Token};
use forebay_error::{ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::finding::Finding;
use super::machine::Machine;
use super::plan::{Plan, advice, without_advice};

const CHECK: &str = "http";

/// Returns the findings; none without `[daemon] http`.
pub(super) fn check(machine: &Machine, plan: &Plan) -> Vec<Finding> {
    let Some((address, config)) = plan.config().and_then(|all| Some((all.daemon.http?, all)))
    else {
        return Vec::new();
    };
    let mut found = vec![port(machine, plan, address, try_bind(address))];
    let tls = config.daemon.http_tls.as_ref();
    found.extend(config.daemon.token_file.as_deref().map(|path| {
        let is_open = tls.is_none() && !address.ip().is_loopback();
        token(plan, path, Token::read(path), is_open)
    }));
    found.extend(tls.map(|tls| certificates(plan, Tls::read(&tls.files()))));
    found
}

/// Binds the address as the daemon does, without listening.
fn try_bind(address: SocketAddr) -> rustix::io::Result<()> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Recently closed connections are no obstacle.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)
}

fn port(machine: &Machine, plan: &Plan, address: SocketAddr, tried: Result<(), Errno>) -> Finding {
    let place = plan.place("daemon", 0, "http");
    let number = address.port();
    let finding = match tried {
        Ok(()) => Finding::ok(CHECK, format!("{address} is free")),
        Err(Errno::ADDRINUSE) => match machine.listens_on(number) {
            Some(true) => Finding::ok(CHECK, format!("the daemon listens on {address}")),
            Some(false) => Finding::wrong(
                CHECK,
                format!("{address} is taken, and not by the daemon"),
                format!(
                    "`ss -ltnp 'sport = :{number}'` shows the process that has it; or {place}: choose another"
                ),
            ),
            None => Finding::skipped(
                CHECK,
                format!(
                    "{address} is taken by a process this user cannot see: run as the daemon's user"
                ),
            ),
        },
        Err(Errno::ACCESS) => Finding::wrong(
            CHECK,
            format!("this user may not bind port {number}"),
            format!(
                "{place}: choose one from 1024 on; or under systemd: `systemctl edit UNIT`, [Service] \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE"
            ),
        ),
        Err(Errno::ADDRNOTAVAIL) => Finding::wrong(
            CHECK,
            format!("{} is not an address of this machine", address.ip()),
            format!(
                "see `ip address`, and {place}: name one of this machine's addresses, or 0.0.0.0"
            ),
        ),
        Err(errno) => Finding::wrong(
            CHECK,
            format!("{address} cannot be bound: {errno}"),
            format!("{place}: choose another"),
        ),
    };
    finding.figure("address", address.to_string())
}

/// `is_open`: it crosses a network as it is.
fn token(plan: &Plan, path: &Path, read: Result<Token>, is_open: bool) -> Finding {
    const CHECK: &str = "token";
    let (place, path) = (plan.place("daemon", 0, "token_file"), path.display());
    match read {
        Ok(_) if is_open => Finding::warn(
            CHECK,
            "the token crosses the network in plain text",
            format!("{place}: set http_tls beside it, or have `http` listen on 127.0.0.1"),
        ),
        Ok(_) => Finding::ok(CHECK, format!("no other user may read {path}")),
        Err(error) => {
            let otherwise = match error.kind() {
                ErrorKind::NotFound => format!(
                    "`install -o USER -m 600 /dev/null {path}; openssl rand -hex 32 > {path}`, USER being the \
                     daemon's"
                ),
                _ => format!("{place}: name a file that the daemon's user may read"),
            };
            Finding::wrong(CHECK, without_advice(&error), advice(&error, &otherwise))
        }
    }
}

fn certificates(plan: &Plan, read: Result<Tls>) -> Finding {
    const CHECK: &str = "tls";
    match read {
        Ok(_) => {
            Finding::ok(CHECK, "certificate and key match, and no other user may read the key")
        }
        Err(error) => {
            let place = plan.place("daemon", 0, "http_tls");
            let otherwise = "name PEM files that the daemon's user may read";
            let mend = format!("{place}: {}", advice(&error, otherwise));
            Finding::wrong(CHECK, without_advice(&error), mend)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use super::super::finding::Verdict;
    use super::super::machine::Recorded;
    use super::super::plan::test_plan;
    use super::*;

    fn of(machine: &Machine, daemon: &str) -> Vec<Finding> {
        let (plan, _folder) = test_plan(&format!(
            "[daemon]\n{daemon}\n[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\n"
        ));
        check(machine, &plan)
    }

    #[test]
    fn port_must_be_free_or_ours() {
        assert!(of(&Machine::this(), "").is_empty());
        let free = of(&Machine::this(), "http = '127.0.0.1:0'");
        assert_eq!((free.len(), free[0].verdict), (1, Verdict::Ok), "{free:?}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = format!("http = '{}'", listener.local_addr().unwrap());
        let taken = of(&Machine::this(), &http).remove(0);
        assert_eq!(taken.verdict, Verdict::Wrong, "{taken:?}");
        assert!(taken.mend.unwrap().contains("ss -ltnp"));
        let mut ours = Machine::this();
        ours.is_daemon(std::process::id());
        assert_eq!(of(&ours, &http)[0].verdict, Verdict::Ok);
        let elsewhere = of(&Machine::this(), "http = '192.0.2.1:9480'").remove(0);
        assert_eq!(elsewhere.verdict, Verdict::Wrong);
        assert!(elsewhere.mend.unwrap().contains("forebay.toml:2"));
        // A process whose descriptors are unreadable.
        let mut hidden = Recorded::new().machine.clone();
        hidden.is_daemon(7);
        assert_eq!(of(&hidden, &http)[0].verdict, Verdict::Skipped);
    }

    #[test]
    fn token_must_be_private_and_sent_only_locally_or_by_tls() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let with = |http: &str, path: &Path| {
            let daemon = format!("http = '{http}'\ntoken_file = {path:?}");
            let mut found = of(&Machine::this(), &daemon);
            assert_eq!(found.len(), 2, "{found:?}");
            found.remove(1)
        };
        let missing = with("127.0.0.1:0", &path);
        assert_eq!(missing.verdict, Verdict::Wrong);
        assert!(missing.mend.unwrap().contains("openssl rand"), "{:?}", missing.found);
        fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        let known = with("127.0.0.1:0", &path);
        assert_eq!(known.verdict, Verdict::Wrong);
        assert!(known.mend.unwrap().contains("chmod 600"));
        mode(0o600);
        assert_eq!(with("127.0.0.1:0", &path).verdict, Verdict::Ok);
        assert_eq!(with("[::1]:0", &path).verdict, Verdict::Ok);
        let open = with("0.0.0.0:0", &path);
        assert_eq!(open.verdict, Verdict::Warn);
        assert!(open.mend.unwrap().contains("forebay.toml:3: set http_tls"));
        // Inside of TLS it may; what that is to be made of is looked at.
        let tls = "http_tls = { cert = '/nowhere/c.pem', key = '/nowhere/k.pem' }";
        let daemon = format!("http = '0.0.0.0:0'\ntoken_file = {path:?}\n{tls}");
        let found = of(&Machine::this(), &daemon);
        let verdicts: Vec<_> = found.iter().map(|one| (one.check, one.verdict)).collect();
        let wanted = [("http", Verdict::Ok), ("token", Verdict::Ok), ("tls", Verdict::Wrong)];
        assert_eq!(verdicts, wanted, "{found:?}");
        assert!(found[2].mend.as_ref().unwrap().contains("forebay.toml:4"), "{found:?}");
    }
}
