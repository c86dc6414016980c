//! Opening a connection. Files are read each time, so that rotated passwords and certificates
//! apply.

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
    command::command,
    pipeline::{self, Commands, End},
    reply::{Reply, ReplyBounds},
};

/// The bytes of a connection, in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Opens connections to servers in another way than by TCP.
pub trait Connect: std::fmt::Debug + Send + Sync {
    /// Connects to the server at an address.
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>>;
}

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
    /// Opens the connections; without it TCP does, and TLS over it where that is to be spoken.
    pub connector: Option<Arc<dyn Connect>>,
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

/// Why a file cannot be used. The text is whole: there is no source to be shown after it.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}: {reason}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// It is no PEM file, or has nothing of the kind in it.
    #[error("no certificate or key can be read from {}: {reason}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: pem::Error,
    },
    /// The certificate of an authority cannot be used.
    #[error("a certificate in {} cannot be used: {reason}", file.display())]
    Authority {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: rustls::Error,
    },
    /// Certificate and key do not go together, or are of a kind that is not supported.
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
        /// What is wrong with them.
        reason: rustls::Error,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
    /// The system has no usable authorities.
    #[error("the system has no certificates of authorities; name a file of them")]
    NoAuthorities,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server replied with an error.
    #[error("{0}")]
    Refused(String),
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
        self.tls().map(|_| ())
    }

    /// Reads password and files for a connection.
    async fn secrets(&self) -> Result<(Option<String>, Option<Arc<ClientConfig>>), LinkError> {
        if self.tls.is_none() && !matches!(self.password, Password::File(_)) {
            return Ok((self.password()?, None));
        }
        // Reading files may take a while.
        let of_files = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            Ok::<_, FileError>((of_files.password()?, of_files.tls()?))
        });
        Ok(read.await.map_err(|error| LinkError::Unfit(error.to_string()))??)
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

/// An open connection, as far as is known.
pub(super) struct Link {
    pub(super) commands: Commands,
    /// The task that writes and reads, aborted when this is dropped.
    task: JoinSet<()>,
    /// Why it has ended.
    end: Arc<OnceLock<End>>,
}

impl Link {
    /// Connects and authenticates.
    pub(super) async fn open(
        address: &Address,
        settings: &LinkSettings,
    ) -> Result<Self, LinkError> {
        let (password, tls) = settings.secrets().await?;
        let limit = settings.connect_timeout;
        if let Some(connector) = &settings.connector {
            let link = Self::over(timely(limit, connector.connect(address)).await??);
            timely(limit, link.introduce(settings, password)).await??;
            return Ok(link);
        }
        let socket = timely(limit, TcpStream::connect((&*address.host, address.port))).await??;
        socket.set_nodelay(true)?;
        let link = match tls {
            None => Self::over(socket),
            Some(config) => {
                let name = ServerName::try_from(address.host.clone()).map_err(|_| {
                    LinkError::Unfit(format!("no certificate can name {:?}", address.host))
                })?;
                let connecting = TlsConnector::from(config).connect(name, socket);
                Self::over(timely(limit, connecting).await??)
            }
        };
        timely(limit, link.introduce(settings, password)).await??;
        Ok(link)
    }

    /// Over a socket that is connected.
    pub(super) fn over(socket: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (commands, queue) = pipeline::queue();
        let end = Arc::new(OnceLock::new());
        let ended = Arc::clone(&end);
        let mut task = JoinSet::new();
        task.spawn(async move { pipeline::run(socket, queue, &ended).await });
        Self { commands, task, end }
    }

    async fn introduce(
        &self,
        settings: &LinkSettings,
        password: Option<String>,
    ) -> Result<(), LinkError> {
        let secret = password.as_deref().unwrap_or_default();
        let introduced = match (&settings.username, &password) {
            (Some(user), _) => self.run(&["AUTH", user, secret]).await,
            (None, Some(_)) => self.run(&["AUTH", secret]).await,
            // Says whether a password is needed.
            (None, None) => self.run(&["PING"]).await,
        };
        introduced.map_err(|error| match error {
            // Servers repeat the arguments of a command that they do not know.
            LinkError::Refused(text) if !secret.is_empty() && text.contains(secret) => {
                LinkError::Refused("AUTH was refused".to_owned())
            }
            error => error,
        })?;
        if settings.database > 0 {
            self.run(&["SELECT", &settings.database.to_string()]).await?;
        }
        Ok(())
    }

    /// Asks something that is not on the way of a request.
    pub(super) async fn ask(
        &self,
        within: Duration,
        arguments: &[&str],
    ) -> Result<Reply, LinkError> {
        timely(within, self.run(arguments)).await?
    }

    async fn run(&self, arguments: &[&str]) -> Result<Reply, LinkError> {
        let command = command(arguments.iter().map(|it| it.as_bytes()));
        match self.commands.send(command, ReplyBounds::LIST).reply().await {
            Ok(Reply::Error(text)) => Err(LinkError::Refused(text)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.end.get().map_or_else(
                || LinkError::Unfit(error.to_string()),
                |end| LinkError::Unfit(end.to_string()),
            )),
        }
    }

    /// Resolves when the connection has ended. Says why.
    pub(super) async fn broken(&self) -> Option<&End> {
        self.commands.closed().await;
        self.end.get()
    }

    /// Reads the replies to the commands that were sent, for a limited time. No more commands can be queued.
    pub(super) async fn finish(self, limit: Duration) {
        let Self { commands, mut task, .. } = self;
        drop(commands);
        let _ended = tokio::time::timeout(limit, task.join_next()).await;
    }
}

async fn timely<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, LinkError> {
    tokio::time::timeout(limit, future).await.map_err(|_| LinkError::Timeout)
}
