//! Tests of who may come in, and as what, by credentials that no process needs to have.

use forebay_config::settings::Writers;
use forebay_source::Permit;
use forebay_store::{CheckpointRule, Evict, Tenant};

use super::*;
use crate::audit::Audit;

const MEMBER: u32 = 4_100;
const ADMINS: u32 = 4_200;
const VISION: u32 = 4_300;
const SPEECH: u32 = 4_400;
const SAVERS: u32 = 4_500;

fn client(uid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid: uid, groups: groups.to_vec(), pid: None }
}

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn door(tenant: Option<&str>, admin: bool) -> Door {
    Door { path: "/run/x".into(), tenant: tenant.map(str::to_owned), admin }
}

fn tenant(name: &str, groups: &[u32]) -> NodeTenant {
    let rule = Tenant { name: name.to_owned(), min_bytes: 0, max_bytes: None };
    NodeTenant { rule, groups: groups.to_vec(), limits: TenantLimits::default() }
}

fn writers(matches: &str, groups: &[u32]) -> Writers {
    let rule = CheckpointRule::new(matches).unwrap();
    let allow = Allow { groups: groups.to_vec(), ..Allow::default() };
    Writers { rule, allow: (!groups.is_empty()).then_some(allow) }
}

fn policy(private: bool) -> Policy {
    let set = |name: &str| Dataset::new(name, &format!("s3://{name}/**"), Evict::Lru).unwrap();
    let sets = [set("images"), set("texts"), set("kept")];
    let allow = |groups: &[u32], tenants: &[&str]| Allow {
        users: vec![7],
        groups: groups.to_vec(),
        tenants: tenants.iter().map(|&name| name.to_owned()).collect(),
    };
    let config = AccessConfig {
        groups: vec![MEMBER],
        admin_group: Some(ADMINS),
        allow: [
            ("images".to_owned(), allow(&[VISION], &[])),
            ("texts".to_owned(), allow(&[], &["speech"])),
        ]
        .into(),
        writers: vec![writers("s3://runs/**", &[SAVERS]), writers("/lustre/**", &[])],
        limits: UserLimits { sessions: 3, ..UserLimits::default() },
    };
    let tenants =
        vec![tenant("vision", &[VISION]), tenant("speech", &[SPEECH]), tenant("pods", &[])];
    Policy::new(private, tenants, &sets, config)
}

#[test]
fn peers_are_admitted_by_group_and_socket() {
    let access = Access::new(policy(false));
    let (main, plain, admins) = (door(None, true), door(None, false), door(None, true));
    let pods = door(Some("pods"), false);
    for (who, at, admitted) in [
        (client(own(), &[]), &main, Some((true, None))),
        (client(own(), &[]), &pods, Some((false, Some("pods")))),
        (client(0, &[]), &main, Some((true, None))),
        (client(0, &[]), &admins, Some((true, None))),
        (client(0, &[]), &plain, None),
        (client(0, &[0, ADMINS]), &pods, Some((false, Some("pods")))),
        (client(9, &[1, ADMINS]), &main, Some((true, None))),
        (client(9, &[1, ADMINS]), &plain, None),
        (client(9, &[MEMBER]), &main, Some((false, None))),
        (client(9, &[VISION, MEMBER]), &plain, Some((false, Some("vision")))),
        (client(9, &[SPEECH, VISION]), &main, Some((false, Some("vision")))),
        (client(9, &[SPEECH]), &main, Some((false, Some("speech")))),
        (client(7, &[]), &main, Some((false, None))),
        (client(9, &[]), &main, None),
        (client(9, &[]), &pods, Some((false, Some("pods")))),
        (client(overflow(0), &[ADMINS, MEMBER, VISION]), &main, None),
        (client(overflow(0), &[]), &pods, None),
        (client(9, &[VISION]), &door(Some("gone"), false), None),
    ] {
        let came = access.admit(&who, at);
        let what = came.as_ref().ok().map(|one| (one.is_admin, one.tenant.as_deref()));
        assert_eq!(what, admitted, "{who:?} at {at:?}");
        if let Err(error) = came {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        }
    }
}

/// The memory of a tier has files of everybody, which other admins may not be able to open.
#[test]
fn only_root_and_the_daemons_user_read_all() {
    let access = Access::new(policy(false));
    let reads_all = |who: &Credentials, at: &Door| access.admit(who, at).unwrap().reads_all;
    let (main, pods) = (door(None, true), door(Some("pods"), false));
    assert!(reads_all(&client(own(), &[]), &main));
    assert!(reads_all(&client(0, &[]), &main));
    for who in [client(9, &[1, ADMINS]), client(9, &[MEMBER]), client(9, &[VISION])] {
        assert!(!reads_all(&who, &main), "{who:?}");
    }
    for who in [client(own(), &[]), client(0, &[])] {
        assert!(!reads_all(&who, &pods), "{who:?} as a tenant");
    }
}

/// Tenants share a node's room; that alone admits nobody.
#[test]
fn tenant_group_alone_grants_no_access() {
    let by_default = policy(false);
    let tenants = vec![tenant("vision", &[VISION])];
    let policy = Policy::new(false, tenants, &[], AccessConfig::default());
    assert!(!policy.serves_others());
    let access = Access::new(policy);
    assert!(access.admit(&client(9, &[VISION]), &door(None, true)).is_err());
    assert!(by_default.serves_others());
}

#[test]
fn users_without_a_tenant_have_their_own_limit_on_jobs() {
    let policy = policy(false);
    assert_eq!(policy.limits(None).sessions, 3);
    assert_eq!(policy.limits(Some("none")).sessions, 3);
    assert_eq!(policy.limits(Some("vision")), TenantLimits::default());
}

#[test]
fn private_daemon_admits_only_its_own_user() {
    let policy = policy(true);
    assert!(!policy.serves_others());
    let access = Access::new(policy);
    let main = door(None, true);
    assert!(access.admit(&client(own(), &[]), &main).unwrap().is_admin);
    for who in [client(own() + 1, &[ADMINS, MEMBER, VISION]), client(7, &[])] {
        assert!(access.admit(&who, &main).is_err(), "{who:?}");
    }
}

#[test]
fn readable_data_sets_follow_from_peer_and_socket() {
    let access = Access::new(policy(false));
    let main = door(None, true);
    let may = |who: &Credentials, at: &Door, set: &str| {
        let policy = access.policy();
        let admitted = access.admit(who, at).unwrap();
        policy.may_read(&admitted, &format!("s3://{set}/0.tar")).is_ok()
    };
    for (who, at, sets) in [
        (client(own(), &[]), &main, [true, true, true, true]),
        (client(9, &[VISION]), &main, [true, false, false, false]),
        (client(9, &[SPEECH]), &main, [false, true, false, false]),
        // The first tenant counts; all groups count.
        (client(9, &[SPEECH, VISION]), &main, [true, false, false, false]),
        (client(7, &[]), &main, [true, true, false, false]),
        (client(9, &[MEMBER]), &main, [false; 4]),
        // The kernel's user and groups do not count behind a tenant's socket.
        (client(7, &[VISION]), &door(Some("pods"), false), [false; 4]),
        (client(own(), &[ADMINS]), &door(Some("speech"), false), [false, true, false, false]),
        (client(9, &[]), &door(Some("vision"), false), [true, false, false, false]),
    ] {
        let may = ["images", "texts", "kept", "unknown"].map(|set| may(&who, at, set));
        assert_eq!(may, sets, "{who:?} at {at:?}");
    }
}

/// Queues of leased shards and command output belong to one owner: the same uid behind another
/// socket is another owner.
#[test]
fn same_uid_behind_another_socket_is_another_owner() {
    let access = Access::new(policy(false));
    let owner = |uid, at: &Door| access.admit(&client(uid, &[MEMBER]), at).unwrap().owner;
    let owners = [
        owner(9, &door(None, true)),
        owner(9, &door(Some("pods"), false)),
        owner(9, &door(Some("speech"), false)),
        owner(10, &door(Some("pods"), false)),
    ];
    assert_eq!(owners[0], 9);
    let different: std::collections::HashSet<_> = owners.into_iter().collect();
    assert_eq!(different.len(), 4);
    assert_eq!(owner(9, &door(Some("pods"), false)), owners[1]);
}

#[test]
fn replaced_policy_applies_at_once() {
    let access = Access::new(policy(false));
    let (main, who) = (door(None, true), client(9, &[MEMBER]));
    assert!(access.admit(&who, &main).is_ok());
    access.replace(Vec::new(), &[], AccessConfig::default());
    assert!(access.admit(&who, &main).is_err());
}

/// A connected client is judged by the policy in force when it asks.
#[test]
fn rights_of_a_connected_peer_follow_the_policy() {
    let audit = Arc::new(Audit::open(None).unwrap());
    let access = Arc::new(Access::new(policy(false)));
    let main = Arc::new(door(None, true));
    let came = |groups: &[u32]| Rights::of(&access, &audit, client(9, groups), &main).unwrap();
    let (member, admin) = (came(&[VISION]), came(&[ADMINS, VISION]));
    let url = "s3://images/0.tar";
    assert!(member.read(url).is_ok() && member.shows(url) && member.list("s3://images/*").is_ok());
    assert!(admin.administers("tier", "drain nvme").is_ok());
    let set = Dataset::new("images", "s3://images/**", Evict::Lru).unwrap();
    let allow = Allow { groups: vec![SPEECH], ..Allow::default() };
    let config = AccessConfig {
        groups: vec![VISION],
        admin_group: None,
        allow: [("images".to_owned(), allow)].into(),
        writers: Vec::new(),
        limits: UserLimits::default(),
    };
    access.replace(vec![tenant("vision", &[VISION])], &[set], config);
    assert!(
        member.read(url).is_err() && !member.shows(url) && member.list("s3://images/*").is_err()
    );
    assert!(member.read_all(&[url.to_owned()]).is_err() && member.read("/data/0.tar").is_ok());
    let error = admin.administers("tier", "drain nvme").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    // Nobody is served any more.
    access.replace(Vec::new(), &[], AccessConfig::default());
    let error = member.read("/data/0.tar").unwrap_err();
    assert!(error.to_string().contains("does not serve this user"), "{error}");
}

/// Another node's users and groups say nothing here: the name of the tenant counts, and its groups
/// on this node.
#[test]
fn tenant_of_another_node_is_judged_by_name() {
    let policy = policy(false);
    for (name, url, may) in [
        ("vision", "s3://images/0.tar", true),
        ("vision", "s3://texts/0.tar", false),
        ("speech", "s3://texts/0.tar", true),
        ("speech", "s3://images/0.tar", false),
        ("pods", "s3://images/0.tar", false),
        // Data sets without `allow`, and URLs of none, are the admins'.
        ("vision", "s3://kept/0.tar", false),
        ("vision", "s3://elsewhere/0.tar", false),
        ("nobody", "s3://images/0.tar", false),
    ] {
        let judged = policy.tenant_may_read(name, url);
        assert_eq!(judged.is_ok(), may, "{name} {url}");
        if let Err(error) = judged {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert_eq!(error.place("tenant"), (url != "s3://elsewhere/0.tar").then_some(name));
        }
    }
}

/// Other nodes hear of the tenant of a job; of an admin's they do not, who may read everything.
#[test]
fn other_nodes_hear_of_the_tenant_of_a_job() {
    let access = Arc::new(Access::new(policy(false)));
    let audit = Arc::new(Audit::open(None).unwrap());
    let main = Arc::new(door(None, true));
    for (who, tenant) in [
        (client(9, &[VISION, MEMBER]), Some("vision")),
        (client(9, &[MEMBER]), None),
        (client(9, &[VISION, ADMINS]), None),
    ] {
        let rights = Rights::of(&access, &audit, who, &main).unwrap();
        assert_eq!(rights.tenant().as_deref(), tenant);
    }
}

#[test]
fn checkpoint_rules_admit_writers_and_bind_admins() {
    let main = door(None, true);
    let (node, own_daemon) = (policy(false), policy(true));
    let [runs, path, other] = ["s3://runs/a/step-1", "/lustre/a", "s3://images/a"];
    for (groups, may) in [
        (&[SAVERS][..], [true, false, false]),
        (&[MEMBER], [false, false, false]),
        (&[ADMINS], [true, true, false]),
    ] {
        let who = node.admits(&client(9, groups), &main).unwrap();
        let found = [runs, path, other].map(|url| node.may_write(&who, url).is_ok());
        assert_eq!(found, may, "{groups:?}");
        let reads = node.may_read(&who, "s3://images/0.tar").is_ok();
        assert_eq!(reads, who.is_admin, "the right to write is none to read");
    }
    let who = own_daemon.admits(&client(own(), &[]), &main).unwrap();
    assert!([runs, path, other].iter().all(|url| own_daemon.may_write(&who, url).is_ok()));
}
