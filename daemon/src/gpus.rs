//! What the node's GPUs do, as NVIDIA's driver says, and which job computes on which.
//!
//! One rule: they are looked at when somebody asks, by one thread, and nobody waits for a driver longer than a second.
//! What counts since it was asked before counts so for scrapes and for everybody else apart: a page that is open takes nothing of
//! what Prometheus sees.
//!
//! ```text
//!   watch       asks, and answers that are shared          gpus/watch.rs
//!   driver      NVML's calls                               gpus/driver.rs
//!   activity    what they gave, in base units              gpus/activity.rs
//!   namespace   whether its process ids are ours, too      gpus/namespace.rs
//!   lines       a GPU as text                              gpus/lines.rs
//! ```

mod activity;
mod driver;
mod lines;
mod namespace;
mod watch;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub(crate) use watch::Gpus;

/// Who asks what GPUs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Viewer {
    /// A monitoring system, which adds up what it is told.
    Scrape,
    /// People, by pages and tools.
    Status,
}

impl Viewer {
    /// All there are, in the order of their numbers.
    const ALL: [Self; 2] = [Self::Scrape, Self::Status];
}

use crate::status::Job;

/// A node's GPUs, as NVIDIA's driver says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuReport {
    /// The node, as `dcgm-exporter` names it: `NODE_NAME` of the environment, else the host's name.
    pub host: String,
    /// The driver's release; none before it told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Why they cannot be read now: what else stands here was read before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// Seconds since they were read; none if they never were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_seconds_ago: Option<f64>,
    /// Each, by its number.
    pub devices: Vec<Gpu>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// What it is, and always was.
    #[serde(flatten)]
    pub identity: Identity,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// What it does.
    #[serde(flatten)]
    pub activity: Activity,
    /// Jobs of this daemon whose trainers compute on it.
    pub jobs: Vec<GpuJob>,
    /// Other processes that do.
    pub other_processes: usize,
}

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Identity {
    /// Its number, in the driver's order.
    pub index: u32,
    /// What tells it from all other GPUs.
    pub uuid: String,
    /// Where it is on the bus.
    pub pci_bus_id: String,
    /// What it is sold as.
    pub model: String,
}

/// What a GPU does. What its driver does not tell of such a model is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// Whether shares and rates are of the driver's performance monitoring (GPM, Hopper and later): exact over
    /// `over_seconds`. Else they are its older figures: `sm_share` is of the time in which any kernel ran.
    pub is_monitored: bool,
    /// Seconds that monitored shares and rates are of: the stretch since it was read before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_seconds: Option<f64>,
    /// Share of their time in which multiprocessors had work, over all of them, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_share: Option<f64>,
    /// Share of its time in which each JPEG engine worked, 0 to 1.
    #[serde(default)]
    pub jpeg_shares: Vec<f64>,
    /// Share of their time in which video decoders worked, the mean over all, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoder_share: Option<f64>,
    /// Bytes a second that came in over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_in_bytes_per_second: Option<f64>,
    /// Bytes a second that went out over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_out_bytes_per_second: Option<f64>,
    /// Bytes of its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes of it in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
}

/// A job that computes on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuJob {
    /// Its number.
    pub session: u64,
    /// Its name.
    pub name: String,
}

/// A GPU as it was read: processes are numbers still.
#[derive(Debug, Clone, PartialEq)]
struct Device {
    identity: Identity,
    failing: Option<String>,
    activity: Activity,
    /// Processes that compute on it, as this namespace numbers them.
    processes: Vec<u32>,
}

impl Device {
    /// The same, with the jobs whose trainers are among its processes: by exact number, as a trainer's children
    /// may compute on another GPU.
    fn joined(self, jobs: &[Job]) -> Gpu {
        let Self { identity, failing, activity, processes } = self;
        let is_here = |job: &&Job| job.pid.is_some_and(|pid| processes.contains(&pid));
        let named = |job: &Job| GpuJob { session: job.session, name: job.name.clone() };
        let is_other = |pid: &&u32| jobs.iter().all(|job| job.pid != Some(**pid));
        Gpu {
            identity,
            failing,
            activity,
            jobs: jobs.iter().filter(is_here).map(named).collect(),
            other_processes: processes.iter().filter(is_other).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Told;

    fn job(session: u64, pid: Option<u32>) -> Job {
        Job {
            session,
            name: format!("job {session}"),
            tenant: None,
            pid,
            slab_bytes: 0,
            slab_batches: 0,
            leased_bytes: 0,
            lent_slots: 0,
            wrong_shards: 0,
            progress: None,
            told: Told::default(),
        }
    }

    #[test]
    fn jobs_are_found_by_the_process_that_connected() {
        let identity = Identity {
            index: 1,
            uuid: "GPU-1".to_owned(),
            pci_bus_id: "00000000:06:00.0".to_owned(),
            model: "H".to_owned(),
        };
        let device = |processes: &[u32]| Device {
            identity: identity.clone(),
            failing: None,
            activity: Activity::default(),
            processes: processes.to_vec(),
        };
        // Two loaders of one trainer, one trainer elsewhere, one whose number this namespace does not have.
        let jobs = [job(1, Some(10)), job(2, Some(10)), job(3, Some(11)), job(4, None)];
        let gpu = device(&[9, 10, 12]).joined(&jobs);
        let found: Vec<_> = gpu.jobs.iter().map(|job| (job.session, &*job.name)).collect();
        assert_eq!(found, [(1, "job 1"), (2, "job 2")]);
        assert_eq!(gpu.other_processes, 2);
        let idle = device(&[]).joined(&jobs);
        assert_eq!((idle.jobs.len(), idle.other_processes), (0, 0));
        assert_eq!(idle.identity, identity);
    }
}
