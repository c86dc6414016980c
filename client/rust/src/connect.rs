//! Settings of clients, and connecting.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tonic::transport::{self, Certificate, ClientTlsConfig, Identity};

use crate::{AdminClient, Client, ConnectError, Endpoint, error::describe_error};

/// Maximum deadline of a call.
pub(crate) const DEADLINE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of a [`Client`] or an [`AdminClient`].
///
/// ```no_run
/// use std::time::Duration;
///
/// use sluicegate_client::Client;
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Client::builder("https://limiter.internal:8081".parse()?)
///     .tls_ca_file("/etc/limiter/ca.pem")
///     .tls_client_files("/etc/limiter/client.pem", "/etc/limiter/client.key")
///     .deadline(Duration::from_millis(20))
///     .connect_lazy()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    endpoint: Endpoint,
    connect_timeout: Duration,
    deadline: Duration,
    keepalive_interval: Duration,
    keepalive_timeout: Duration,
    tls: Tls,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tls {
    ca: Option<PathBuf>,
    client: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

impl Builder {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            connect_timeout: Duration::from_secs(1),
            deadline: Duration::from_millis(100),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            tls: Tls::default(),
        }
    }

    /// Sets the timeout for opening a connection. Default: 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the deadline of a call. Default: 100 ms, at most a day.
    ///
    /// Envoy's default is 20 ms. This default is longer because it includes opening a connection if there
    /// is none. The service gets the deadline in `grpc-timeout`.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(DEADLINE_MAX);
        self
    }

    /// Sets how long a connection with calls in flight may be silent before a ping. Default: 10 s;
    /// [`Duration::ZERO`] turns pings off.
    ///
    /// Pings detect a peer that disappeared without closing the connection.
    pub fn keepalive_interval(mut self, interval: Duration) -> Self {
        self.keepalive_interval = interval;
        self
    }

    /// Sets the timeout of a ping, after which the connection is closed. Default: 5 s.
    pub fn keepalive_timeout(mut self, timeout: Duration) -> Self {
        self.keepalive_timeout = timeout;
        self
    }

    /// Sets the CA certificates for the service (PEM), in place of the system's.
    ///
    /// All TLS files are read once, when the client connects or is built with a lazy connection.
    pub fn tls_ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.ca = Some(path.into());
        self
    }

    /// Sets the client's certificate chain and private key (PEM), for mTLS.
    pub fn tls_client_files(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.client = Some((cert.into(), key.into()));
        self
    }

    /// Sets the name in the service's certificate, if it differs from the endpoint's host.
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Self {
        self.tls.server_name = Some(name.into());
        self
    }

    /// Connects now.
    ///
    /// # Errors
    /// The settings are not valid, or the service cannot be reached.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let transport = self.transport()?;
        match transport.connect().await {
            Ok(channel) => Ok(Client::new(channel, self.endpoint, self.deadline)),
            Err(error) => Err(ConnectError::Unreachable {
                reason: describe_error(&error),
                endpoint: self.endpoint,
            }),
        }
    }

    /// Connects with the first call, so that a caller can start before the service.
    ///
    /// # Errors
    /// The settings are not valid.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn connect_lazy(self) -> Result<Client, ConnectError> {
        let channel = self.transport()?.connect_lazy();
        Ok(Client::new(channel, self.endpoint, self.deadline))
    }

    /// Connects to an admin listener with the first call.
    ///
    /// # Errors
    /// The settings are not valid.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn connect_admin_lazy(self) -> Result<AdminClient, ConnectError> {
        let channel = self.transport()?.connect_lazy();
        Ok(AdminClient::new(channel, self.endpoint, self.deadline))
    }

    /// A gRPC channel for any service of the server, such as `grpc.health.v1`. It connects with the first call.
    /// [`deadline`](Self::deadline) does not apply to it.
    ///
    /// # Errors
    /// As [`connect_lazy`](Self::connect_lazy).
    pub fn channel_lazy(&self) -> Result<transport::Channel, ConnectError> {
        Ok(self.transport()?.connect_lazy())
    }

    fn transport(&self) -> Result<transport::Endpoint, ConnectError> {
        let mut transport = transport::Endpoint::from_shared(self.endpoint.as_str().to_owned())
            .map_err(ConnectError::Settings)?
            .connect_timeout(self.connect_timeout);
        if !self.keepalive_interval.is_zero() {
            // Pings on an idle connection would make Go's servers close it.
            transport = transport
                .http2_keep_alive_interval(self.keepalive_interval)
                .keep_alive_timeout(self.keepalive_timeout)
                .keep_alive_while_idle(false);
        }
        if self.endpoint.is_secure() {
            let tls = self.tls.config()?.timeout(self.connect_timeout);
            transport = transport.tls_config(tls).map_err(ConnectError::Settings)?;
        } else if self.tls != Tls::default() {
            return Err(ConnectError::TlsUnused(self.endpoint.clone()));
        }
        Ok(transport)
    }
}

impl Tls {
    fn config(&self) -> Result<ClientTlsConfig, ConnectError> {
        let mut config = ClientTlsConfig::new();
        config = match &self.ca {
            Some(path) => config.ca_certificate(read_ca(path)?),
            None => config.with_native_roots(),
        };
        if let Some((cert, key)) = &self.client {
            config = config.identity(Identity::from_pem(read_file(cert)?, read_file(key)?));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        Ok(config)
    }
}

fn read_ca(path: &Path) -> Result<Certificate, ConnectError> {
    let pem = read_file(path)?;
    // rustls would trust no certificate, and report it only when the connection fails.
    let marker = b"-----BEGIN CERTIFICATE-----";
    if !pem.windows(marker.len()).any(|window| window == marker) {
        return Err(ConnectError::NoCertificate(path.to_owned()));
    }
    Ok(Certificate::from_pem(pem))
}

fn read_file(path: &Path) -> Result<Vec<u8>, ConnectError> {
    fs::read(path).map_err(|source| ConnectError::File { path: path.to_owned(), source })
}
