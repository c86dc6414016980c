//! The admin listener.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::Args;

use crate::listen::{AddressError, ListenAddress};

/// The admin listener: what operators ask a running server (sluicectl explain).
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Admin")]
pub struct AdminSettings {
    /// Address of the admin listener, gRPC too: HOST:PORT, unix:PATH for a socket, or off. Port 0 takes a free
    /// one. Beyond the loopback it needs a token or mTLS.
    #[arg(
        long,
        env = "SLUICEGATE_ADMIN_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8082"
    )]
    pub admin_listen: AdminListen,

    /// File whose first line is the token that callers must show (authorization: Bearer TOKEN), 16 bytes or more. A
    /// replaced file is taken up without a restart.
    #[arg(long, env = "SLUICEGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// Certificate chain of the admin listener (PEM). Turns on TLS; replaced files are taken up without a restart.
    #[arg(
        long,
        env = "SLUICEGATE_ADMIN_TLS_CERT",
        value_name = "FILE",
        requires = "admin_tls_key"
    )]
    pub admin_tls_cert: Option<PathBuf>,

    /// Private key of that certificate (PEM).
    #[arg(
        long,
        env = "SLUICEGATE_ADMIN_TLS_KEY",
        value_name = "FILE",
        requires = "admin_tls_cert"
    )]
    pub admin_tls_key: Option<PathBuf>,

    /// Certificates of the authorities that admin callers must be certified by (PEM). Turns on mTLS.
    #[arg(
        long,
        env = "SLUICEGATE_ADMIN_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "admin_tls_cert"
    )]
    pub admin_tls_client_ca: Option<PathBuf>,

    /// Names of which an admin caller's certificate must carry one (DNS or URI subject alternative name).
    #[arg(
        long,
        env = "SLUICEGATE_ADMIN_TLS_CLIENT_NAMES",
        value_name = "NAME",
        requires = "admin_tls_client_ca"
    )]
    #[arg(value_delimiter = ',')]
    pub admin_tls_client_names: Vec<String>,
}

/// Where the admin service is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminListen {
    /// Nowhere.
    Off,
    /// There.
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
