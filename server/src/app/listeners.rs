//! Binding, serving and stopping the listeners.

use std::{net::SocketAddr, time::Duration};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{StartError, StartErrors, check::UsageAccess};
use crate::{
    admin::{self, Admin, AdminAccess, BindError, BoundAdminListener},
    grpc::{self, ListenerHealth},
    http,
    listen::{Admission, Listener, Tls},
    settings::ServeSettings,
    values::ListenAddress,
};

/// The time for requests of the HTTP, admin and usage listeners to complete after gRPC has stopped. They are short.
pub(super) const OTHER_LISTENERS_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The bound listeners. They do not accept connections yet.
pub(super) struct BoundListeners {
    pub(super) grpc: Listener,
    pub(super) http: Listener,
    pub(super) admin: Option<BoundAdminListener>,
    pub(super) usage: Option<Listener>,
}

impl BoundListeners {
    /// Binds all listeners.
    ///
    /// # Errors
    /// One error for each address that cannot be bound.
    pub(super) async fn bind(
        settings: &ServeSettings,
        admin: Option<AdminAccess>,
        usage: Option<&UsageAccess>,
    ) -> Result<Self, StartErrors> {
        let mut errors = StartErrors::default();
        let address = &settings.grpc.grpc_listen;
        let grpc = Listener::bind(address).await.map_err(|source| StartError::Listen {
            flag: "--grpc-listen",
            listener: "gRPC",
            address: address.clone(),
            source,
        });
        let grpc = errors.collect(grpc);
        let address = ListenAddress::Tcp(settings.http_listen.to_string());
        let http = Listener::bind(&address).await.map_err(|source| StartError::Listen {
            flag: "--http-listen",
            listener: "HTTP",
            address,
            source,
        });
        let http = errors.collect(http);
        let admin = match admin {
            Some(access) => errors.collect(bind_admin(access).await),
            None => None,
        };
        let usage = match usage {
            Some(access) => errors.collect(bind_usage(access).await),
            None => None,
        };
        match (grpc, http) {
            (Some(grpc), Some(http)) if errors.is_empty() => Ok(Self { grpc, http, admin, usage }),
            _ => Err(errors),
        }
    }
}

async fn bind_admin(access: AdminAccess) -> Result<BoundAdminListener, StartError> {
    let address = access.address.clone();
    access.bind().await.map_err(|error| match error {
        BindError::Listen(source) => {
            StartError::Listen { flag: "--admin-listen", listener: "admin", address, source }
        }
        BindError::Unprotected => StartError::UnprotectedAdmin(address),
    })
}

async fn bind_usage(access: &UsageAccess) -> Result<Listener, StartError> {
    let listener = Listener::bind(&access.address).await.map_err(|source| StartError::Listen {
        flag: "--usage-listen",
        listener: "usage",
        address: access.address.clone(),
        source,
    })?;
    let address = listener.local_address();
    if access.tls.is_none() && address.is_open_to_network() {
        tracing::warn!(
            %address,
            "the tokens of tenants cross the network unencrypted; set --usage-tls-cert, or let a proxy end TLS"
        );
    }
    tracing::info!(%address, "usage listener bound");
    Ok(listener)
}

/// A serving listener, and the means to stop it.
pub(super) struct ServerHandle {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl ServerHandle {
    /// Runs the future that `serve` returns. The token that it gets asks it to stop.
    fn spawn<F: Future<Output = ()> + Send + 'static>(
        serve: impl FnOnce(CancellationToken) -> F,
    ) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(stop.clone()));
        Self { stop, task }
    }

    /// Serves gRPC.
    pub(super) fn grpc(
        listener: Listener,
        services: grpc::Services,
        tls: Option<Tls>,
        admission: Admission,
    ) -> Self {
        let connections = listener.incoming(tls, admission);
        Self::spawn(|stop| async move { services.serve(connections, stop.cancelled_owned()).await })
    }

    /// Serves HTTP.
    pub(super) fn http(
        listener: Listener,
        server: http::Server,
        tls: Option<Tls>,
        admission: Admission,
    ) -> Self {
        let connections = listener.incoming(tls, admission);
        Self::spawn(|stop| async move { server.serve(connections, stop.cancelled_owned()).await })
    }

    /// Stops accepting calls, and aborts those that do not complete in time.
    pub(super) async fn stop(mut self, listener: &str, within: Duration) {
        self.stop.cancel();
        if tokio::time::timeout(within, &mut self.task).await.is_err() {
            self.task.abort();
            tracing::warn!(
                listener,
                timeout = ?within,
                "calls in progress were aborted: they did not complete in time"
            );
        }
    }
}

/// The serving admin listener.
pub(super) struct AdminHandle {
    pub(super) address: ListenAddress,
    pub(super) health: ListenerHealth,
    pub(super) tls: Option<Tls>,
    pub(super) token: Option<admin::Token>,
    server: ServerHandle,
    resets: admin::Resets,
}

impl AdminHandle {
    /// Starts to serve.
    ///
    /// # Errors
    /// gRPC reflection cannot describe the services.
    pub(super) fn start(
        bound: BoundAdminListener,
        admin: Admin,
        admission: Admission,
    ) -> Result<Self, StartError> {
        let BoundAdminListener { listener, tls, token } = bound;
        let resets = admin.resets();
        let (services, health) = admin::Services::new(admin, token.clone())?;
        let address = listener.local_address();
        let connections = listener.incoming(tls.clone(), admission);
        let server = ServerHandle::spawn(|stop| async move {
            services.serve(connections, stop.cancelled_owned()).await;
        });
        Ok(Self { address, health, tls, token, server, resets })
    }

    /// Stops after the calls and resets of counters in progress.
    pub(super) async fn stop(mut self) {
        self.health.end_watch_calls().await;
        tokio::join!(self.server.stop("admin", OTHER_LISTENERS_DRAIN_TIMEOUT), self.resets.end());
    }
}

/// The bound address of the HTTP listener.
pub(super) fn http_address(listener: &Listener, settings: &ServeSettings) -> SocketAddr {
    listener.socket_address().unwrap_or(settings.http_listen)
}
