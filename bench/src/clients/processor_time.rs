//! How much processor time this program uses itself.

use std::time::Duration;

use anyhow::Context;
use nix::time::ClockId;

/// What the calling thread has used since it began.
pub fn of_this_thread() -> anyhow::Result<Duration> {
    let time = ClockId::CLOCK_THREAD_CPUTIME_ID.now();
    Ok(time
        .context("could not read this program's processor time")?
        .into())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread;

    use super::*;

    #[test]
    fn work_counts_and_that_of_other_threads_does_not() {
        let before = of_this_thread().unwrap();
        let other = thread::spawn(|| {
            while of_this_thread().unwrap() < Duration::from_millis(20) {
                black_box(0);
            }
        });
        other.join().unwrap();
        let meanwhile = of_this_thread().unwrap() - before;
        assert!(meanwhile < Duration::from_millis(20), "{meanwhile:?}");
        while of_this_thread().unwrap() < before + Duration::from_millis(1) {
            black_box(0);
        }
    }
}
