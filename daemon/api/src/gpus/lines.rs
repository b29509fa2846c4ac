//! A node's GPUs as lines of text.

use std::fmt;

use bytesize::ByteSize;

use super::{Activity, Gpu, GpuReport};

/// A share of 0 to 1, for people.
fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Bytes a second, for people.
fn rate(bytes_per_second: f64) -> String {
    // A bus's rate fits by far.
    format!("{}/s", ByteSize(bytes_per_second as u64).display().iec())
}

impl fmt::Display for GpuReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.failing {
            writeln!(f, "gpus    cannot be read: {why}")?;
            if let Some(ago) = self.read_seconds_ago.filter(|_| !self.devices.is_empty()) {
                writeln!(f, "        the following was read {ago:.0} s ago")?;
            }
        }
        self.devices.iter().try_for_each(|gpu| write!(f, "gpu     {gpu}"))
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, failing, activity, jobs, other_processes } = self;
        write!(f, "{} {}", identity.index, identity.model)?;
        match failing {
            Some(why) => writeln!(f, "  cannot be read: {why}")?,
            None => writeln!(f, "{activity}")?,
        }
        if !jobs.is_empty() || *other_processes > 0 {
            let mut by: Vec<_> =
                jobs.iter().map(|job| format!("job {} {}", job.session, job.name)).collect();
            match other_processes {
                0 => {}
                1 => by.push("1 other process".to_owned()),
                more => by.push(format!("{more} other processes")),
            }
            writeln!(f, "        used by {}", by.join(", "))?;
        }
        Ok(())
    }
}

/// Each figure that is known, after two spaces and commas.
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.memory_used_bytes.zip(self.memory_bytes).map(|(used, all)| {
            let [used, all] = [used, all].map(|bytes| ByteSize(bytes).display().iec().to_string());
            format!("memory {used} of {all}")
        });
        let busy = if self.is_monitored { "SM" } else { "busy" };
        let figures = [
            self.sm_share.map(|share| format!("{busy} {}", percent(share))),
            self.jpeg_share().map(|share| format!("JPEG {}", percent(share))),
            self.decoder_share.map(|share| format!("video {}", percent(share))),
            self.pcie_in_bytes_per_second.map(|told| format!("PCIe in {}", rate(told))),
            self.pcie_out_bytes_per_second.map(|told| format!("out {}", rate(told))),
            memory,
        ];
        let figures: Vec<_> = figures.into_iter().flatten().collect();
        if figures.is_empty() { Ok(()) } else { write!(f, "  {}", figures.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GpuJob, Identity};
    use super::*;

    #[test]
    fn gpu_line_shows_known_figures_and_jobs() {
        let identity = Identity {
            index: 0,
            uuid: "GPU-0".to_owned(),
            pci_bus_id: "00000000:06:00.0".to_owned(),
            model: "NVIDIA H100 80GB HBM3".to_owned(),
        };
        let activity = Activity {
            is_monitored: true,
            over_seconds: Some(15.0),
            sm_share: Some(0.714),
            jpeg_shares: vec![0.3, 0.1],
            decoder_share: None,
            pcie_in_bytes_per_second: Some(1_610_612_736.0),
            pcie_out_bytes_per_second: Some(0.0),
            memory_bytes: Some(80 << 30),
            memory_used_bytes: Some(20 << 30),
        };
        let busy = Gpu {
            identity: identity.clone(),
            failing: None,
            activity,
            jobs: vec![GpuJob { session: 7, name: "resnet50".to_owned() }],
            other_processes: 2,
        };
        let lost = Gpu {
            identity: Identity { index: 1, ..identity },
            failing: Some("it fell off the bus".to_owned()),
            activity: Activity::default(),
            jobs: Vec::new(),
            other_processes: 0,
        };
        let report = GpuReport {
            host: "node7".to_owned(),
            driver: Some("580.65.06".to_owned()),
            failing: None,
            read_seconds_ago: Some(3.2),
            devices: vec![busy, lost],
        };
        assert_eq!(
            report.to_string(),
            "gpu     0 NVIDIA H100 80GB HBM3  SM 71 %, JPEG 20 %, PCIe in 1.5 GiB/s, out 0 B/s, memory 20.0 GiB of 80.0 GiB\n\
             \x20       used by job 7 resnet50, 2 other processes\n\
             gpu     1 NVIDIA H100 80GB HBM3  cannot be read: it fell off the bus\n"
        );
        let silent = GpuReport { failing: Some("it is silent".to_owned()), ..report };
        let told = silent.to_string();
        assert!(told.starts_with(
            "gpus    cannot be read: it is silent\n        the following was read 3 s ago\ngpu     0"
        ));
        let plain = Activity { sm_share: Some(1.0), ..Activity::default() };
        assert_eq!(plain.to_string(), "  busy 100 %");
    }
}
