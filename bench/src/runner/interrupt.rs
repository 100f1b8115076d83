//! Signals that ask the program to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal to stop that has arrived.
#[derive(Debug, Clone, Copy)]
pub struct Interrupt(SignalKind);

impl Interrupt {
    /// The exit code that shells give to a program that this signal ended.
    pub fn exit_code(self) -> u8 {
        128 + self.0.as_raw_value() as u8
    }
}

/// The signals to stop. Once caught they no longer end the program by
/// themselves, so that cleaning up cannot be interrupted either.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Interrupts {
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one of them.
    pub async fn next(&mut self) -> Interrupt {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        };
        Interrupt(kind)
    }
}
