//! Results of NVML's calls in base units: shares of 0 to 1, bytes, seconds.
//!
//! An impossible figure becomes none.

use std::time::Duration;

use forebay_api::gpus::{Activity, mean};
use nvml_wrapper::enums::gpm::GpmMetricId as Metric;

/// Bytes of what GPM counts PCIe traffic in: MiB, by nvml.h.
const GPM_PCIE_UNIT: f64 = 1_048_576.0;

/// Bytes of what the older call counts it in: KB, by nvml.h.
const PCIE_UNIT: f64 = 1000.0;

/// A GPU's JPEG engines, as many as GPM has numbers for.
pub(super) const JPEG: [Metric; 8] = [
    Metric::Nvjpg0Util,
    Metric::Nvjpg1Util,
    Metric::Nvjpg2Util,
    Metric::Nvjpg3Util,
    Metric::Nvjpg4Util,
    Metric::Nvjpg5Util,
    Metric::Nvjpg6Util,
    Metric::Nvjpg7Util,
];

/// Video decoders, likewise.
pub(super) const DECODERS: [Metric; 8] = [
    Metric::Nvdec0Util,
    Metric::Nvdec1Util,
    Metric::Nvdec2Util,
    Metric::Nvdec3Util,
    Metric::Nvdec4Util,
    Metric::Nvdec5Util,
    Metric::Nvdec6Util,
    Metric::Nvdec7Util,
];

/// The others that are asked for.
pub(super) const OTHERS: [Metric; 3] = [Metric::SmUtil, Metric::PcieTxPerSec, Metric::PcieRxPerSec];

/// Results of the older calls, in their units.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Plain {
    /// Share of time in which any kernel ran, in percent.
    pub(super) gpu: Option<u32>,
    /// Share of the decoders' time, in percent.
    pub(super) decoder: Option<u32>,
    /// KB a second from the GPU.
    pub(super) sent: Option<u32>,
    /// KB a second to the GPU.
    pub(super) received: Option<u32>,
}

/// Converts GPM's metrics over a period, in its units; engines that the GPU lacks are absent.
pub(super) fn monitored(told: &[(Metric, f64)], over: Duration) -> Activity {
    let value = |metric: Metric| told.iter().find(|(of, _)| *of == metric).map(|told| told.1);
    let shares = |engines: [Metric; 8]| -> Vec<f64> {
        engines.into_iter().filter_map(value).filter_map(share).collect()
    };
    let rate = |metric| value(metric).and_then(|told| rate(told, GPM_PCIE_UNIT));
    Activity {
        is_monitored: true,
        over_seconds: Some(over.as_secs_f64()),
        sm_share: value(Metric::SmUtil).and_then(share),
        jpeg_shares: shares(JPEG),
        decoder_share: mean(&shares(DECODERS)),
        pcie_in_bytes_per_second: rate(Metric::PcieRxPerSec),
        pcie_out_bytes_per_second: rate(Metric::PcieTxPerSec),
        ..Activity::default()
    }
}

/// Converts the results of the older calls.
pub(super) fn plain(told: Plain) -> Activity {
    let share = |percent: Option<u32>| percent.map(f64::from).and_then(share);
    let rate = |told: Option<u32>| told.and_then(|told| rate(told.into(), PCIE_UNIT));
    Activity {
        sm_share: share(told.gpu),
        decoder_share: share(told.decoder),
        pcie_in_bytes_per_second: rate(told.received),
        pcie_out_bytes_per_second: rate(told.sent),
        ..Activity::default()
    }
}

/// The same, and how full its memory is.
pub(super) fn with_memory(activity: Activity, memory: Option<(u64, u64)>) -> Activity {
    let (used, all) = memory.unzip();
    Activity { memory_used_bytes: used, memory_bytes: all, ..activity }
}
fn share(percent: f64) -> Option<f64> {
    // Two counters that are not read at the same instant may give a little more than all.
    (percent.is_finite() && percent >= 0.0).then(|| (percent / 100.0).min(1.0))
}

fn rate(told: f64, unit: f64) -> Option<f64> {
    (told.is_finite() && told >= 0.0).then_some(told * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitored_figures_are_converted_to_base_units() {
        let told = [
            (Metric::SmUtil, 71.5),
            (Metric::PcieRxPerSec, 1024.0),
            (Metric::PcieTxPerSec, 0.5),
            (Metric::Nvjpg0Util, 30.0),
            (Metric::Nvjpg3Util, 10.0),
            (Metric::Nvdec0Util, 0.0),
            (Metric::Nvdec1Util, 50.0),
        ];
        let activity = monitored(&told, Duration::from_millis(1500));
        assert!(activity.is_monitored);
        assert_eq!(activity.over_seconds, Some(1.5));
        assert_eq!(activity.sm_share, Some(0.715));
        assert_eq!(activity.jpeg_shares, [0.3, 0.1]);
        assert_eq!(activity.jpeg_share(), Some(0.2));
        assert_eq!(activity.decoder_share, Some(0.25));
        // To the GPU is in.
        assert_eq!(activity.pcie_in_bytes_per_second, Some(f64::from(1 << 30)));
        assert_eq!(activity.pcie_out_bytes_per_second, Some(f64::from(1 << 19)));
        let full = with_memory(activity, Some((3, 4)));
        assert_eq!((full.memory_used_bytes, full.memory_bytes), (Some(3), Some(4)));
    }

    #[test]
    fn impossible_figures_are_dropped() {
        let told = [
            (Metric::SmUtil, f64::NAN),
            (Metric::PcieRxPerSec, -1.0),
            (Metric::Nvjpg0Util, f64::INFINITY),
            (Metric::Nvjpg1Util, 100.2),
        ];
        let activity = monitored(&told, Duration::from_secs(1));
        assert_eq!((activity.sm_share, activity.pcie_in_bytes_per_second), (None, None));
        assert_eq!(activity.jpeg_shares, [1.0]);
        assert_eq!((activity.decoder_share, activity.memory_bytes), (None, None));
    }

    #[test]
    fn plain_counters_are_marked_as_not_monitored() {
        let told = Plain { gpu: Some(40), decoder: None, sent: Some(2), received: Some(3000) };
        let activity = plain(told);
        assert!(!activity.is_monitored && activity.jpeg_share().is_none());
        assert_eq!((activity.sm_share, activity.decoder_share), (Some(0.4), None));
        assert_eq!(activity.pcie_in_bytes_per_second, Some(3_000_000.0));
        assert_eq!(activity.pcie_out_bytes_per_second, Some(2000.0));
    }
}
