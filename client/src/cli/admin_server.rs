//! Which admin listener to ask, and how.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, server::ConnectionSettings};
use crate::{AdminClient, Endpoint};

/// Which admin listener to ask, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct AdminServerSettings {
    /// The server's admin listener: http://HOST:PORT, https://HOST:PORT or unix:PATH.
    #[arg(
        long,
        env = "SLUICEGATE_ADMIN_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:8082"
    )]
    pub admin_server: Endpoint,

    /// File whose first line is the token that the listener asks for. It is not sent unencrypted to another machine:
    /// that takes https://.
    #[arg(long, env = "SLUICEGATE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// How to connect to it.
    #[command(flatten)]
    pub connection: ConnectionSettings,
}

impl AdminServerSettings {
    /// A client of that listener. It connects when it is first used, so that one deadline covers all.
    pub(super) fn client(&self) -> Result<AdminClient, Failure> {
        if self.token_file.is_some() && !self.admin_server.is_private() {
            return Err(Failure::TokenExposed(self.admin_server.clone()));
        }
        let client = self.connection.builder(&self.admin_server).connect_admin_lazy()?;
        Ok(match &self.token_file {
            Some(file) => client.with_token_file(file)?,
            None => client,
        })
    }
}
