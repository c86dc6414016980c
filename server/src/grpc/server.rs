//! The gRPC listener's services.

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
        calls::Calls,
        connection::{self, Bounds},
    },
    health::{Health, LIVENESS, STORE},
    in_flight::InFlight,
    rls::Rls,
    tonic_server::{self, TonicService},
};
use crate::{
    listen::{self, Connection},
    settings::GrpcSettings,
    telemetry::{Telemetry, Traces, catalogue},
};

/// Names under which health can be asked: the whole server, envoyproxy/ratelimit's name, the service.
const HEALTH_NAMES: &[&str] = &["", "ratelimit", SERVICE_NAME];

/// The largest message to health and reflection, in bytes: they take names.
const OTHER_MESSAGE_MAX: usize = 4096;

/// The gRPC services, ready to serve connections.
pub(crate) struct Services {
    calls: Arc<Calls>,
    bounds: Bounds,
    /// Every service, if tonic serves rate limit requests too.
    tonic: Option<Routes>,
}

impl Services {
    /// The rate limit service with health and reflection beside it, and the means to set health.
    pub(crate) async fn new(
        settings: &GrpcSettings,
        rls: Arc<Rls>,
        in_flight: InFlight,
        traces: Option<Arc<Traces>>,
    ) -> Result<(Self, Health), tonic_reflection::server::Error> {
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_service_status(LIVENESS, ServingStatus::Serving).await;
        reporter.set_service_status(STORE, ServingStatus::NotServing).await;
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
        let calls = Arc::new(Calls::new(rls, in_flight, routes, settings, traces));
        let bounds = Bounds::new(settings);
        Ok((Self { calls, bounds, tonic }, Health::new(reporter, HEALTH_NAMES)))
    }

    /// Serves connections until `shutdown`, then lets the calls in progress finish.
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

/// Shows in metrics what bounds calls and connections.
pub(crate) fn register_metrics(telemetry: &Telemetry, services: &Services) {
    let calls = Arc::clone(&services.calls);
    telemetry.register_counts(catalogue::GRPC_BOUNDS_MET, move |show| {
        for (bound, met) in calls.bounds_met().all() {
            show(met.get(), &[bound.name()]);
        }
    });
    let gauge = |metric, read: fn(&Calls) -> usize| {
        let calls = Arc::clone(&services.calls);
        telemetry.register_gauge(metric, move || read(&calls));
    };
    gauge(catalogue::GRPC_WAITING_CALLS, Calls::waiting);
    gauge(catalogue::GRPC_WAITING_BYTES, Calls::waiting_bytes);
    gauge(catalogue::GRPC_STREAMING_CALLS, Calls::streaming);
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
