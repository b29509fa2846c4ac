//! Sources under test: each a scheme, a real server, and a function that fills it.
//!
//! A behaviour that a source cannot show is listed with the reason. To add a source, write a
//! function here and a test in `sources.rs`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::{Doing, Result};
use forebay_source::Options;
use forebay_testkit::{ACCESS_KEY, Azurite, Bucket, Ceph, Moto, Nginx, S3Server, SECRET_KEY};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tempfile::TempDir;

/// Bucket, or folder, of all objects.
const BUCKET: &str = "bucket";

/// Bucket to which servers deny access.
const DENIED: &str = "denied";

/// Secret that no error may show.
const SECRET: &str = "hunter2hunter2";

/// Characters that are not escaped in the path of a URL.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

type Put = Box<dyn Fn(&str, &[u8]) -> Result<()>>;

/// An object to which access is denied.
pub struct Denied {
    /// URL.
    pub url: String,
    /// Environment of the job that is denied.
    pub environment: BTreeMap<String, String>,
}

/// A source of shards.
pub struct TestSource {
    /// Name in messages.
    pub name: &'static str,
    /// Environment of a job that reads from it.
    pub environment: BTreeMap<String, String>,
    /// Certificate authority that the daemon must trust.
    pub authority: Option<PathBuf>,
    /// The `[[source]]` rule that lets a node's daemon use it; empty for files.
    pub rule: String,
    /// An object it denies, or the reason why there is none.
    pub denied: std::result::Result<Denied, &'static str>,
    /// Behaviours that do not apply to it, each with the reason.
    pub except: &'static [(&'static str, &'static str)],
    put: Put,
    url: Box<dyn Fn(&str) -> String>,
    away: Box<dyn FnOnce()>,
}

impl TestSource {
    /// S3 from the test kit's own server.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn s3s() -> Result<Self> {
        let folder = folder()?;
        let server = S3Server::start(folder.path())?;
        let environment = keys(&server.endpoint(), ACCESS_KEY, SECRET_KEY);
        let wrong = keys(&server.endpoint(), ACCESS_KEY, SECRET);
        Ok(Self {
            name: "s3 on s3s",
            rule: redirecting(&server.endpoint()),
            denied: Ok(Denied { url: s3("k.tar"), environment: wrong }),
            environment,
            authority: None,
            except: &[],
            put: into(folder),
            url: Box::new(s3),
            away: Box::new(move || drop(server)),
        })
    }

    /// S3 from moto, which rejects unsigned requests and checks no signature.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn moto() -> Result<Self> {
        let moto = Moto::start()?;
        let bucket = Bucket::make(moto.address(), BUCKET, (ACCESS_KEY, SECRET_KEY))?;
        let endpoint = at(moto.address());
        Ok(Self {
            name: "s3 on moto",
            rule: redirecting(&endpoint),
            denied: Ok(Denied { url: s3("k.tar"), environment: unsigned(&endpoint) }),
            environment: keys(&endpoint, ACCESS_KEY, SECRET_KEY),
            authority: None,
            except: &[],
            put: Box::new(move |key, bytes| bucket.put(key, bytes)),
            url: Box::new(s3),
            away: Box::new(move || drop(moto)),
        })
    }

    /// Read-only S3 from nginx, which ignores signatures.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn s3_on_nginx() -> Result<Self> {
        let (folder, nginx) = nginx()?;
        let environment = keys(&nginx.http(), ACCESS_KEY, SECRET);
        let url = format!("s3://{DENIED}/k.tar");
        Ok(Self {
            name: "s3 on nginx",
            rule: redirecting(&nginx.http()),
            denied: Ok(Denied { url, environment: environment.clone() }),
            environment,
            authority: None,
            except: &[],
            put: into(folder),
            url: Box::new(s3),
            away: Box::new(move || drop(nginx)),
        })
    }

    /// HTTP from nginx.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn http() -> Result<Self> {
        let (folder, nginx) = nginx()?;
        Ok(Self::web("http on nginx", nginx.http(), None, folder, nginx))
    }

    /// HTTPS from nginx.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn https() -> Result<Self> {
        let (folder, nginx) = nginx()?;
        let authority = Some(nginx.authority());
        Ok(Self::web("https on nginx", nginx.https(), authority, folder, nginx))
    }

    fn web(
        name: &'static str,
        base: String,
        authority: Option<PathBuf>,
        folder: TempDir,
        nginx: Nginx,
    ) -> Self {
        let url = format!("{base}/{DENIED}/k.tar?signature={SECRET}");
        let denied = Ok(Denied { url, environment: BTreeMap::new() });
        let path = |key: &str| utf8_percent_encode(key, PATH).to_string();
        Self {
            name,
            rule: format!("[[source]]\nmatch = '{base}/'\n"),
            environment: BTreeMap::new(),
            authority,
            denied,
            except: &[],
            put: into(folder),
            // As in a signed link: part of the request, never of a message.
            url: Box::new(move |key| format!("{base}/{BUCKET}/{}?signature={SECRET}", path(key))),
            away: Box::new(move || drop(nginx)),
        }
    }

    /// Files on the disk.
    ///
    /// # Errors
    /// If there is no temp directory.
    pub fn disk() -> Result<Self> {
        let folder = folder()?;
        let (place, away) = (folder.path().to_owned(), folder.path().with_extension("away"));
        let gone = place.clone();
        let mut source = Self::files("file on a disk", place, into(folder));
        source.away = Box::new(move || {
            std::fs::rename(&gone, &away).expect("a folder can be renamed");
            std::fs::remove_dir_all(&away).expect("a folder can be removed");
        });
        Ok(source)
    }

    /// Files on Ceph's file system and S3 from Ceph's gateway, of one cluster. Once the files are
    /// stopped, the whole cluster hangs until the returned function is called.
    ///
    /// # Errors
    /// If it does not start.
    pub fn ceph() -> Result<(Self, Self, impl FnOnce())> {
        let ceph = Ceph::start()?;
        let keys_of = (Ceph::ACCESS_KEY, Ceph::SECRET_KEY);
        let bucket = Bucket::make(ceph.gateway(), BUCKET, keys_of)?;
        let endpoint = at(ceph.gateway());
        let mount = ceph.mount();
        std::fs::create_dir(mount.join(BUCKET)).doing("make a folder on Ceph's file system")?;
        let place = mount.clone();
        let put = move |key: &str, bytes: &[u8]| write(&place, key, bytes);
        let ceph = Arc::new(Mutex::new(Some(ceph)));
        let mut files = Self::files("file on CephFS", mount, Box::new(put));
        let (hangs, thaws) = (Arc::clone(&ceph), Arc::clone(&ceph));
        let freeze = |ceph: &Mutex<Option<Ceph>>, frozen| {
            let ceph = ceph.lock().unwrap_or_else(PoisonError::into_inner);
            let ceph = ceph.as_ref().expect("the gateway goes away last");
            ceph.freeze(frozen).expect("a daemon can be stopped");
        };
        files.away = Box::new(move || freeze(&hangs, true));
        let wrong = keys(&endpoint, Ceph::ACCESS_KEY, SECRET);
        let gateway = Self {
            name: "s3 on Ceph",
            rule: redirecting(&endpoint),
            denied: Ok(Denied { url: s3("k.tar"), environment: wrong }),
            environment: keys(&endpoint, keys_of.0, keys_of.1),
            authority: None,
            except: &[],
            put: Box::new(move |key, bytes| bucket.put(key, bytes)),
            url: Box::new(s3),
            away: Box::new(move || {
                drop(ceph.lock().unwrap_or_else(PoisonError::into_inner).take());
            }),
        };
        Ok((files, gateway, move || freeze(&thaws, false)))
    }

    /// Output of a command that reads files on the disk, in the job's process.
    ///
    /// # Errors
    /// If there is no temp directory.
    pub fn command() -> Result<Self> {
        let mut source = Self::disk()?;
        let file = source.url;
        source.name = "what a command says";
        source.rule = String::new();
        source.denied = Err("a command fails, whatever it is that refuses it something");
        source.except = &[
            ("a missing object", "a command only fails: commands.rs shows what becomes of that"),
            ("a replaced object", "what a command would say now, only running it would tell"),
        ];
        source.url = Box::new(move |key| {
            // Escaped so that a shell reads each character as itself.
            let is_itself = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            let escape = |c| if is_itself(c) { vec![c] } else { vec!['\\', c] };
            let path: String = file(key).chars().flat_map(escape).collect();
            format!("pipe:TOKEN={SECRET} cat -- {path}")
        });
        Ok(source)
    }

    fn files(name: &'static str, place: PathBuf, put: Put) -> Self {
        // A copy is served while its file is away only if the daemon opens files itself.
        let rule = format!("[[source]]\nmatch = '{}/'\n", place.display());
        let url = move |key: &str| place.join(BUCKET).join(key).display().to_string();
        Self {
            name,
            rule,
            environment: BTreeMap::new(),
            authority: None,
            denied: Err("modes refuse nothing to root, which tests may run as"),
            except: &[],
            put,
            url: Box::new(url),
            away: Box::new(|| ()),
        }
    }

    /// Azure from Azurite.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn azurite() -> Result<Self> {
        let azurite = Arc::new(Azurite::start()?);
        azurite.put(BUCKET, None)?;
        let endpoint = format!("{}/{}", at(azurite.address()), Azurite::ACCOUNT);
        let environment = |key: &str| {
            Options::default()
                .with("AZURE_STORAGE_ACCOUNT_NAME", Azurite::ACCOUNT)
                .with("AZURE_STORAGE_ACCOUNT_KEY", key)
                .with("AZURE_STORAGE_ENDPOINT", &endpoint)
                .into_map()
        };
        // With the length and the alphabet of a key.
        let wrong = environment("aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMmh1bnRlcjI=");
        let filled = Arc::clone(&azurite);
        Ok(Self {
            name: "az on Azurite",
            rule: redirecting(&endpoint),
            denied: Ok(Denied { url: format!("az://{BUCKET}/k.tar"), environment: wrong }),
            environment: environment(Azurite::KEY),
            authority: None,
            except: &[],
            put: Box::new(move |key, bytes| filled.put(&format!("{BUCKET}/{key}"), Some(bytes))),
            url: Box::new(|key| format!("az://{BUCKET}/{key}")),
            // The other reference is dropped with the source.
            away: Box::new(move || azurite.stop()),
        })
    }

    /// Google's storage, as far as moto has it: the XML API for reading objects.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn gs_on_moto() -> Result<Self> {
        let mut source = Self::moto()?;
        let endpoint = source.environment.remove("AWS_ENDPOINT_URL").unwrap_or_default();
        source.name = "gs on moto";
        let store = Options::default().with("STORAGE_EMULATOR_HOST", &endpoint);
        // Any token is accepted.
        source.environment = store.clone().with("GOOGLE_BEARER_TOKEN", SECRET).into_map();
        let environment = store.with("GOOGLE_SKIP_SIGNATURE", "true").into_map();
        source.url = Box::new(|key| format!("gs://{BUCKET}/{key}"));
        source.denied = Ok(Denied { url: format!("gs://{BUCKET}/k.tar"), environment });
        Ok(source)
    }

    /// The Hugging Face Hub, as far as reading files: it redirects requests.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn hub() -> Result<Self> {
        let folder = folder()?;
        let leads = ("/datasets/o/n/resolve/main/", format!("/{BUCKET}/"));
        let nginx = Nginx::leading(folder.path(), leads.0, &leads.1)?;
        let environment = Options::default().with("HF_ENDPOINT", &nginx.http());
        let environment = environment.with("HF_TOKEN", SECRET).into_map();
        Ok(Self {
            name: "hf on nginx",
            rule: redirecting(&nginx.http()),
            environment,
            authority: None,
            denied: Err("what the Hub refuses is shown of web servers"),
            except: &[],
            put: into(folder),
            url: Box::new(|key| format!("hf://datasets/o/n/{key}")),
            away: Box::new(move || drop(nginx)),
        })
    }

    /// Creates or replaces an object, never visible by half.
    ///
    /// # Panics
    /// If the server rejects it.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        (self.put)(key, bytes).expect("the server takes objects");
    }

    /// URL of an object.
    #[must_use]
    pub fn url(&self, key: &str) -> String {
        (self.url)(key)
    }

    /// Secret that no message may hold.
    #[must_use]
    pub fn secret(&self) -> &'static str {
        SECRET
    }

    /// Stops the server.
    pub fn stop(self) {
        (self.away)();
    }
}

fn folder() -> Result<TempDir> {
    let folder = TempDir::new().doing("make a temp directory")?;
    for name in [BUCKET, DENIED] {
        std::fs::create_dir(folder.path().join(name)).doing("make a bucket")?;
    }
    Ok(folder)
}

fn nginx() -> Result<(TempDir, Nginx)> {
    let folder = folder()?;
    let nginx = Nginx::start(folder.path())?;
    Ok((folder, nginx))
}

/// Writes objects into a folder, which lives as long as the writer.
fn into(folder: TempDir) -> Put {
    Box::new(move |key, bytes| write(folder.path(), key, bytes))
}

fn write(folder: &Path, key: &str, bytes: &[u8]) -> Result<()> {
    let (aside, place) = (folder.join("aside"), folder.join(BUCKET).join(key));
    std::fs::create_dir_all(place.parent().unwrap_or(folder)).doing("make a folder")?;
    std::fs::write(&aside, bytes).doing("write an object")?;
    std::fs::rename(&aside, place).doing("write an object")
}

fn s3(key: &str) -> String {
    format!("s3://{BUCKET}/{key}")
}

fn at(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// A rule that reads every URL from this server.
fn redirecting(endpoint: &str) -> String {
    format!("[[source]]\nmatch = '**'\nendpoint = '{endpoint}'\n")
}

fn keys(endpoint: &str, access: &str, secret: &str) -> BTreeMap<String, String> {
    Options::default()
        .with("AWS_ENDPOINT_URL", endpoint)
        .with("AWS_ACCESS_KEY_ID", access)
        .with("AWS_SECRET_ACCESS_KEY", secret)
        .into_map()
}

fn unsigned(endpoint: &str) -> BTreeMap<String, String> {
    let options = Options::default().with("AWS_ENDPOINT_URL", endpoint);
    options.with("AWS_SKIP_SIGNATURE", "true").into_map()
}
