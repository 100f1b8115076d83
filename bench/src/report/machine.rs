//! The machine that the figures are from.

use sysinfo::{CpuRefreshKind, System};

use super::results::Machine;

impl Machine {
    pub fn detect() -> Self {
        let mut system = System::new();
        system.refresh_cpu_list(CpuRefreshKind::nothing());
        let unknown = || "unknown".to_owned();
        Self {
            cpu_model: system
                .cpus()
                .first()
                .map(|cpu| cpu.brand().trim().to_owned())
                .filter(|brand| !brand.is_empty())
                .unwrap_or_else(unknown),
            cpu_count: system.cpus().len(),
            os: System::long_os_version().unwrap_or_else(unknown),
            kernel: System::kernel_version().unwrap_or_else(unknown),
        }
    }
}
