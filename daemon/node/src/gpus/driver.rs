//! NVIDIA's driver, by its management library (NVML), which is loaded where the node has one.
//!
//! A figure the model does not support is absent, a failure is reported with its reason, and the
//! next read starts anew.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use forebay_api::gpus::{Activity, Identity};
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device as Handle, GpmSample, Nvml};

use super::activity::{DECODERS, JPEG, OTHERS, Plain, monitored, plain, with_memory};
use super::watch::{Asked, Known};
use super::{Device, Viewer, namespace};

/// Interval between the two counts of a first read: a hundred times the duration of a read.
const APART: Duration = Duration::from_millis(250);

/// A count kept from before is good for two scrapes a minute apart. An older one tells of what was,
/// not of what is.
const KEPT: Duration = Duration::from_secs(120);

/// Looks whenever that is wanted, for as long as it may be.
pub(super) fn run(asked: &Asked) {
    let mut told = String::new();
    let mut viewers = asked.wanted();
    while !viewers.is_empty() {
        let failed = match Nvml::init() {
            Ok(nvml) => look(&nvml, asked, viewers),
            Err(error) if is_absent(&error) => {
                tracing::debug!(%error, "this node has no NVIDIA driver: GPUs are not reported");
                return asked.tell_all(&Known::Absent);
            }
            Err(error) => Err(error),
        };
        viewers = match failed {
            Ok(viewers) => viewers,
            Err(error) => {
                let error = error.to_string();
                if error != told {
                    tracing::warn!(error, "NVIDIA's driver is present but fails");
                    told.clone_from(&error);
                }
                asked.tell_all(&Known::devices(None, Err(error)));
                asked.wanted()
            }
        };
    }
}

/// Returns true if the library is missing: a present library that cannot be loaded is a different
/// error.
fn is_absent(error: &NvmlError) -> bool {
    // The loader has but words for it.
    matches!(error, NvmlError::LibloadingError(_)) && error.to_string().contains("No such file")
}

/// Looks for these viewers and those who want it later, until a GPU fails, and then some want one
/// more: they are returned. Nobody is if nobody will.
fn look(nvml: &Nvml, asked: &Asked, mut viewers: Vec<Viewer>) -> Result<Vec<Viewer>, NvmlError> {
    let release = nvml.sys_driver_version()?;
    let shares_processes = namespace::is_shared(&release);
    let count = nvml.device_count()?;
    let opened = (0..count).map(|index| Opened::new(nvml, index));
    let mut opened = opened.collect::<Result<Vec<_>, _>>()?;
    tracing::info!(gpus = opened.len(), driver = release, "reads GPUs from NVIDIA's driver");
    loop {
        // One wait for all.
        let mut is_begun = false;
        for gpu in &mut opened {
            for viewer in &viewers {
                is_begun |= gpu.begins(*viewer);
            }
        }
        if is_begun {
            pass(APART);
        }
        let mut fails = false;
        for viewer in viewers {
            let read = opened.iter_mut().map(|gpu| gpu.read(viewer, shares_processes));
            let devices: Vec<_> = read.collect();
            fails |= devices.iter().any(|device| device.failing.is_some());
            asked.tell(viewer, Known::devices(Some(release.clone()), Ok(devices)));
        }
        viewers = asked.wanted();
        if fails || viewers.is_empty() {
            return Ok(viewers);
        }
    }
}

/// Lets time pass, which is what is measured: nothing is waited for.
fn pass(stretch: Duration) {
    let since = Instant::now();
    // A thread that is unparked for another reason goes on to wait.
    while let Some(left) = stretch.checked_sub(since.elapsed()) {
        std::thread::park_timeout(left);
    }
}

/// Counts at the last read of each kind of viewer.
struct Before<Sample>([Option<(Instant, Sample)>; Viewer::ALL.len()]);

impl<Sample> Before<Sample> {
    fn nothing() -> Self {
        Self(Viewer::ALL.map(|_| None))
    }

    fn is_good(&self, viewer: Viewer) -> bool {
        self.0[viewer as usize].as_ref().is_some_and(|(at, _)| at.elapsed() < KEPT)
    }

    fn take(&mut self, viewer: Viewer) -> Option<(Instant, Sample)> {
        self.0[viewer as usize].take()
    }

    fn keep(&mut self, viewer: Viewer, sample: Option<(Instant, Sample)>) {
        self.0[viewer as usize] = sample;
    }
}

/// A GPU, and what it counted when it was read last.
struct Opened<'nvml> {
    nvml: &'nvml Nvml,
    handle: Handle<'nvml>,
    identity: Identity,
    is_monitored: bool,
    before: Before<GpmSample<'nvml>>,
}

impl<'nvml> Opened<'nvml> {
    fn new(nvml: &'nvml Nvml, index: u32) -> Result<Self, NvmlError> {
        let handle = nvml.device_by_index(index)?;
        let identity = Identity {
            index,
            uuid: handle.uuid()?,
            pci_bus_id: handle.pci_info()?.bus_id,
            model: handle.name()?,
        };
        let is_monitored = told(handle.gpm_support())?.unwrap_or(false);
        Ok(Self { nvml, handle, identity, is_monitored, before: Before::nothing() })
    }

    /// Counts now, if there is no count from before that is good; whether it did.
    fn begins(&mut self, viewer: Viewer) -> bool {
        if !self.is_monitored || self.before.is_good(viewer) {
            return false;
        }
        let sample = self.handle.gpm_sample();
        self.before.keep(viewer, sample.ok().map(|sample| (Instant::now(), sample)));
        self.before.is_good(viewer)
    }

    fn read(&mut self, viewer: Viewer, shares_processes: bool) -> Device {
        let (activity, processes, failing) = match self.activity(viewer, shares_processes) {
            Ok((activity, processes)) => (activity, processes, None),
            Err(error) => (Activity::default(), Vec::new(), Some(error.to_string())),
        };
        Device { identity: self.identity.clone(), failing, activity, processes }
    }

    fn activity(
        &mut self,
        viewer: Viewer,
        shares_processes: bool,
    ) -> Result<(Activity, Vec<u32>), NvmlError> {
        let memory = told(self.handle.memory_info())?.map(|memory| (memory.used, memory.total));
        let activity = match self.monitored(viewer)? {
            Some(activity) => activity,
            None => self.plain()?,
        };
        let processes = match shares_processes {
            true => told(self.handle.running_compute_processes())?.unwrap_or_default(),
            false => Vec::new(),
        };
        // One that uses several parts of a GPU is told several times.
        let processes: BTreeSet<_> = processes.iter().map(|process| process.pid).collect();
        Ok((with_memory(activity, memory), processes.into_iter().collect()))
    }

    /// Returns the counts since this kind of viewer last read.
    fn monitored(&mut self, viewer: Viewer) -> Result<Option<Activity>, NvmlError> {
        let Some((since, before)) = self.before.take(viewer) else { return Ok(None) };
        let Some(sample) = told(self.handle.gpm_sample())? else { return Ok(None) };
        let now = Instant::now();
        let metrics = [&OTHERS[..], &JPEG, &DECODERS].concat();
        let counted = told(gpm_metrics_get(self.nvml, &before, &sample, &metrics))?;
        self.before.keep(viewer, Some((now, sample)));
        // One that fails is of an engine that this model does not have.
        let value = |told: Result<_, NvmlError>| {
            told.ok().map(|told: nvml_wrapper::struct_wrappers::gpm::GpmMetricResult| {
                (told.metric_id, told.value)
            })
        };
        Ok(counted.map(|counted| {
            let counted: Vec<_> = counted.into_iter().filter_map(value).collect();
            monitored(&counted, now.duration_since(since))
        }))
    }

    fn plain(&self) -> Result<Activity, NvmlError> {
        Ok(plain(Plain {
            gpu: told(self.handle.utilization_rates())?.map(|told| told.gpu),
            decoder: told(self.handle.decoder_utilization())?.map(|told| told.utilization),
            sent: told(self.handle.pcie_throughput(PcieUtilCounter::Send))?,
            received: told(self.handle.pcie_throughput(PcieUtilCounter::Receive))?,
        }))
    }
}

/// Returns a call's result; none if this model, driver or user does not support it.
fn told<T>(result: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    use NvmlError::{
        FailedToLoadSymbol, FunctionNotFound, InvalidArg, NoData, NoPermission, NotSupported,
    };
    match result {
        Ok(value) => Ok(Some(value)),
        Err(
            NotSupported
            | NoPermission
            | NoData
            | InvalidArg
            | FunctionNotFound
            | FailedToLoadSymbol(_),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use forebay_skip::{Requirement, skip};

    use super::super::Gpus;
    use super::*;

    #[tokio::test]
    async fn real_driver_reports_plausible_figures() {
        let gpus = Gpus::default();
        let Some(report) = gpus.look(Viewer::Status, &[]).await else {
            return skip(Requirement::Gpu, "there is no NVIDIA driver");
        };
        assert_eq!(report.failing, None);
        assert!(report.driver.is_some() && !report.host.is_empty());
        for (at, gpu) in report.devices.iter().enumerate() {
            let (identity, activity) = (&gpu.identity, &gpu.activity);
            assert!(gpu.failing.is_none() && identity.index as usize == at, "{gpu:?}");
            assert!(identity.uuid.starts_with("GPU-") && identity.pci_bus_id.contains(':'));
            assert!(!identity.model.is_empty());
            let shares = [activity.sm_share, activity.decoder_share, activity.jpeg_share()];
            assert!(shares.into_iter().flatten().all(|share| (0.0..=1.0).contains(&share)));
            assert!(activity.memory_used_bytes <= activity.memory_bytes);
            assert!(activity.over_seconds.is_none_or(|over| over > 0.0));
        }
    }

    /// A scrape covers all the time since the scrape before, though a page read the GPU meanwhile.
    #[test]
    fn each_viewer_keeps_its_own_last_reading() {
        let mut before = Before::nothing();
        assert!(!before.is_good(Viewer::Scrape));
        before.keep(Viewer::Scrape, Some((Instant::now(), "scraped")));
        for _ in 0..7 {
            let _ = before.take(Viewer::Status);
            before.keep(Viewer::Status, Some((Instant::now(), "seen")));
        }
        assert!(before.is_good(Viewer::Scrape));
        assert_eq!(before.take(Viewer::Scrape).unwrap().1, "scraped");
        assert!(!before.is_good(Viewer::Scrape) && before.is_good(Viewer::Status));
    }

    #[test]
    fn missing_library_is_distinguished_from_a_broken_one() {
        let missing = Nvml::builder().lib_path("/nowhere/libnvidia-ml.so.1".as_ref()).init();
        assert!(is_absent(&missing.unwrap_err()));
        let folder = tempfile::tempdir().unwrap();
        let broken = folder.path().join("libnvidia-ml.so.1");
        std::fs::write(&broken, "no library").unwrap();
        let broken = Nvml::builder().lib_path(broken.as_os_str()).init();
        assert!(!is_absent(&broken.unwrap_err()));
    }
}
