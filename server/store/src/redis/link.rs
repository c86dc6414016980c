//! One connection: made anew each time, with files read anew, so that rotated passwords and certificates
//! are taken up.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use fred::{
    clients::Client,
    error::Error as FredError,
    interfaces::ClientLike,
    types::{
        ClusterHash, ConnectHandle, CustomCommand, Value,
        config::{
            Config, ConnectionConfig, PerformanceConfig, Server, ServerConfig, TcpConfig,
            TlsConnector,
        },
    },
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use thiserror::Error;

use super::{Address, said::said};

/// The most commands that wait for a connection's writer. Far more than a healthy server ever lets wait.
const WAITING_MAX: usize = 20_000;

/// How to connect to a server.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// ACL user.
    pub username: Option<String>,
    /// Its password.
    pub password: Password,
    /// TLS, if it is to be spoken.
    pub tls: Option<TlsFiles>,
    /// Number of the database.
    pub database: u8,
    /// How long connecting, and each step of introducing oneself, may take.
    pub connect_timeout: Duration,
}

/// Where the password comes from.
#[derive(Clone)]
pub enum Password {
    /// There is none.
    None,
    /// It was given.
    Given(String),
    /// The first line of a file, read at each connection.
    File(PathBuf),
}

/// Without the password.
impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Given(_) => f.write_str("Given(…)"),
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
        }
    }
}

/// Files that TLS needs (PEM), read at each connection.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Certificates of the authorities that certify the servers; without it those of the system.
    pub ca: Option<PathBuf>,
    /// This process's certificate chain and key, where servers ask for them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is no PEM file, or has nothing of the kind in it.
    #[error("no certificate or key can be read from {}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not go together, or are of a kind that is not supported.
    #[error("TLS files cannot be used")]
    Tls(#[from] rustls::Error),
    /// The system has no usable authorities.
    #[error("the system has no certificates of authorities; name a file of them")]
    NoAuthorities,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}", said(.0))]
    Redis(#[from] FredError),
    #[error("{0}")]
    Unfit(String),
    #[error("no answer in time")]
    Timeout,
}

impl LinkSettings {
    /// Reads the files, so that a mistake is known at once.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub fn check(&self) -> Result<(), FileError> {
        self.password()?;
        self.connector().map(|_| ())
    }

    fn password(&self) -> Result<Option<String>, FileError> {
        match &self.password {
            Password::None => Ok(None),
            Password::Given(password) => Ok(Some(password.clone())),
            Password::File(file) => {
                let read = fs::read_to_string(file);
                let text = read.map_err(|source| FileError::Read { file: file.clone(), source })?;
                Ok(text.lines().next().map(str::to_owned))
            }
        }
    }

    fn connector(&self) -> Result<Option<TlsConnector>, FileError> {
        let Some(files) = &self.tls else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        match &files.ca {
            Some(file) => {
                for certificate in certificates(file)? {
                    roots.add(certificate)?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(FileError::NoAuthorities);
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match &files.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|source| FileError::Pem { file: key.clone(), source })?;
                config.with_client_auth_cert(certificates(certificate)?, private)?
            }
        };
        Ok(Some(TlsConnector::from(config)))
    }
}

fn certificates(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let wrong = |source| FileError::Pem { file: file.clone(), source };
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).map_err(wrong)?.collect();
    let read = read.map_err(wrong)?;
    if read.is_empty() {
        return Err(wrong(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(read)
}

/// A connection that stands, as far as is known.
pub(super) struct Link {
    pub(super) client: Client,
    task: ConnectHandle,
}

impl Link {
    /// Connects and authenticates.
    pub(super) async fn open(
        address: &Address,
        settings: &LinkSettings,
    ) -> Result<Self, LinkError> {
        // Reading files may take a while.
        let (of_files, settings) = (settings.clone(), settings);
        let read = tokio::task::spawn_blocking(move || {
            Ok::<_, FileError>((of_files.password()?, of_files.connector()?))
        });
        let (password, connector) =
            read.await.map_err(|error| LinkError::Unfit(error.to_string()))??;
        let config = Config {
            server: ServerConfig::Centralized {
                server: Server::new(address.host.clone(), address.port),
            },
            username: settings.username.clone(),
            password,
            tls: connector.map(Into::into),
            database: (settings.database > 0).then_some(settings.database),
            ..Config::default()
        };
        let connection = ConnectionConfig {
            connection_timeout: settings.connect_timeout,
            internal_command_timeout: settings.connect_timeout,
            // Whatever was sent may have been run.
            max_command_attempts: 1,
            max_command_buffer_len: WAITING_MAX,
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        // Without a policy of reconnecting: a connection that breaks ends the client's task, and what was on
        // its way fails instead of being sent again.
        let client =
            Client::new(config, Some(PerformanceConfig::default()), Some(connection), None);
        // Each step has its own timeout, so the client gives up by itself before this.
        let limit = settings.connect_timeout * 5;
        let task = tokio::time::timeout(limit, client.init()).await;
        let task = task.map_err(|_| LinkError::Timeout)??;
        Ok(Self { client, task })
    }

    /// Asks something that is not on the way of a request.
    pub(super) async fn ask(
        &self,
        within: Duration,
        command: &'static str,
        args: Vec<Value>,
    ) -> Result<Value, LinkError> {
        let answer = tokio::time::timeout(within, self.client.custom(plain(command), args)).await;
        Ok(answer.map_err(|_| LinkError::Timeout)??)
    }

    /// Resolves when the connection has broken.
    pub(super) async fn broken(&mut self) {
        let _ended = (&mut self.task).await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A command for the server at the other end, whatever its keys.
pub(super) fn plain(command: &'static str) -> CustomCommand {
    CustomCommand::new_static(command, ClusterHash::Random, false)
}
