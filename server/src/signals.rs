//! Signals to the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To drain and end: SIGTERM, SIGQUIT.
    Drain,
    /// To end without the drain delay: SIGINT from a keyboard.
    Stop,
    /// To read all files again: SIGHUP.
    Reload,
}

/// A signal that ends a server that is stopping already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndSignal {
    /// The name of the signal.
    pub(crate) name: &'static str,
    /// The exit code of a process that the signal ends: 128 and the number of the signal, as in shells.
    pub(crate) exit_code: u8,
}

const INTERRUPT: EndSignal = EndSignal { name: "SIGINT", exit_code: 128 + 2 };
const TERMINATE: EndSignal = EndSignal { name: "SIGTERM", exit_code: 128 + 15 };

/// Signals that would otherwise end the process at once, without a drain.
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
    /// Catches the signals from now on, as long as the process lives. Those that come before [`Self::next`] is called wait.
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

    /// Waits for a signal to stop, while the server starts. Other signals wait until [`Self::next`] is called.
    pub(crate) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.quit.recv() => {}
        }
    }

    /// Waits for the next signal that asks for something. Logs the others.
    pub(crate) async fn next(&mut self) -> Request {
        loop {
            let ignored = tokio::select! {
                _ = self.terminate.recv() => return Request::Drain,
                _ = self.quit.recv() => return Request::Drain,
                _ = self.interrupt.recv() => return Request::Stop,
                _ = self.hang_up.recv() => return Request::Reload,
                _ = self.user_defined_1.recv() => "SIGUSR1",
                _ = self.user_defined_2.recv() => "SIGUSR2",
            };
            tracing::warn!(
                signal = %ignored,
                "signal ignored; SIGHUP reloads files, SIGTERM drains and stops"
            );
        }
    }

    /// Waits for the signal that ends a server that is stopping already.
    pub(crate) async fn end(&mut self) -> EndSignal {
        tokio::select! {
            _ = self.interrupt.recv() => INTERRUPT,
            _ = self.terminate.recv() => TERMINATE,
        }
    }
}
