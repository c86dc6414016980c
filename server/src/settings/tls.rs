//! TLS settings of the gRPC, the admin and the usage listener, which have the same flags.

use std::path::PathBuf;

use clap::Args;

/// TLS files of a listener, and which clients may connect.
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    /// Certificate chain of the server, its own certificate first (PEM).
    pub(crate) certificate: PathBuf,
    /// Private key of the first certificate (PEM).
    pub(crate) key: PathBuf,
    /// CA certificates for clients (PEM). Without it, clients need no certificate.
    pub(crate) client_ca: Option<PathBuf>,
    /// Accepted DNS names and URIs of clients, without wildcards. Empty: every certificate of the CA is accepted.
    pub(crate) client_names: Vec<String>,
}

/// Defines the flags for TLS of one listener: `--NAME-tls-cert`, `-key`, `-client-ca` and `-client-names`.
macro_rules! listener_tls {
    ($settings:ident, $flag:literal, $variable:literal, $heading:literal, $listener:literal) => {
        #[doc = concat!("TLS of the ", $listener, " listener.")]
        #[derive(Args, Clone, Debug)]
        #[command(next_help_heading = $heading)]
        pub struct $settings {
            #[doc = "File with the certificate chain."]
            #[arg(
                id = concat!($flag, "_tls_cert"),
                long = concat!($flag, "-tls-cert"),
                env = concat!("SLUICEGATE_", $variable, "_TLS_CERT"),
                value_name = "FILE",
                requires = concat!($flag, "_tls_key"),
                help = concat!(
                    "Certificate chain of the ", $listener,
                    " listener (PEM). Enables TLS. Replaced files are reloaded without a restart"
                )
            )]
            pub certificate: Option<PathBuf>,

            #[doc = "File with the private key."]
            #[arg(
                id = concat!($flag, "_tls_key"),
                long = concat!($flag, "-tls-key"),
                env = concat!("SLUICEGATE_", $variable, "_TLS_KEY"),
                value_name = "FILE",
                requires = concat!($flag, "_tls_cert"),
                help = concat!("Private key of the ", $listener, " listener's certificate (PEM)")
            )]
            pub key: Option<PathBuf>,

            #[doc = "File with the CA certificates for clients."]
            #[arg(
                id = concat!($flag, "_tls_client_ca"),
                long = concat!($flag, "-tls-client-ca"),
                env = concat!("SLUICEGATE_", $variable, "_TLS_CLIENT_CA"),
                value_name = "FILE",
                requires = concat!($flag, "_tls_cert"),
                help = concat!(
                    "CA certificates for clients of the ", $listener, " listener (PEM). Enables mTLS"
                )
            )]
            pub client_ca: Option<PathBuf>,

            #[doc = "Accepted names of clients."]
            #[arg(
                id = concat!($flag, "_tls_client_names"),
                long = concat!($flag, "-tls-client-names"),
                env = concat!("SLUICEGATE_", $variable, "_TLS_CLIENT_NAMES"),
                value_name = "NAME",
                requires = concat!($flag, "_tls_client_ca"),
                value_delimiter = ',',
                help = concat!(
                    "Accepted names of clients of the ", $listener,
                    " listener: a client's certificate must have one of them (DNS or URI subject alternative name)"
                )
            )]
            pub client_names: Vec<String>,
        }

        impl $settings {
            /// The TLS files; `None` if the listener has no TLS.
            pub(crate) fn tls_settings(&self) -> Option<TlsSettings> {
                Some(TlsSettings {
                    certificate: self.certificate.clone()?,
                    key: self.key.clone()?,
                    client_ca: self.client_ca.clone(),
                    client_names: self.client_names.clone(),
                })
            }
        }
    };
}

listener_tls!(GrpcTlsSettings, "grpc", "GRPC", "gRPC", "gRPC");
listener_tls!(AdminTlsSettings, "admin", "ADMIN", "Admin", "admin");
listener_tls!(UsageTlsSettings, "usage", "USAGE", "Usage", "usage");
