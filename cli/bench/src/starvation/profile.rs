//! Workloads of accelerators: MLPerf Storage's, and custom ones.

use serde::Serialize;

/// A workload on one kind of accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Profile {
    /// Name.
    pub name: &'static str,
    /// Samples per step.
    pub batch_size: u32,
    /// Seconds one step computes.
    pub step_seconds: f64,
    /// True if samples are JPEG images to decode.
    pub images: bool,
}

/// MLPerf Storage v1 and v2's workloads, by the step times of DLIO 2.0's configurations.
pub const PROFILES: [Profile; 6] = [
    Profile { name: "resnet50-h100", batch_size: 400, step_seconds: 0.224, images: true },
    Profile { name: "resnet50-a100", batch_size: 400, step_seconds: 0.435, images: true },
    Profile { name: "unet3d-h100", batch_size: 7, step_seconds: 0.323, images: false },
    Profile { name: "unet3d-a100", batch_size: 7, step_seconds: 0.636, images: false },
    Profile { name: "cosmoflow-h100", batch_size: 1, step_seconds: 0.0035, images: false },
    Profile { name: "cosmoflow-a100", batch_size: 1, step_seconds: 0.005_51, images: false },
];

/// The name under which a workload of one's own is reported.
pub const CUSTOM: &str = "custom";

impl Profile {
    /// The profile of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        PROFILES.into_iter().find(|profile| profile.name == name)
    }
}
