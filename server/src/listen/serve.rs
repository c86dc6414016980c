//! Serves the connections of a listener.

use std::{io, pin::pin};

use futures::{Stream, StreamExt as _};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Connection;

/// Serves each connection in its own task until `shutdown`. Then cancels the token of each, and waits until they have
/// ended.
pub(crate) async fn serve<F>(
    connections: impl Stream<Item = io::Result<Connection>>,
    shutdown: impl Future<Output = ()>,
    serve_one: impl Fn(Connection, CancellationToken) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (served, stop) = (TaskTracker::new(), CancellationToken::new());
    {
        // Dropped before the drain, so that no connection is accepted and then not served.
        let mut connections = pin!(connections.take_until(shutdown));
        while let Some(connection) = connections.next().await {
            if let Ok(connection) = connection {
                served.spawn(serve_one(connection, stop.clone()));
            }
        }
    }
    stop.cancel();
    served.close();
    served.wait().await;
}
