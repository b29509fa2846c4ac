//! A node's place in its cluster: certificate, member list, and what the other nodes answer.
//!
//! The nodes are greeted from here, with the node's certificate: that needs no daemon on this
//! machine, and registers nothing.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_cluster::{Member, Ring, parse_members};
use forebay_config::read_peer_tls;
use forebay_config::settings::{ClusterConfig, MembersSource};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_peers::message::Greeting;
use forebay_peers::{CertificateReport, ClusterReport, Greeted, PeerTls, Peers};
use forebay_store::rules_digest;
use futures::StreamExt;
use tokio::sync::watch;

use super::finding::{Finding, listed};
use super::plan::{Plan, advice, without_advice};

/// Time before its end at which a certificate is renewed at the latest: an admin is away for a
/// week.
const RENEWED_BEFORE: Duration = Duration::from_secs(14 * 24 * 3600);

/// Nodes that are greeted: more would take longer than an admin waits.
const GREETED: usize = 256;

/// Greetings at once, and the time for each.
const AT_ONCE: usize = 32;
const GREET_WITHIN: Duration = Duration::from_secs(2);

/// Names that one finding has.
const NAMED: usize = 8;

/// Returns the findings; none without `[cluster]`. `report`: that of the running daemon.
pub(super) fn check(plan: &Plan, report: Option<&ClusterReport>) -> Vec<Finding> {
    let Some(config) = plan.config() else { return Vec::new() };
    let cluster = match config.cluster() {
        Ok(Some(cluster)) => cluster,
        // The check of the configuration tells a mistake in it.
        Ok(None) | Err(_) => return Vec::new(),
    };
    let tls = read_peer_tls(&cluster.tls);
    let mut found = vec![certificate(plan, &cluster, tls.as_ref(), SystemTime::now())];
    let members = members(&cluster, report);
    found.push(list(plan, &cluster, members.as_ref(), report));
    let (Ok(tls), Ok(Some(members))) = (tls, members) else { return found };
    let digest = config.datasets().and_then(|sets| Ok(rules_digest(&sets, &config.sources()?)));
    match digest.and_then(|digest| Ok((greet_all(&cluster, &tls, &members)?, digest))) {
        Ok((answers, digest)) => found.extend(nodes(&cluster, &answers, &digest)),
        Err(error) => found.push(Finding::skipped("nodes", without_advice(&error))),
    }
    found
}

fn certificate(
    plan: &Plan,
    cluster: &ClusterConfig,
    tls: Result<&PeerTls, &Error>,
    now: SystemTime,
) -> Finding {
    const CHECK: &str = "certificate";
    let place = |key| plan.place("cluster", 0, key);
    let CertificateReport { names, ends, ends_unix } = match tls {
        Ok(tls) => &tls.certificate,
        Err(error) => {
            let otherwise = "name PEM files that the daemon's user may read";
            let mend = format!("{}: {}", place("cert"), advice(error, otherwise));
            return Finding::wrong(CHECK, without_advice(error), mend);
        }
    };
    let name = &cluster.name;
    if !names.contains(name) {
        let has = if names.is_empty() { "no name".to_owned() } else { listed(names) };
        return Finding::wrong(
            CHECK,
            format!("it has {has}, and not {name}: other nodes reject it"),
            format!(
                "sign it with subjectAltName=DNS:{name}, or {}: use a name that it has",
                place("name")
            ),
        );
    }
    let (Some(ends), Some(ends_unix)) = (ends, ends_unix) else {
        return Finding::skipped(CHECK, "the end of its validity cannot be read");
    };
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(*ends_unix);
    let mend = || format!("put a new one in the place of {}", cluster.tls.cert.display());
    let finding = match end.duration_since(now) {
        Err(_) => {
            Finding::wrong(CHECK, format!("it ended at {ends}: other nodes reject it"), mend())
        }
        Ok(left) if left < RENEWED_BEFORE => {
            Finding::warn(CHECK, format!("it ends soon, at {ends}"), mend())
        }
        Ok(_) => Finding::ok(CHECK, format!("{name}, valid until {ends}")),
    };
    finding.figure("ends_unix", *ends_unix)
}

/// Returns the members; none if only a running daemon knows them.
fn members(cluster: &ClusterConfig, report: Option<&ClusterReport>) -> Result<Option<Vec<Member>>> {
    if let Some(report) = report {
        let member = |member: &forebay_peers::PeerReport| Member {
            name: member.name.clone(),
            address: member.address.clone(),
            slots: member.slots,
        };
        return Ok(Some(report.members.iter().map(member).collect()));
    }
    let MembersSource::File(path) = &cluster.members else { return Ok(None) };
    let text = std::fs::read_to_string(path).doing("read the member list");
    let members = text.and_then(|text| parse_members(&text));
    members.map(Some).map_err(|error| error.at("members.file", path.display()))
}

fn list(
    plan: &Plan,
    cluster: &ClusterConfig,
    members: Result<&Option<Vec<Member>>, &Error>,
    report: Option<&ClusterReport>,
) -> Finding {
    const CHECK: &str = "members";
    let place = || plan.place("cluster", 0, "members");
    let members = match members {
        Ok(Some(members)) => members,
        Ok(None) => {
            return Finding::skipped(CHECK, "only a running daemon knows them: start it first");
        }
        Err(error) => {
            let mend = format!("{}: {}", place(), advice(error, "correct the list"));
            return Finding::wrong(CHECK, without_advice(error), mend);
        }
    };
    let name = &cluster.name;
    if let Some(report) = report.filter(|report| report.is_frozen) {
        let error = report.list_error.as_deref().unwrap_or("its source gives none");
        let found = format!("the list in force is an older one: {error}");
        return Finding::warn(CHECK, found, format!("{}: look at the source", place()));
    }
    let finding = match members.iter().any(|member| member.name == *name) {
        true => Finding::ok(CHECK, format!("{} nodes, with {name}", members.len())),
        false if report.is_some_and(|report| report.is_draining) => {
            Finding::skipped(CHECK, format!("{name} is draining"))
        }
        false => Finding::warn(
            CHECK,
            format!("{} nodes without {name}: others reject it", members.len()),
            format!("add `{name} {}` to the list", cluster.address),
        ),
    };
    finding.figure("members", members.len())
}

/// A node, and its answer to a greeting.
type Answer = (Member, Result<Greeting>);

/// Greets the other members.
fn greet_all(cluster: &ClusterConfig, tls: &PeerTls, members: &[Member]) -> Result<Vec<Answer>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.doing("start a runtime")?;
    let (_ring, ring) = watch::channel(Arc::new(Ring::new(members.to_vec())?));
    runtime.block_on(async {
        let peers = Peers::new(&cluster.name, tls, ring)?;
        let others = members.iter().filter(|member| member.name != cluster.name).take(GREETED);
        let answers = others.map(|member| async {
            let asked = tokio::time::timeout(GREET_WITHIN, peers.greet(&member.address)).await;
            let late = |_| Error::new(ErrorKind::Unavailable, "it does not answer in time");
            (member.clone(), asked.map_err(late).and_then(|asked| asked))
        });
        let answers: Vec<_> = answers.collect();
        Ok(futures::stream::iter(answers).buffered(AT_ONCE).collect().await)
    })
}

/// Returns findings about the other nodes.
fn nodes(cluster: &ClusterConfig, answers: &[Answer], digest: &str) -> Vec<Finding> {
    if answers.is_empty() {
        return vec![Finding::skipped("nodes", "there is no other one")];
    }
    let mut found = vec![reached(cluster, answers)];
    let greeted = answers.iter().filter_map(|(member, answer)| {
        Some((&member.name, Greeted::of(answer.as_ref().ok()?, digest)))
    });
    let greeted: Vec<_> = greeted.collect();
    if greeted.is_empty() {
        return found;
    }
    let skewed = greeted.iter().filter(|(_, greeted)| greeted.is_skewed());
    let skewed: Vec<_> = skewed
        .map(|(name, greeted)| format!("{name} ({:+} s)", greeted.clock_ahead_seconds))
        .collect();
    found.push(agreement(
        ("node_clocks", "all within 5 s of this one"),
        ("more than 5 s from this one", &skewed),
        "run chrony or another NTP client on all nodes: `chronyc tracking`",
    ));
    let differ: Vec<_> = greeted
        .iter()
        .filter(|(_, greeted)| !greeted.has_same_rules)
        .map(|(name, _)| name.as_str())
        .collect();
    found.push(agreement(
        ("node_rules", "the same rules for data sets and sources on all"),
        ("other [[dataset]] or [[source]] rules", &differ),
        "give all nodes the same, and `forebay config apply` there",
    ));
    found
}

/// Returns the finding of a check that names the nodes that differ.
fn agreement(
    (check, agreed): (&'static str, &str),
    (trouble, nodes): (&str, &[impl AsRef<str>]),
    mend: &str,
) -> Finding {
    match nodes.is_empty() {
        true => Finding::ok(check, agreed),
        false => Finding::warn(check, format!("{trouble}: {}", first(nodes)), mend),
    }
}

/// Compares the answers of nodes with the members that they should be.
fn reached(cluster: &ClusterConfig, answers: &[Answer]) -> Finding {
    const CHECK: &str = "nodes";
    let (mut wrong, mut silent) = (Vec::new(), Vec::new());
    for (member, answer) in answers {
        let Member { name, address, .. } = member;
        match answer {
            Ok(greeting) if greeting.group != cluster.group => {
                wrong.push(format!("{name} is of group {}", greeting.group));
            }
            Ok(greeting) if greeting.name != *name => {
                wrong.push(format!("{address} is {}, not {name}", greeting.name));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                wrong.push(format!("{name}: {}", without_advice(error)));
            }
            Err(error) => silent.push(format!("{name}: {}", without_advice(error))),
        }
    }
    let all = answers.len();
    let finding = match (wrong.is_empty(), silent.is_empty()) {
        (true, true) => Finding::ok(CHECK, format!("{all} others answer")),
        (false, _) => Finding::wrong(
            CHECK,
            first(&wrong),
            "sign all certificates with one authority, each with its node's name and no other's",
        ),
        (true, false) => Finding::warn(
            CHECK,
            format!("{} of {all} others do not answer: {}", silent.len(), first(&silent)),
            "start their daemons, and open the port between the nodes",
        ),
    };
    finding.figure("nodes", all).figure("silent", silent.len())
}

/// Returns the first of these, and how many more there are.
fn first(all: &[impl AsRef<str>]) -> String {
    let named: Vec<_> = all.iter().take(NAMED).map(AsRef::as_ref).collect();
    match all.len().saturating_sub(NAMED) {
        0 => listed(&named),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use forebay_peers::PeerTlsFiles;

    use super::super::finding::Verdict;
    use super::super::plan::test_plan;
    use super::*;

    fn cluster() -> ClusterConfig {
        ClusterConfig {
            name: "node0".into(),
            listen: "127.0.0.1:9481".parse().unwrap(),
            address: "127.0.0.1:9481".into(),
            tls: PeerTlsFiles { cert: "/c".into(), key: "/k".into(), ca: "/a".into() },
            group: "default".into(),
            weight: None,
            serve: None,
            members: MembersSource::File("/m".into()),
        }
    }

    fn greeting(name: &str, unix_time: u64, rules: &str) -> Greeting {
        Greeting {
            name: name.into(),
            group: "default".into(),
            slots: 1,
            protocol: 1,
            oldest_protocol: 1,
            unix_time,
            rules: rules.into(),
            is_draining: false,
        }
    }

    fn member(name: &str) -> Member {
        Member { name: name.into(), address: "127.0.0.1:1".into(), slots: 1 }
    }

    #[test]
    fn nodes_are_judged_by_their_greetings() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let verdicts = |answers: Vec<Answer>| {
            let found = nodes(&cluster(), &answers, "a");
            found.into_iter().map(|one| (one.check, one.verdict)).collect::<Vec<_>>()
        };
        let good = || (member("node1"), Ok(greeting("node1", now, "a")));
        let (clocks, rules) = ("node_clocks", "node_rules");
        let ok = Verdict::Ok;
        assert_eq!(verdicts(vec![good()]), [("nodes", ok), (clocks, ok), (rules, ok)]);
        assert_eq!(verdicts(Vec::new()), [("nodes", Verdict::Skipped)]);
        let other = (member("node2"), Ok(greeting("node2", now - 60, "b")));
        let warn = Verdict::Warn;
        assert_eq!(verdicts(vec![good(), other]), [("nodes", ok), (clocks, warn), (rules, warn)]);
        let impostor = (member("node2"), Ok(greeting("node9", now, "a")));
        assert_eq!(verdicts(vec![impostor])[0], ("nodes", Verdict::Wrong));
        let silent = Err(Error::new(ErrorKind::Unavailable, "nobody is there"));
        assert_eq!(verdicts(vec![(member("node2"), silent)]), [("nodes", warn)]);
        let rejected = Err(Error::new(ErrorKind::PermissionDenied, "expired"));
        assert_eq!(verdicts(vec![(member("node2"), rejected)]), [("nodes", Verdict::Wrong)]);
    }

    #[test]
    fn missing_certificates_are_named_with_their_line() {
        let (plan, _folder) = test_plan(
            "[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '1GiB'\n[cluster]\nname = 'node0'\n\
             listen = '127.0.0.1:9481'\ncert = '/nowhere/c.pem'\nkey = '/nowhere/k.pem'\n\
             ca = '/nowhere/ca.pem'\nmembers = { file = '/nowhere/members' }\n",
        );
        let found = check(&plan, None);
        let verdicts: Vec<_> = found.iter().map(|one| (one.check, one.verdict)).collect();
        let wrong = Verdict::Wrong;
        assert_eq!(verdicts, [("certificate", wrong), ("members", wrong)], "{found:?}");
        assert!(found[0].mend.as_ref().unwrap().contains("forebay.toml:8"), "{found:?}");
        assert!(found[1].mend.as_ref().unwrap().contains("forebay.toml:11"), "{found:?}");
    }
}
