//! The services of the admin listener.

use std::io;

use futures::Stream;
use sluicegate_proto::{
    ADMIN_TEXT_FILE_DESCRIPTOR_SET,
    sluicegate::admin::v1::admin_service_server::{AdminServiceServer, SERVICE_NAME},
};
use tonic::service::{Routes, interceptor::InterceptedService};

use super::{Admin, Token, connection::AdminCalls, token::TokenInterceptor};
use crate::{
    grpc::{self, ListenerHealth},
    listen::{self, Connection},
};

/// Health names: of the whole server, of the service.
const HEALTH_NAMES: &[&str] = &["", SERVICE_NAME];

/// The admin services, ready to serve connections.
pub(crate) struct Services(AdminCalls);

impl Services {
    /// The admin service and reflection, which check the token, and health, which does not.
    pub(crate) fn new(
        admin: Admin,
        token: Option<Token>,
    ) -> Result<(Self, ListenerHealth), tonic_reflection::server::Error> {
        let (reporter, health) = tonic_health::server::health_reporter();
        let check_token = TokenInterceptor(token);
        let reflection = || grpc::reflection(ADMIN_TEXT_FILE_DESCRIPTOR_SET);
        let admin = InterceptedService::new(AdminServiceServer::new(admin), check_token.clone());
        let v1 = InterceptedService::new(reflection().build_v1()?, check_token.clone());
        let v1alpha = InterceptedService::new(reflection().build_v1alpha()?, check_token);
        let routes =
            Routes::new(admin).add_service(health).add_service(v1).add_service(v1alpha).prepare();
        Ok((Self(AdminCalls::new(routes)), ListenerHealth::new(reporter, HEALTH_NAMES)))
    }

    /// Serves connections until `shutdown`, then completes the calls in progress.
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
