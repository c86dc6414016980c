//! The gRPC listener's services and what bounds its connections.

use std::{io, sync::Arc, time::Duration};

use futures::{Stream, TryStreamExt};
use sluicegate_proto::{
    TEXT_FILE_DESCRIPTOR_SET,
    envoy::service::ratelimit::v3::rate_limit_service_server::{
        RateLimitServiceServer, SERVICE_NAME,
    },
};
use tonic::transport::{Server, server::Router};
use tower::layer::util::{Identity, Stack};

use super::{Health, InFlight, Rls};
use crate::{listen::Connection, settings::GrpcSettings};

/// Names under which health can be asked: the whole server, envoyproxy/ratelimit's name, the service.
const HEALTH_NAMES: &[&str] = &["", "ratelimit", SERVICE_NAME];

/// The gRPC services, ready to serve connections.
pub(crate) struct Services {
    router: Router<Stack<InFlight, Identity>>,
    /// After which a connection is cut.
    lifetime: Option<Duration>,
}

impl Services {
    /// The rate limit service with health and reflection beside it, and the means to set health.
    pub(crate) fn new(
        settings: &GrpcSettings,
        rls: Arc<Rls>,
        in_flight: InFlight,
    ) -> Result<(Self, Health), tonic_reflection::server::Error> {
        let (reporter, health) = tonic_health::server::health_reporter();
        let rls = RateLimitServiceServer::from_arc(rls)
            .max_decoding_message_size(settings.grpc_max_message_bytes.get());
        let router = Server::builder()
            .http2_keepalive_interval(unless_zero(settings.grpc_keepalive_interval))
            .http2_keepalive_timeout(Some(settings.grpc_keepalive_timeout));
        // tonic's own grace skips the GOAWAY and cuts the connection: it is set on the connection instead.
        let age = unless_zero(settings.grpc_max_connection_age);
        let router = match age {
            Some(age) => router.max_connection_age(age),
            None => router,
        };
        let lifetime = age.map(|age| age.saturating_add(settings.grpc_max_connection_age_grace));
        let router = router
            .layer(in_flight)
            .add_service(rls)
            .add_service(health)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
        Ok((Self { router, lifetime }, Health::new(reporter, HEALTH_NAMES)))
    }

    /// Serves connections until `shutdown`, then lets the calls in progress finish.
    pub(crate) async fn serve(
        self,
        connections: impl Stream<Item = io::Result<Connection>>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let Self { router, lifetime } = self;
        let limited = connections.map_ok(move |connection| match lifetime {
            Some(lifetime) => connection.ending_after(lifetime),
            None => connection,
        });
        router.serve_with_incoming_shutdown(limited, shutdown).await
    }
}

/// Describes every service, reflection in both versions included: some clients refuse a server that
/// does not.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(TEXT_FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

fn unless_zero(span: Duration) -> Option<Duration> {
    (!span.is_zero()).then_some(span)
}
