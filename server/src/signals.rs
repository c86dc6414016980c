//! Signals to the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To drain and end: SIGTERM, SIGQUIT, or SIGINT from a keyboard.
    Stop,
    /// To read all files again: SIGHUP.
    Reload,
}

/// Signals that would otherwise end the process at once, without a drain.
#[derive(Debug)]
pub(crate) struct Signals {
    stop: StopSignals,
    hang_up: Signal,
    user_defined_1: Signal,
    user_defined_2: Signal,
}

/// Those of them that ask to stop.
#[derive(Debug)]
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

impl Signals {
    /// Catches them from now on, for as long as the process lives. Those that come before [`Self::next`] is called wait.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            stop: StopSignals {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                quit: signal(SignalKind::quit())?,
            },
            hang_up: signal(SignalKind::hangup())?,
            user_defined_1: signal(SignalKind::user_defined1())?,
            user_defined_2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for a signal to stop. Others wait until [`Self::next`] is called.
    pub(crate) async fn stop(&mut self) {
        self.stop.next().await;
    }

    /// Waits for the next signal that asks for something. Logs the others.
    pub(crate) async fn next(&mut self) -> Asked {
        loop {
            let ignored = tokio::select! {
                () = self.stop.next() => return Asked::Stop,
                _ = self.hang_up.recv() => return Asked::Reload,
                _ = self.user_defined_1.recv() => "SIGUSR1",
                _ = self.user_defined_2.recv() => "SIGUSR2",
            };
            tracing::warn!(
                signal = %ignored,
                "signal ignored; SIGHUP reloads files, SIGTERM drains and stops"
            );
        }
    }
}

impl StopSignals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}
