//! GPUs of a node, as NVIDIA's driver reports them.

mod lines;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A node's GPUs, as NVIDIA's driver says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuReport {
    /// The node, as `dcgm-exporter` names it: `NODE_NAME` of the environment, else the host's name.
    pub host: String,
    /// The driver's release; none before it told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Reason they cannot be read now: the other figures are from the last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// Seconds since they were read; none if they never were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_seconds_ago: Option<f64>,
    /// Each, by its number.
    pub devices: Vec<Gpu>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Identity of the GPU.
    #[serde(flatten)]
    pub identity: Identity,
    /// Reason it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// Activity.
    #[serde(flatten)]
    pub activity: Activity,
    /// Jobs of this daemon whose trainers compute on it.
    pub jobs: Vec<GpuJob>,
    /// Other processes that do.
    pub other_processes: usize,
}

/// Identity of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Identity {
    /// Number, in the driver's order.
    pub index: u32,
    /// Unique identifier.
    pub uuid: String,
    /// Address on the bus.
    pub pci_bus_id: String,
    /// Product name.
    pub model: String,
}

/// Activity of a GPU. Figures the driver does not give for the model are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// True if shares and rates come from the driver's performance monitoring (GPM, Hopper and
    /// later): exact over `over_seconds`. Otherwise they are the older figures: `sm_share` is the
    /// share of time in which any kernel ran.
    pub is_monitored: bool,
    /// Seconds that monitored shares and rates are of: the stretch since it was read before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_seconds: Option<f64>,
    /// Share of their time in which multiprocessors had work, over all of them, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_share: Option<f64>,
    /// Share of its time in which each JPEG engine worked, 0 to 1.
    pub jpeg_shares: Vec<f64>,
    /// Share of their time in which video decoders worked, the mean over all, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder_share: Option<f64>,
    /// Bytes a second that came in over PCIe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_in_bytes_per_second: Option<f64>,
    /// Bytes a second that went out over PCIe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_out_bytes_per_second: Option<f64>,
    /// Bytes of its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes of it in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
}

/// A job that computes on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuJob {
    /// Number.
    pub session: u64,
    /// Name.
    pub name: String,
}

impl Activity {
    /// Share of their time in which JPEG engines worked, the mean over all; none if it is not
    /// known.
    #[must_use]
    pub fn jpeg_share(&self) -> Option<f64> {
        mean(&self.jpeg_shares)
    }
}

/// The mean of shares; none of none.
#[must_use]
pub fn mean(shares: &[f64]) -> Option<f64> {
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}
