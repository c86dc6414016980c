//! The gRPC listener's services and what bounds its connections.

use std::{io, sync::Arc, time::Duration};

use futures::Stream;
use sluicegate_core::Store;
use sluicegate_proto::{
    TEXT_FILE_DESCRIPTOR_SET,
    envoy::service::ratelimit::v3::rate_limit_service_server::{
        RateLimitServiceServer, SERVICE_NAME,
    },
};
use tonic::transport::{Server, server::Router};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower::layer::util::{Identity, Stack};

use super::{InFlight, Rls};
use crate::{listen::Connection, settings::GrpcSettings};

/// Names under which health can be asked: the whole server, envoyproxy/ratelimit's name, the service.
const HEALTH_NAMES: [&str; 3] = ["", "ratelimit", SERVICE_NAME];

/// What gRPC health says.
#[derive(Clone)]
pub(crate) struct Health(HealthReporter);

impl Health {
    /// Sets what is said under every name.
    pub(crate) async fn set(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in HEALTH_NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}

/// The gRPC services, ready to serve connections.
pub(crate) struct Services(Router<Stack<InFlight, Identity>>);

impl Services {
    /// The rate limit service with health and reflection beside it, and the means to set health.
    pub(crate) fn new<S: Store>(
        settings: &GrpcSettings,
        rls: Arc<Rls<S>>,
        in_flight: InFlight,
    ) -> Result<(Self, Health), tonic_reflection::server::Error> {
        let (reporter, health) = tonic_health::server::health_reporter();
        let rls = RateLimitServiceServer::from_arc(rls)
            .max_decoding_message_size(settings.grpc_max_message_bytes.get());
        let router = Server::builder()
            .http2_keepalive_interval(unless_zero(settings.grpc_keepalive_interval))
            .http2_keepalive_timeout(Some(settings.grpc_keepalive_timeout));
        let router = match unless_zero(settings.grpc_max_connection_age) {
            Some(age) => router
                .max_connection_age(age)
                .max_connection_age_grace(settings.grpc_max_connection_age_grace),
            None => router,
        };
        let router = router
            .layer(in_flight)
            .add_service(rls)
            .add_service(health)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
        Ok((Self(router), Health(reporter)))
    }

    /// Serves connections until `shutdown`, then lets the calls in progress finish.
    pub(crate) async fn serve(
        self,
        connections: impl Stream<Item = io::Result<Connection>>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        self.0.serve_with_incoming_shutdown(connections, shutdown).await
    }
}

/// Describes every service, itself included: some clients refuse a server that does not.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(TEXT_FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

fn unless_zero(span: Duration) -> Option<Duration> {
    (!span.is_zero()).then_some(span)
}
