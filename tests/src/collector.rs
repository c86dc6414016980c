//! An OpenTelemetry collector that prints everything that it receives.

use tokio::process::Command;

use crate::{Process, free_port, tools};

/// A running OpenTelemetry collector.
#[derive(Debug)]
pub struct Collector {
    /// The process. Its output has one line for each received field.
    pub process: Process,
    /// The address that receives OTLP over gRPC, as `http://HOST:PORT`.
    pub endpoint: String,
}

impl Collector {
    /// Starts a collector on free ports and waits until it is ready.
    pub async fn start() -> Self {
        let (grpc, http) = (free_port(), free_port());
        let mut command = Command::new(tools::rotel());
        command.arg("start").args(["--exporter", "blackhole"]);
        command.args(["--otlp-grpc-endpoint", &format!("127.0.0.1:{grpc}")]);
        command.args(["--otlp-http-endpoint", &format!("127.0.0.1:{http}")]);
        command.args(["--debug-log", "traces", "--debug-log", "metrics"]);
        command.args(["--debug-log-verbosity", "detailed"]);
        let process = Process::start(command);
        let endpoint = format!("http://127.0.0.1:{grpc}");
        let listening = || async { tokio::net::TcpStream::connect(("127.0.0.1", grpc)).await.ok() };
        crate::until("the collector to listen", listening).await;
        Self { process, endpoint }
    }
}
