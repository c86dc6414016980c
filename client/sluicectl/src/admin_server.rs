//! Arguments for the admin listener, or several, and the connection to it.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{Failure, server::ConnectionSettings};
use sluicegate_client::{AdminClient, Endpoint};

/// The admin listener, the token and the connection.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct AdminServerSettings {
    /// Admin listener of the server: http://HOST:PORT, https://HOST:PORT or unix:PATH.
    #[arg(
        long,
        env = "SLUICECTL_ADMIN_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:8082"
    )]
    pub admin_server: Endpoint,

    /// File whose first line is the admin token. The token is not sent unencrypted over a network: use https://.
    #[arg(long, env = "SLUICECTL_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// The connection.
    #[command(flatten)]
    pub connection: ConnectionSettings,
}

impl AdminServerSettings {
    /// A lazy client of the listener, so that one deadline covers connecting and the call.
    pub(super) fn client(&self) -> Result<AdminClient, Failure> {
        client(&self.admin_server, self.token_file.as_deref(), &self.connection)
    }
}

/// Several admin listeners, the token and the connections.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct AdminServerListSettings {
    /// Admin listeners of the servers: http://HOST:PORT, https://HOST:PORT or unix:PATH. Results of several servers
    /// are added up.
    #[arg(
        long,
        env = "SLUICECTL_ADMIN_SERVER",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:8082"
    )]
    pub admin_server: Vec<Endpoint>,

    /// File whose first line is the admin token. The token is not sent unencrypted over a network: use https://.
    #[arg(long, env = "SLUICECTL_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// The connections.
    #[command(flatten)]
    pub connection: ConnectionSettings,
}

impl AdminServerListSettings {
    /// A lazy client of each listener.
    pub(super) fn clients(&self) -> Result<Vec<AdminClient>, Failure> {
        let client = |server| client(server, self.token_file.as_deref(), &self.connection);
        self.admin_server.iter().map(client).collect()
    }
}

fn client(
    server: &Endpoint,
    token_file: Option<&Path>,
    connection: &ConnectionSettings,
) -> Result<AdminClient, Failure> {
    if token_file.is_some() && !server.is_private() {
        return Err(Failure::TokenExposed(server.clone()));
    }
    let client = connection.builder(server).connect_admin_lazy()?;
    Ok(match token_file {
        Some(file) => client.with_token_file(file)?,
        None => client,
    })
}
