//! `sluicectl health`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tonic::Request;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{Failure, OutputFormat, ServerSettings, output};
use sluicegate_client::CheckError;

/// Settings of `sluicectl health`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct HealthSettings {
    /// Name of a gRPC service. Default: the server as a whole.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub service: String,

    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The server.
    #[command(flatten)]
    pub server: ServerSettings,
}

const AFTER_HELP: &str = "\
Exit codes:
  0  SERVING
  1  NOT_SERVING, for example while the server drains
  2  invalid command line, or an unusable file in it
  3  the server is unreachable, or does not know the service";

/// Prints the health status. The exit code is 0 if it is SERVING.
pub(super) async fn run(settings: &HealthSettings) -> Result<ExitCode, Failure> {
    let ServerSettings { server, connection } = &settings.server;
    let mut client = HealthClient::new(connection.builder(server).channel_lazy()?);
    let mut request = Request::new(HealthCheckRequest { service: settings.service.clone() });
    request.set_timeout(connection.timeout);
    let failed = |source| Failure::Call { endpoint: server.clone(), source };
    // tonic's own timer does not include the time to connect.
    let answer = tokio::time::timeout(connection.timeout, client.check(request)).await;
    let answer = answer
        .map_err(|_| failed(CheckError::DeadlineExceeded { deadline: connection.timeout }))?
        .map_err(|status| {
            failed(CheckError::new(&status, connection.timeout, "the gRPC listener"))
        })?;
    let status = answer.into_inner().status();
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text => status.as_str_name().to_lowercase().replace('_', " "),
            OutputFormat::Json => json!({ "status": status.as_str_name() }).to_string(),
        },
    );
    Ok(if status == ServingStatus::Serving { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
