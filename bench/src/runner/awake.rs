//! Keeps the processors awake while something is measured, and describes what they do
//! otherwise.
//!
//! A processor that has nothing to do halts. To wake it takes time, on a virtual machine up
//! to 0.4 ms, since the host has to do it. Which server is hit depends on what else keeps the
//! processors busy.

use std::fs::{self, File};
use std::io::{self, Write as _};

use crate::report::results::Conditions;

/// As long as it is open, the idle driver of Linux keeps the time to wake a processor below
/// what is written to it, in microseconds.
const DEVICE: &str = "/dev/cpu_dma_latency";

const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";

/// What happens to the figures otherwise.
const CONSEQUENCE: &str = "a processor that halts takes up to 0.4 ms to wake, so round trips \
                           look slower and intervals become wide";

/// The processors are awake until this is dropped.
#[derive(Debug)]
pub struct Awake(#[expect(dead_code, reason = "it only has to stay open")] File);

impl Awake {
    /// Needs the right to write to the device, which only root has by default. The error is a
    /// warning.
    pub fn keep() -> Result<Self, String> {
        if idle("current_driver").is_none_or(|driver| driver == "none") {
            return Err(format!(
                "the processors were not kept awake, as Linux has no idle driver here that would \
                 do it: {CONSEQUENCE}"
            ));
        }
        open().map(Self).map_err(|error| {
            format!(
                "the processors were not kept awake ({DEVICE}: {error}): {CONSEQUENCE}; run \
                 pinpoint-bench as root, or let its user write to this file"
            )
        })
    }
}

fn open() -> io::Result<File> {
    let mut device = File::options().write(true).open(DEVICE)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}

/// What Linux tells of how a processor halts.
fn idle(name: &str) -> Option<String> {
    let content = fs::read_to_string(format!("{CPUIDLE}/{name}")).ok()?;
    Some(content.trim().to_owned())
}

/// Those of this moment.
pub fn conditions(kept_awake: bool) -> Conditions {
    Conditions {
        kept_awake,
        idle_driver: idle("current_driver"),
        idle_governor: idle("current_governor"),
        load_at_start: sysinfo::System::load_average().one,
    }
}
