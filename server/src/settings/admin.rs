//! Settings of the admin listener.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::Args;

use super::AdminTlsSettings;
use crate::values::{AddressError, ListenAddress};

/// Settings of the admin listener, which serves `sluicectl`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Admin")]
pub struct AdminSettings {
    /// Address of the admin listener (gRPC): HOST:PORT, unix:PATH for a socket, or off. Port 0 selects a free one. An
    /// address other than loopback needs a token or mTLS.
    #[arg(
        long,
        env = "SLUICEGATE_ADMIN_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8082"
    )]
    pub admin_listen: AdminListen,

    /// File whose first line is the token of callers (authorization: Bearer TOKEN), 16 bytes or more. A replaced file
    /// is reloaded without a restart.
    #[arg(long, env = "SLUICEGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// TLS of the admin listener.
    #[command(flatten)]
    pub tls: AdminTlsSettings,
}

/// The address of the admin listener, or `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminListen {
    /// There is no admin listener.
    Off,
    /// The listener has this address.
    At(ListenAddress),
}

const OFF: &str = "off";

impl FromStr for AdminListen {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == OFF { Ok(Self::Off) } else { text.parse().map(Self::At) }
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str(OFF),
            Self::At(address) => address.fmt(f),
        }
    }
}
