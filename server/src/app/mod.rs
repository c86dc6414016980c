//! `sluicegate serve`: `check` of the settings, `start`, `reload`, `stop`.

mod check;
mod error;
mod first_request;
mod health;
mod listeners;
mod reload;
mod start;
mod stop;

use std::{
    env,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use sluicegate_proto::text::printable_lines;
use sluicegate_store::{Clocks, Stack};
use tokio::{runtime::Handle, sync::watch};
use tokio_util::sync::CancellationToken;

pub(crate) use self::error::with_causes;
pub use self::error::{StartError, StartErrors};
use self::{
    check::CheckedSettings,
    health::ServerHealth,
    listeners::{AdminHandle, ServerHandle},
};
use crate::{
    settings::{ServeSettings, variable_warnings},
    signals::{SignalAction, Signals},
    telemetry::{self, Metrics, Traces},
    values::ListenAddress,
};

/// A running server.
pub struct App {
    grpc_address: ListenAddress,
    http_address: SocketAddr,
    health: ServerHealth,
    /// Stops [`ServerHealth::follow_store`].
    follow_store: CancellationToken,
    store: Arc<Stack>,
    grpc: ServerHandle,
    http: ServerHandle,
    admin: Option<AdminHandle>,
    usage: Option<ServerHandle>,
    traces: Option<Arc<Traces>>,
    reload_requests: watch::Sender<()>,
    /// Stops the background tasks: reloads, sweeps, measurements.
    background: CancellationToken,
    metrics: Arc<Metrics>,
    drain_delay: Duration,
    drain_timeout: Duration,
}

impl App {
    /// The address of the gRPC listener.
    #[must_use]
    pub const fn grpc_address(&self) -> &ListenAddress {
        &self.grpc_address
    }

    /// The address of the HTTP listener.
    #[must_use]
    pub const fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// The address of the admin listener; `None` if it is off.
    #[must_use]
    pub fn admin_address(&self) -> Option<&ListenAddress> {
        self.admin.as_ref().map(|admin| &admin.address)
    }
}

/// Runs `sluicegate serve` until a signal stops the process.
#[must_use]
pub fn serve(settings: &ServeSettings) -> ExitCode {
    run(settings).unwrap_or_else(|errors| {
        errors.iter().for_each(|error| print_error(error));
        ExitCode::FAILURE
    })
}

fn run(settings: &ServeSettings) -> Result<ExitCode, StartErrors> {
    // Dropped last, so that all log lines are written.
    let _log = match telemetry::start_log(&settings.log) {
        Ok(log) => log,
        // The server does not start without a log. All other mistakes are reported together with this one.
        Err(error) => {
            let mut errors = StartErrors::from(error);
            if let Err(others) = CheckedSettings::new(settings) {
                errors.extend(others);
            }
            return Err(errors);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(serve_until_stopped(settings));
    // Does not wait for blocking threads, for example of an aborted explanation.
    runtime.shutdown_background();
    ended
}

async fn serve_until_stopped(settings: &ServeSettings) -> Result<ExitCode, StartErrors> {
    for warning in variable_warnings(env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
    {
        tracing::warn!("{warning}");
    }
    if let Some(file) = &settings.config {
        tracing::info!(file = %file.display(), "settings read from the file of --config");
    }
    // Before `App::start` logs, because programs that wait for its first line may send a signal at once.
    let mut signals = Signals::catch()?;
    let settings = settings.clone();
    // On a separate thread, so that signals are handled while large limits files are read.
    let runtime = Handle::current();
    let start = move || runtime.block_on(App::start(&settings, Clocks::system()));
    let app = tokio::select! {
        app = tokio::task::spawn_blocking(start) => app.map_err(io::Error::from)??,
        () = signals.wait_for_stop() => {
            tracing::info!("stopped before serving");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let without_delay = loop {
        match signals.next().await {
            SignalAction::Reload => app.reload(),
            SignalAction::DrainAndStop => break false,
            SignalAction::StopWithoutDelay => break true,
        }
    };
    let stop = async move {
        if without_delay { app.stop_without_delay().await } else { app.drain_and_stop().await }
    };
    tokio::select! {
        () = stop => Ok(ExitCode::SUCCESS),
        signal = signals.wait_for_second() => {
            tracing::warn!(signal = signal.name, "second signal: exiting without waiting for calls in progress");
            Ok(ExitCode::from(signal.exit_code))
        }
    }
}

/// Prints an error with its causes to the standard error stream: one line, or for limits files a line for each mistake.
pub(crate) fn print_error(error: &(dyn std::error::Error + 'static)) {
    let _closed = writeln!(io::stderr(), "sluicegate: {}", printable_lines(&with_causes(error)));
}
