//! Arguments for the gRPC listener and the connection to a server.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use sluicegate_client::{Builder, Client, ConnectError, Endpoint};

/// The gRPC listener and the connection.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerSettings {
    /// gRPC listener of the server: http://HOST:PORT, https://HOST:PORT or unix:PATH.
    #[arg(
        long,
        env = "SLUICECTL_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:8081"
    )]
    pub server: Endpoint,

    /// The connection.
    #[command(flatten)]
    pub connection: ConnectionSettings,
}

/// Timeout and TLS of a connection.
#[derive(Args, Clone, Debug)]
pub struct ConnectionSettings {
    /// Time for the response, including the connection.
    #[arg(long, env = "SLUICECTL_TIMEOUT", value_name = "DURATION", default_value = "5s")]
    #[arg(value_parser = humantime::parse_duration)]
    pub timeout: Duration,

    /// CA certificates for the server (PEM), in place of the system's.
    #[arg(long, env = "SLUICECTL_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Client certificate chain (PEM), for mTLS.
    #[arg(long, env = "SLUICECTL_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM).
    #[arg(long, env = "SLUICECTL_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Name in the server's certificate, if it is not the host of its address.
    #[arg(long, env = "SLUICECTL_TLS_SERVER_NAME", value_name = "NAME")]
    pub tls_server_name: Option<String>,
}

impl ServerSettings {
    /// A lazy client of the server, so that one deadline covers connecting and the call.
    pub(super) fn client(&self) -> Result<Client, ConnectError> {
        self.connection.builder(&self.server).connect_lazy()
    }
}

impl ConnectionSettings {
    /// The settings of a client for this endpoint.
    pub(super) fn builder(&self, endpoint: &Endpoint) -> Builder {
        let mut builder =
            Client::builder(endpoint.clone()).connect_timeout(self.timeout).deadline(self.timeout);
        if let Some(ca) = &self.tls_ca {
            builder = builder.tls_ca_file(ca);
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            builder = builder.tls_client_files(cert, key);
        }
        if let Some(name) = &self.tls_server_name {
            builder = builder.tls_server_name(name);
        }
        builder
    }
}
