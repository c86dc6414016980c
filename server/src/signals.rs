//! Signals of the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What the server does on a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// Drains and stops: SIGTERM, SIGQUIT.
    DrainAndStop,
    /// Stops without the drain delay: SIGINT, from a keyboard.
    StopWithoutDelay,
    /// Reads all files again: SIGHUP.
    Reload,
}

/// A signal that ends a server that is already stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecondSignal {
    /// The name of the signal.
    pub(crate) name: &'static str,
    /// The exit code of a process that the signal ends: 128 plus the number of the signal, as in shells.
    pub(crate) exit_code: u8,
}

const INTERRUPT: SecondSignal = SecondSignal { name: "SIGINT", exit_code: 128 + 2 };
const TERMINATE: SecondSignal = SecondSignal { name: "SIGTERM", exit_code: 128 + 15 };

/// The signals that the server handles. Unhandled, each would end the process at once.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hang_up: Signal,
    user_defined_1: Signal,
    user_defined_2: Signal,
}

impl Signals {
    /// Catches the signals from now on. Those that arrive before a call of [`Self::next`] are pending.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hang_up: signal(SignalKind::hangup())?,
            user_defined_1: signal(SignalKind::user_defined1())?,
            user_defined_2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for a signal to stop, while the server starts. Other signals stay pending.
    pub(crate) async fn wait_for_stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.quit.recv() => {}
        }
    }

    /// Waits for the next signal with an action. Logs signals that are ignored.
    pub(crate) async fn next(&mut self) -> SignalAction {
        loop {
            let ignored = tokio::select! {
                _ = self.terminate.recv() => return SignalAction::DrainAndStop,
                _ = self.quit.recv() => return SignalAction::DrainAndStop,
                _ = self.interrupt.recv() => return SignalAction::StopWithoutDelay,
                _ = self.hang_up.recv() => return SignalAction::Reload,
                _ = self.user_defined_1.recv() => "SIGUSR1",
                _ = self.user_defined_2.recv() => "SIGUSR2",
            };
            tracing::warn!(
                signal = %ignored,
                "signal ignored; SIGHUP reloads files, SIGTERM drains and stops"
            );
        }
    }

    /// Waits for the signal that ends a server that is already stopping.
    pub(crate) async fn wait_for_second(&mut self) -> SecondSignal {
        tokio::select! {
            _ = self.interrupt.recv() => INTERRUPT,
            _ = self.terminate.recv() => TERMINATE,
        }
    }
}
