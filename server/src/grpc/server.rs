//! The services of the gRPC listener.

use std::{io, sync::Arc};

use futures::Stream;
use sluicegate_proto::{
    TEXT_FILE_DESCRIPTOR_SET,
    envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME,
};
use tonic::service::Routes;
use tonic_health::ServingStatus;

use super::{
    executor::{
        calls::CallHandler,
        connection::{self, ConnectionBounds},
    },
    health::{LIVENESS, ListenerHealth, STORE},
    in_flight::InFlight,
    rls::Rls,
    tonic_server::{self, TonicService},
};
use crate::{
    listen::{self, Connection},
    settings::GrpcSettings,
    telemetry::{Metrics, Traces, catalogue},
};

/// Health names: the whole server, the name that envoyproxy/ratelimit uses, the service.
const HEALTH_NAMES: &[&str] = &["", "ratelimit", SERVICE_NAME];

/// The most bytes of a health or reflection message. They contain names only.
const OTHER_MESSAGE_MAX: usize = 4096;

/// The gRPC services, ready to serve connections.
pub(crate) struct Services {
    calls: Arc<CallHandler>,
    bounds: ConnectionBounds,
    /// All services, if tonic serves rate limit requests too (feature `tonic-server`).
    tonic: Option<Routes>,
}

impl Services {
    /// The rate limit service, health and reflection, and a handle that sets the health.
    pub(crate) async fn new(
        settings: &GrpcSettings,
        rls: Arc<Rls>,
        in_flight: InFlight,
        traces: Option<Arc<Traces>>,
    ) -> Result<(Self, ListenerHealth), tonic_reflection::server::Error> {
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_service_status(LIVENESS, ServingStatus::Serving).await;
        reporter.set_service_status(STORE, ServingStatus::NotServing).await;
        let reflection = || reflection(TEXT_FILE_DESCRIPTOR_SET);
        let (v1, v1alpha) = (reflection().build_v1()?, reflection().build_v1alpha()?);
        let routes = Routes::new(health.max_decoding_message_size(OTHER_MESSAGE_MAX))
            .add_service(v1.max_decoding_message_size(OTHER_MESSAGE_MAX))
            .add_service(v1alpha.max_decoding_message_size(OTHER_MESSAGE_MAX))
            .prepare();
        let tonic = cfg!(feature = "tonic-server").then(|| {
            let message_max = settings.grpc_max_message_bytes.get();
            let rate_limits =
                TonicService::new(Arc::clone(&rls), in_flight.clone(), traces.clone());
            routes.clone().add_service(rate_limits.into_server(message_max)).prepare()
        });
        let calls = Arc::new(CallHandler::new(rls, in_flight, routes, settings, traces));
        let bounds = ConnectionBounds::new(settings);
        Ok((Self { calls, bounds, tonic }, ListenerHealth::new(reporter, HEALTH_NAMES)))
    }

    /// Serves connections until `shutdown`, then completes the calls in progress.
    pub(crate) async fn serve(
        self,
        connections: impl Stream<Item = io::Result<Connection>>,
        shutdown: impl Future<Output = ()>,
    ) {
        if let Some(routes) = self.tonic {
            let serve = |connection, stop| tonic_server::serve(connection, routes.clone(), stop);
            return listen::serve(connections, shutdown, serve).await;
        }
        listen::serve(connections, shutdown, |connection, stop| {
            connection::serve(connection, self.bounds, Arc::clone(&self.calls), stop)
        })
        .await;
    }
}

/// Registers the metrics of bounds on calls and connections.
pub(crate) fn register_metrics(metrics: &Metrics, services: &Services) {
    let calls = Arc::clone(&services.calls);
    metrics.register_labelled_counter(catalogue::GRPC_BOUNDS_MET, move |observe| {
        for (bound, met) in calls.reached_bounds().all() {
            observe(met.get(), &[bound.name()]);
        }
    });
    let gauge = |metric, read: fn(&CallHandler) -> usize| {
        let calls = Arc::clone(&services.calls);
        metrics.register_gauge(metric, move || read(&calls));
    };
    gauge(catalogue::GRPC_WAITING_CALLS, CallHandler::waiting_calls);
    gauge(catalogue::GRPC_WAITING_BYTES, CallHandler::waiting_bytes);
    gauge(catalogue::GRPC_STREAMING_CALLS, CallHandler::streaming_calls);
}

/// A reflection service that describes `service` (a file descriptor set), health, and reflection itself in both
/// versions. Some clients require the description of one of the versions.
pub(crate) fn reflection(service: &'static [u8]) -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(service)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
