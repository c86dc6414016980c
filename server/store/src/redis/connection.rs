//! Connections to a server, and how to open them. Password and TLS files are read for each connection, so that rotated
//! ones apply.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject as _},
    },
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::TlsConnector;

use super::{
    Address,
    command::encode_command,
    pipeline::{self, CommandSender, ConnectionEnd},
    reply::{Reply, ReplyBounds},
};

/// The bytes of a connection, in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Opens connections to servers, in place of TCP. For tests.
pub trait Connect: std::fmt::Debug + Send + Sync {
    /// Connects to the server at an address.
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>>;
}

/// How to connect to a server.
#[derive(Clone, Debug)]
pub struct RedisConnectionSettings {
    /// ACL user.
    pub username: Option<String>,
    /// Its password.
    pub password: Password,
    /// TLS files; `None` for connections without TLS.
    pub tls: Option<TlsFiles>,
    /// Number of the database.
    pub database: u8,
    /// Timeout of connecting, of the TLS handshake, and of authentication, each.
    pub connect_timeout: Duration,
    /// Opens the connections, in place of TCP and TLS.
    pub connector: Option<Arc<dyn Connect>>,
}

/// The password for a server, or its source.
#[derive(Clone)]
pub enum Password {
    /// No password.
    None,
    /// The password itself.
    Given(String),
    /// The first line of a file, read for each connection.
    File(PathBuf),
}

/// Does not show the password.
impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Given(_) => f.write_str("Given(…)"),
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
        }
    }
}

/// Files for TLS (PEM), read for each connection.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// CA certificates for the servers; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// Client certificate chain and private key, for mTLS.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why a file cannot be used. The text contains its reason, so there is no [`source`](std::error::Error::source).
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        reason: io::Error,
    },
    /// The file is not PEM, or has no certificate or key.
    #[error("no certificate or key can be read from {}: {reason}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: pem::Error,
    },
    /// A CA certificate cannot be used.
    #[error("a certificate in {} cannot be used: {reason}", file.display())]
    Authority {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: rustls::Error,
    },
    /// Certificate and private key do not match, or are not supported.
    #[error(
        "the certificate in {} and the key in {} cannot be used: {reason}",
        certificate.display(),
        key.display()
    )]
    Identity {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The reason.
        reason: rustls::Error,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
    /// The system has no usable CA certificates.
    #[error("the system has no CA certificates; name a file that has some")]
    NoAuthorities,
}

/// Why a connection cannot be opened, or a query has no reply.
#[derive(Debug, Error)]
pub(super) enum ConnectError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server replied with this error.
    #[error("{0}")]
    ErrorReply(String),
    /// The server or the connection cannot be used, for this reason.
    #[error("{0}")]
    Unusable(String),
    #[error("no answer in time")]
    Timeout,
}

impl RedisConnectionSettings {
    /// Reads the files, to report mistakes at start-up.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn check(&self) -> Result<(), FileError> {
        self.password()?;
        self.tls().map(|_| ())
    }

    /// Reads the password and the TLS files for a connection.
    async fn secrets(&self) -> Result<(Option<String>, Option<Arc<ClientConfig>>), ConnectError> {
        if self.tls.is_none() && !matches!(self.password, Password::File(_)) {
            return Ok((self.password()?, None));
        }
        // On a thread for blocking calls, because reading files may take long.
        let settings = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            Ok::<_, FileError>((settings.password()?, settings.tls()?))
        });
        Ok(read.await.map_err(|error| ConnectError::Unusable(error.to_string()))??)
    }

    fn password(&self) -> Result<Option<String>, FileError> {
        match &self.password {
            Password::None => Ok(None),
            Password::Given(password) => Ok(Some(password.clone())),
            Password::File(path) => {
                let unreadable = |reason| FileError::Read { file: path.clone(), reason };
                let line = sluicegate_files::first_line(path).map_err(unreadable)?;
                let password = String::from_utf8(line).map_err(|error| {
                    unreadable(io::Error::new(io::ErrorKind::InvalidData, error))
                })?;
                Ok(Some(password))
            }
        }
    }

    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, FileError> {
        let Some(files) = &self.tls else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        match &files.ca {
            Some(file) => {
                for certificate in certificates(file)? {
                    let added = roots.add(certificate);
                    added.map_err(|reason| FileError::Authority { file: file.clone(), reason })?;
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
            .with_safe_default_protocol_versions()
            .map_err(FileError::Setup)?
            .with_root_certificates(roots);
        let config = match &files.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let private =
                    PrivateKeyDer::from_pem_slice(&read(key, sluicegate_files::PEM_BYTES_MAX)?)
                        .map_err(|reason| FileError::Pem { file: key.clone(), reason })?;
                let identity = config.with_client_auth_cert(certificates(certificate)?, private);
                identity.map_err(|reason| {
                    let (certificate, key) = (certificate.clone(), key.clone());
                    FileError::Identity { certificate, key, reason }
                })?
            }
        };
        Ok(Some(Arc::new(config)))
    }
}

fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, FileError> {
    let read = sluicegate_files::read(path, bytes_max);
    read.map_err(|reason| FileError::Read { file: path.to_owned(), reason })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let wrong = |reason| FileError::Pem { file: path.to_owned(), reason };
    let bytes = read(path, sluicegate_files::PEM_BYTES_MAX)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(wrong)?;
    if found.is_empty() {
        return Err(wrong(pem::Error::NoItemsFound));
    }
    Ok(found)
}

/// A connection that was opened. It may have ended since.
pub(super) struct Connection {
    pub(super) commands: CommandSender,
    /// The task that writes and reads. Aborted when the connection is dropped.
    task: JoinSet<()>,
    /// Why the connection has ended.
    end: Arc<OnceLock<ConnectionEnd>>,
}

impl Connection {
    /// Connects and authenticates.
    pub(super) async fn open(
        address: &Address,
        settings: &RedisConnectionSettings,
    ) -> Result<Self, ConnectError> {
        let (password, tls) = settings.secrets().await?;
        let limit = settings.connect_timeout;
        if let Some(connector) = &settings.connector {
            let connection = Self::over(with_timeout(limit, connector.connect(address)).await??);
            with_timeout(limit, connection.authenticate(settings, password)).await??;
            return Ok(connection);
        }
        let socket =
            with_timeout(limit, TcpStream::connect((&*address.host, address.port))).await??;
        socket.set_nodelay(true)?;
        let connection = match tls {
            None => Self::over(socket),
            Some(config) => {
                let name = ServerName::try_from(address.host.clone()).map_err(|_| {
                    ConnectError::Unusable(format!("no certificate can name {:?}", address.host))
                })?;
                let connecting = TlsConnector::from(config).connect(name, socket);
                Self::over(with_timeout(limit, connecting).await??)
            }
        };
        with_timeout(limit, connection.authenticate(settings, password)).await??;
        Ok(connection)
    }

    /// A connection over a socket, without authentication.
    pub(super) fn over(socket: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (commands, queue) = pipeline::command_queue();
        let end = Arc::new(OnceLock::new());
        let ended = Arc::clone(&end);
        let mut task = JoinSet::new();
        task.spawn(async move { pipeline::run(socket, queue, &ended).await });
        Self { commands, task, end }
    }

    /// Authenticates and selects the database.
    async fn authenticate(
        &self,
        settings: &RedisConnectionSettings,
        password: Option<String>,
    ) -> Result<(), ConnectError> {
        let secret = password.as_deref().unwrap_or_default();
        let authenticated = match (&settings.username, &password) {
            (Some(user), _) => self.run(&["AUTH", user, secret]).await,
            (None, Some(_)) => self.run(&["AUTH", secret]).await,
            // Fails if the server requires a password.
            (None, None) => self.run(&["PING"]).await,
        };
        authenticated.map_err(|error| match error {
            // A server repeats the arguments of a command that it does not know.
            ConnectError::ErrorReply(text) if !secret.is_empty() && text.contains(secret) => {
                ConnectError::ErrorReply("AUTH was rejected".to_owned())
            }
            error => error,
        })?;
        if settings.database > 0 {
            self.run(&["SELECT", &settings.database.to_string()]).await?;
        }
        Ok(())
    }

    /// Runs a command that no request waits for.
    pub(super) async fn query(
        &self,
        timeout: Duration,
        arguments: &[&str],
    ) -> Result<Reply, ConnectError> {
        with_timeout(timeout, self.run(arguments)).await?
    }

    async fn run(&self, arguments: &[&str]) -> Result<Reply, ConnectError> {
        let command = encode_command(arguments.iter().map(|it| it.as_bytes()));
        match self.commands.send(command, ReplyBounds::LIST).reply().await {
            Ok(Reply::Error(text)) => Err(ConnectError::ErrorReply(text)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.end.get().map_or_else(
                || ConnectError::Unusable(error.to_string()),
                |end| ConnectError::Unusable(end.to_string()),
            )),
        }
    }

    /// Waits until the connection has ended. Returns the reason.
    pub(super) async fn ended(&self) -> Option<&ConnectionEnd> {
        self.commands.closed().await;
        self.end.get()
    }

    /// Waits for the replies to the commands in flight, at most for `limit`. No more commands can be queued.
    pub(super) async fn finish(self, limit: Duration) {
        let Self { commands, mut task, .. } = self;
        drop(commands);
        let _ended = tokio::time::timeout(limit, task.join_next()).await;
    }
}

async fn with_timeout<T>(
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, ConnectError> {
    tokio::time::timeout(limit, future).await.map_err(|_| ConnectError::Timeout)
}
