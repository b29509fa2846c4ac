//! Activity of the node's GPUs, as NVIDIA's driver reports it, and the job that computes on each.
//! GPUs are read on request, by one thread, and no caller waits for a driver longer than a second.
//! Figures since the last read are kept apart for scrapes and for other viewers: an open page takes
//! nothing from Prometheus' figures.
//! ```text
//!   watch       requests, and shared answers               gpus/watch.rs
//!   driver      NVML's calls                               gpus/driver.rs
//!   activity    figures in base units                      gpus/activity.rs
//!   namespace   check of the process ids' namespace        gpus/namespace.rs
//! ```

mod activity;
mod driver;
mod namespace;
mod watch;

use forebay_api::gpus::{Activity, Gpu, GpuJob, Identity};
use forebay_api::status::Job;

pub use watch::Gpus;

/// Kind of caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Viewer {
    /// A monitoring system, which adds up what it is told.
    Scrape,
    /// People, by pages and tools.
    Status,
}

impl Viewer {
    /// All there are, in the order of their numbers.
    const ALL: [Self; 2] = [Self::Scrape, Self::Status];
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
    /// The same, with the jobs whose trainers are among its processes: by exact number, as a
    /// trainer's children may compute on another GPU.
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
    use forebay_api::status::Told;

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
            reading: None,
            progress: None,
            awaited: None,
            told: Told::default(),
        }
    }

    #[test]
    fn jobs_are_matched_to_gpus_by_process() {
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
        // Two loaders of one trainer, one trainer elsewhere, one whose number this namespace does
        // not have.
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
