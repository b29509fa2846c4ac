//! Nodes of a cluster in the test's process, with certificates of one authority.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_cluster::{Member, ObjectKey, Ring};
use forebay_config::settings::{ClusterConfig, MembersSource, NodeConfig, PeerTlsFiles};
use forebay_source::{Rule, Rules};
use forebay_testkit::{ACCESS_KEY, SECRET_KEY};
use tempfile::TempDir;

use crate::node::Daemon;
use crate::origin::Origin;
use crate::process::actor;

/// Memory of a node for replies to others.
const SERVING: usize = forebay_node::cluster::SERVING_BYTES;

/// Least number of shards that each node owns: a test takes one, or needs several to share a room.
const OWNED_MIN: usize = 3;

/// Draws of an origin's port at most. One in six gives a node too few of 24 shards on four nodes;
/// that 16 in a row do is one chance in 10^12.
const DRAWS: usize = 16;

/// Options of keys that are fast to generate.
const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

/// Certificates and the member list of a cluster.
pub struct ClusterFiles {
    folder: TempDir,
    members: Vec<Member>,
}

/// Flaw of a node's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// None.
    Good,
    /// Signed by another authority.
    Stranger,
    /// Expired yesterday.
    Expired,
}

impl ClusterFiles {
    /// An authority, certificates and a member list for so many nodes, `node0` and further.
    ///
    /// # Panics
    /// If there is no `openssl`, or it fails.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        let folder = TempDir::new().expect("a temp directory can be made");
        for authority in ["ca", "stranger"] {
            let subject = format!("/CN=forebay test {authority}");
            let files = [format!("{authority}.key"), format!("{authority}.pem")];
            let mut openssl = Command::new("openssl");
            openssl.args(["req", "-x509", "-subj", &subject, "-days", "2"]).args(KEY);
            run(openssl.args(["-keyout", &files[0], "-out", &files[1]]), folder.path());
        }
        let members = (0..nodes).map(|number| Member {
            name: format!("node{number}"),
            address: free_address().to_string(),
            slots: 1,
        });
        let files = Self { members: members.collect(), folder };
        for member in &files.members {
            files.sign(&member.name, &member.name, Flaw::Good);
        }
        files.list(&files.members);
        files
    }

    /// Makes the certificate and key of `node` for a DNS name.
    ///
    /// # Panics
    /// If `openssl` fails.
    pub fn sign(&self, node: &str, name: &str, flaw: Flaw) {
        let folder = self.folder.path();
        let extensions = format!("subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n");
        std::fs::write(folder.join("extensions"), extensions).expect("the folder is writable");
        let (key, request) = (format!("{node}.key"), format!("{node}.csr"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-new", "-subj", "/CN=forebay node", "-keyout", &key]).args(KEY);
        run(openssl.args(["-out", &request]), folder);
        let authority = if flaw == Flaw::Stranger { "stranger" } else { "ca" };
        let (ca, ca_key) = (format!("{authority}.pem"), format!("{authority}.key"));
        let days = if flaw == Flaw::Expired { "-1" } else { "2" };
        let mut openssl = Command::new("openssl");
        openssl.args(["x509", "-req", "-in", &request, "-CA", &ca, "-CAkey", &ca_key]);
        openssl.args(["-CAcreateserial", "-extfile", "extensions", "-days", days]);
        run(openssl.args(["-out", &format!("{node}.pem")]), folder);
    }

    /// Writes the member list.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn list(&self, members: &[Member]) {
        let lines = members.iter().map(|m| format!("{} {} {}\n", m.name, m.address, m.slots));
        let aside = self.folder.path().join("members.new");
        std::fs::write(&aside, lines.collect::<String>()).expect("the folder is writable");
        std::fs::rename(aside, self.member_list()).expect("the folder is writable");
    }

    /// Path of the member list.
    #[must_use]
    pub fn member_list(&self) -> PathBuf {
        self.folder.path().join("members")
    }

    /// Members.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// An origin of so many shards, as [`Origin::with_shards`] makes it, of which each node owns
    /// three or more while all are listed.
    ///
    /// Placement hashes the URL of a shard with the port of its store. The machine draws the port,
    /// and once in a thousand draws a given one of four nodes owns none of 24 shards. So a port
    /// with which a node owns too few is given back.
    ///
    /// # Panics
    /// If no port serves: there are too few shards for so many nodes.
    #[must_use]
    pub fn origin(&self, shards: u64, samples: u64, sizes: &Range<usize>) -> Origin {
        let urls = Origin::urls(shards);
        let serves = |origin: &Origin| {
            let endpoint = origin.server.endpoint();
            let owners: Vec<_> = urls.iter().map(|url| self.owner(&endpoint, url)).collect();
            let owned = |one: &Member| owners.iter().filter(|owner| **owner == one.name).count();
            self.members.iter().all(|member| owned(member) >= OWNED_MIN)
        };
        let origin = (0..DRAWS).map(|_| Origin::new()).find(serves);
        let origin = origin.expect("a port with which each node owns some shards");
        origin.fill(shards, samples, sizes);
        origin
    }

    /// Name of the node that owns an object of the store at an endpoint, while all are listed.
    ///
    /// # Panics
    /// Never: the members have different names.
    #[must_use]
    pub fn owner(&self, endpoint: &str, url: &str) -> String {
        let ring = Ring::new(self.members.clone()).expect("members of different names");
        ring.owner(ObjectKey::new(endpoint, url)).expect("members").name.clone()
    }

    /// The rule by which nodes read the origin at an endpoint, with a profile of its own.
    ///
    /// # Panics
    /// Never: the pattern is valid.
    #[must_use]
    pub fn rule(endpoint: String) -> Rule {
        let mut rule = Rule::new("s3://bucket/").expect("a pattern");
        rule.endpoint = Some(endpoint);
        rule.region = Some("us-east-1".to_owned());
        rule.profile = Some("cluster".to_owned());
        rule
    }

    /// Settings of a node in the cluster.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn settings(&self, number: usize) -> ClusterConfig {
        let Member { name, address, slots } = self.members[number].clone();
        let path = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        ClusterConfig {
            listen: address.parse().expect("an address"),
            address,
            tls: PeerTlsFiles {
                cert: path("pem"),
                key: path("key"),
                ca: self.folder.path().join("ca.pem"),
            },
            group: "default".to_owned(),
            weight: Some(slots),
            serve: None,
            members: MembersSource::File(self.member_list()),
            name,
        }
    }

    /// Configuration of a node of the cluster with one tier of `capacity` bytes, that reads
    /// `origin` by a rule with a profile of its own.
    ///
    /// # Panics
    /// If the profile cannot be written.
    #[must_use]
    pub fn config(
        &self,
        number: usize,
        cache: &Path,
        capacity: u64,
        origin: &Origin,
    ) -> NodeConfig {
        let credentials = self.folder.path().join("credentials");
        let keys =
            format!("aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n");
        std::fs::write(&credentials, format!("[cluster]\n{keys}")).expect("the folder is writable");
        let mut config = Daemon::config(cache, capacity);
        config.memory += SERVING;
        config.sources =
            Rules::new(vec![Self::rule(origin.server.endpoint())]).expect("rules that agree");
        let file = format!("AWS_SHARED_CREDENTIALS_FILE={}", credentials.display());
        config.lender = vec!["env".into(), file.into(), actor().into(), "credentials".into()];
        config.cluster = Some(self.settings(number));
        config
    }
}

/// Number of the next address.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A loopback address of its own, so that no other socket of this machine takes its port before the
/// node does.
fn free_address() -> SocketAddr {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 250 + 2;
    let last = u8::try_from(number).expect("below 252");
    let listener = TcpListener::bind((Ipv4Addr::new(127, high | 0x40, low, last), 0));
    let listener = listener.expect("a loopback port is free");
    listener.local_addr().expect("a bound port has an address")
}

fn run(command: &mut Command, folder: &Path) {
    let done = command.current_dir(folder).output().expect("openssl is installed");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
