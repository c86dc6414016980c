//! The admin listener's services.

use std::io;

use futures::Stream;
use sluicegate_proto::{
    ADMIN_TEXT_FILE_DESCRIPTOR_SET,
    sluicegate::admin::v1::admin_service_server::{AdminServiceServer, SERVICE_NAME},
};
use tonic::service::{Routes, interceptor::InterceptedService};

use super::{Admin, Token, connection::AdminCalls, token::TokenInterceptor};
use crate::{
    grpc::Health,
    listen::{self, Connection},
};

/// Names under which health can be asked: the whole server, the service.
const HEALTH_NAMES: &[&str] = &["", SERVICE_NAME];

/// The admin services, ready to serve connections.
pub(crate) struct Services(AdminCalls);

impl Services {
    /// The admin service and reflection for callers with the token, and health for all.
    pub(crate) fn new(
        admin: Admin,
        token: Option<Token>,
    ) -> Result<(Self, Health), tonic_reflection::server::Error> {
        let (reporter, health) = tonic_health::server::health_reporter();
        let gate = TokenInterceptor(token);
        let admin = InterceptedService::new(AdminServiceServer::new(admin), gate.clone());
        let v1 = InterceptedService::new(reflection().build_v1()?, gate.clone());
        let v1alpha = InterceptedService::new(reflection().build_v1alpha()?, gate);
        let routes =
            Routes::new(admin).add_service(health).add_service(v1).add_service(v1alpha).prepare();
        Ok((Self(AdminCalls::new(routes)), Health::new(reporter, HEALTH_NAMES)))
    }

    /// Serves connections until `shutdown`, then lets the calls in progress finish.
    pub(crate) async fn serve(
        self,
        connections: impl Stream<Item = io::Result<Connection>>,
        shutdown: impl Future<Output = ()>,
    ) {
        let Self(calls) = self;
        listen::serve(connections, shutdown, |connection, stop| {
            calls.clone().serve(connection, stop)
        })
        .await;
    }
}

/// Describes every service, reflection in both versions included: some clients refuse a server that does not.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(ADMIN_TEXT_FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
