//! What a server needs of the topology that it belongs to.

use crate::redis::{
    Address,
    connection::{ConnectError, Connection},
};

/// What a server asks of the topology that it belongs to, and reports to it.
pub(in crate::redis) trait TopologyHandle: Send + Sync + 'static {
    /// Checks a new connection before it is used: whether the server still has its role.
    fn check_connection(
        &self,
        address: &Address,
        connection: &Connection,
    ) -> impl Future<Output = Result<(), ConnectError>> + Send;

    /// Whether the servers are a cluster, so that they may redirect calls.
    fn is_cluster(&self) -> bool;

    /// Requests a refresh of the topology, because the server does not reply, or redirects calls.
    fn request_refresh(&self);

    /// Reports that the server has become usable or unusable.
    fn report_health_change(&self);
}
