//! The process: configuration, composition, sessions, and the command line.
//!
//! ```text
//!   cli        what people type                          cli.rs, cli/
//!   config     the file (TOML, YAML, JSON), and an embedded daemon's own choices   config.rs, config/, embedded.rs
//!   compose    the only file that names concrete parts   compose.rs
//!   serve      listen, greet, one task per trainer       serve.rs, language.rs, peer.rs
//!   admin      what admins ask, over HTTP                admin.rs, admin/
//!   access     who may do what, by the kernel's word     access.rs, access/
//!   audit      who was refused what, who changed what    audit.rs, audit/
//!   leases     who keeps the queues of leased shards    leases.rs
//!   warm       fetches that no job wants yet              warm.rs
//!   reload     another configuration while jobs run      reload.rs
//!   scrubs     every byte at rest, checked                scrubs.rs
//!   status     what an admin sees                        status.rs
//!   gpus       what the node's GPUs do, and for which job   gpus.rs, gpus/
//!   metrics    the same as numbers, for whoever scrapes   metrics.rs, metrics/
//!   costs      what jobs cost                          costs.rs
//!   logs       the daemon's own log                    logs.rs
//!   supervisor what the service manager is told          supervisor.rs
//! ```

mod access;
mod admin;
mod audit;
pub mod cli;
mod compose;
mod config;
mod costs;
mod embedded;
mod gpus;
mod language;
mod leases;
mod logs;
mod metrics;
mod pace;
mod peer;
mod reload;
mod scrubs;
mod serve;
mod status;
mod supervisor;
mod warm;

pub use access::{AccessConfig, Allow, Door, Opens, TenantLimits};
pub use admin::{HttpConfig, HttpListener, Tls, TlsFiles, Token};
pub use audit::{AuditConfig, AuditReport};
pub use compose::{LOOK_AFTER, Node, NodeConfig, NodeTenant, NodeTier};
pub use config::{Config, Prices};
pub use costs::{Cost, CostLine, CostReport, Endurance};
pub use gpus::{Activity, Gpu, GpuJob, GpuReport, Identity};
pub use leases::LeasesConfig;
pub use logs::LogFormat;
pub use metrics::metrics_document;
pub use reload::{Applied, Configuration, Drift, Sent};
pub use serve::{ListenConfig, Listener, serve};
pub use status::Status;
pub use warm::{Failure, Warming};
