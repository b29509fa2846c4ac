//! Families of GPUs: what NVIDIA's driver says, with the labels that `dcgm-exporter` has, so that
//! both can be joined.

use forebay_api::gpus::{Gpu, GpuReport};
use forebay_api::status::{Job, Status};

use super::family::{Family, Sample, Together};
use super::jobs;

/// A GPU's labels, as `dcgm-exporter` spells them; a family's others come behind.
macro_rules! labels {
    ($($other:literal),*) => {
        &["gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname" $(, $other)*]
    };
}

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_gpu_driver_up",
        &[],
        "1 while NVIDIA's driver answers, 0 while it fails or is silent: the GPUs' figures are absent then. Absent without a driver.",
        |status| {
            status.gpus.as_ref().map_or_else(Vec::new, |told| Sample::only(told.failing.is_none()))
        },
    ),
    Family::gauge("forebay_gpu_up", labels!(), "1 if the GPU could be read, else 0.", |status| {
        let fails = status.gpus.as_ref().is_some_and(|told| told.failing.is_some());
        each(status, |gpu| one(Some(f64::from(!fails && gpu.failing.is_none()))))
    }),
    Family::gauge(
        "forebay_gpu_info",
        labels!("driver", "counters"),
        "Release of the driver, and the source of its figures: gpm, exact since the last read, or plain, as nvidia-smi shows; the value is always 1.",
        |status| {
            let driver = status.gpus.as_ref().and_then(|told| told.driver.clone());
            let driver = driver.unwrap_or_default();
            read(status, |gpu| {
                let counters = if gpu.activity.is_monitored { "gpm" } else { "plain" };
                vec![(vec![driver.clone(), counters.to_owned()], 1.0)]
            })
        },
    ),
    Family::gauge(
        "forebay_gpu_observed_seconds",
        labels!(),
        "Period of the gpm figures: since the previous scrape by any client.",
        |status| read(status, |gpu| one(gpu.activity.over_seconds)),
    ),
    Family::gauge(
        "forebay_gpu_sm_utilization_ratio",
        labels!(),
        "gpm: share of time in which multiprocessors had work, averaged over all; plain: share of time in which any kernel ran.",
        |status| read(status, |gpu| one(gpu.activity.sm_share)),
    ),
    Family::gauge(
        "forebay_gpu_jpeg_utilization_ratio",
        labels!("engine"),
        "Share of time in which each JPEG engine worked; gpm only.",
        |status| {
            read(status, |gpu| {
                let engines = gpu.activity.jpeg_shares.iter().enumerate();
                engines.map(|(engine, share)| (vec![engine.to_string()], *share)).collect()
            })
        },
    ),
    Family::gauge(
        "forebay_gpu_decoder_utilization_ratio",
        labels!(),
        "Share of time in which video decoders worked, averaged over all.",
        |status| read(status, |gpu| one(gpu.activity.decoder_share)),
    ),
    Family::gauge(
        "forebay_gpu_pcie_bytes_per_second",
        labels!("direction"),
        "Bytes per second over PCIe, to and from the GPU; plain: over 20 ms.",
        |status| {
            read(status, |gpu| {
                let Gpu { activity, .. } = gpu;
                let told = [
                    ("in", activity.pcie_in_bytes_per_second),
                    ("out", activity.pcie_out_bytes_per_second),
                ];
                let known = told.into_iter().filter_map(|(which, rate)| Some((which, rate?)));
                known.map(|(which, rate)| (vec![which.to_owned()], rate)).collect()
            })
        },
    ),
    Family::gauge("forebay_gpu_memory_bytes", labels!(), "Bytes of the GPU's memory.", |status| {
        read(status, |gpu| one(gpu.activity.memory_bytes.map(|bytes| bytes as f64)))
    }),
    Family::gauge(
        "forebay_gpu_memory_used_bytes",
        labels!(),
        "Bytes of the GPU's memory in use, by all processes.",
        |status| read(status, |gpu| one(gpu.activity.memory_used_bytes.map(|bytes| bytes as f64))),
    ),
    Family::gauge(
        "forebay_gpu_other_processes",
        labels!(),
        "Processes that compute on the GPU without a job on this daemon.",
        |status| read(status, |gpu| one(Some(gpu.other_processes as f64))),
    ),
    Family::gauge(
        "forebay_gpu_job_info",
        labels!("job", "session", "tenant"),
        "A job whose trainer computes on the GPU, and its tenant; the value is always 1.",
        |status| {
            read(status, |gpu| {
                let is_here = |job: &&Job| gpu.jobs.iter().any(|here| here.session == job.session);
                let here = jobs::shown(status).filter(is_here);
                here.map(|job| {
                    let tenant = job.tenant.clone().unwrap_or_default();
                    (vec![job.name.clone(), job.session.to_string(), tenant], 1.0)
                })
                .collect()
            })
        },
    )
    .together(Together::Untold),
];

/// Values of labels of the family's own, and a number.
type Told = (Vec<String>, f64);

fn one(value: Option<f64>) -> Vec<Told> {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

/// Something of each GPU.
fn each(status: &Status, of: impl Fn(&Gpu) -> Vec<Told>) -> Vec<Sample> {
    let Some(told) = &status.gpus else { return Vec::new() };
    let samples = told.devices.iter().flat_map(|gpu| {
        let own = own_labels(told, gpu);
        of(gpu).into_iter().map(move |(others, value)| {
            let labels = own.iter().chain(&others).map(String::as_str);
            Sample::of(labels, value)
        })
    });
    samples.collect()
}

/// The same of those that tell what they do now: an old figure is not told as one of this moment.
fn read(status: &Status, of: impl Fn(&Gpu) -> Vec<Told>) -> Vec<Sample> {
    let fails = status.gpus.as_ref().is_none_or(|told| told.failing.is_some());
    each(status, |gpu| if fails || gpu.failing.is_some() { Vec::new() } else { of(gpu) })
}

fn own_labels(told: &GpuReport, gpu: &Gpu) -> [String; 6] {
    let identity = &gpu.identity;
    [
        identity.index.to_string(),
        identity.uuid.clone(),
        identity.pci_bus_id.clone(),
        format!("nvidia{}", identity.index),
        identity.model.clone(),
        told.host.clone(),
    ]
}
