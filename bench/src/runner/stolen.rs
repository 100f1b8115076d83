//! Processor time that the host of a virtual machine has taken ("steal").

use std::fs;

/// A run is repeated if the host took more of the processor time.
pub const MOST_STOLEN: f64 = 0.02;

/// How often a run is repeated at most.
pub const MOST_REPEATS: u32 = 2;

/// Processor time since the start of the system, of all processors, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessorTime {
    stolen: u64,
    all: u64,
}

impl ProcessorTime {
    /// `None` if the system does not tell.
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line: cpu user nice system idle iowait irq softirq steal guest guest_nice.
    /// The time of guests is part of user and nice.
    fn parse(stat: &str) -> Option<Self> {
        let ticks = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks = ticks.split_whitespace().take(8).map(str::parse);
        let ticks = ticks.collect::<Result<Vec<u64>, _>>().ok()?;
        Some(Self {
            stolen: *ticks.get(7)?,
            all: ticks.iter().sum(),
        })
    }

    /// The share of the time since then that was stolen.
    fn stolen_since(self, then: Self) -> f64 {
        match self.all.saturating_sub(then.all) {
            0 => 0.0,
            all => self.stolen.saturating_sub(then.stolen) as f64 / all as f64,
        }
    }
}

/// The share that was stolen since then; 0 if the system does not tell.
pub fn share_since(then: Option<ProcessorTime>) -> f64 {
    let now = then.zip(ProcessorTime::now());
    now.map_or(0.0, |(then, now)| now.stolen_since(then))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_all_processor_time() {
        let stat = "cpu  100 20 30 400 5 0 5 40 70 7\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        let then = ProcessorTime::parse(stat).unwrap();
        assert_eq!(
            then,
            ProcessorTime {
                stolen: 40,
                all: 600
            }
        );
        let now = ProcessorTime {
            stolen: 43,
            all: 700,
        };
        assert_eq!(now.stolen_since(then), 0.03);
        assert_eq!(then.stolen_since(then), 0.0);
    }

    #[test]
    fn what_has_no_stolen_time_is_not_read() {
        for stat in [
            "",
            "cpu 1 2 3",
            "intr 1 2 3 4 5 6 7 8",
            "cpu 1 2 3 4 5 6 7 x",
        ] {
            assert_eq!(ProcessorTime::parse(stat), None, "{stat}");
        }
        assert!((0.0..=1.0).contains(&share_since(ProcessorTime::now())));
    }
}
