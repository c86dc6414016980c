//! A gRPC service that limits its calls with Sluicegate, by address and method. Its service is the standard health
//! service, so that the example needs no messages of its own.

use std::{env, error::Error};

use sluicegate_client::{
    Client, Descriptor,
    tower::{RateLimit, client_ip},
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let option = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let endpoint = option("SLUICEGATE_URL", "http://localhost:8081");
    let client = Client::builder(endpoint.parse()?).connect_lazy()?;
    let limit = RateLimit::new(&client, "tonic_app")
        .on_error(|request, error| eprintln!("{}: {error}", request.uri))
        .layer(|request| {
            let address = client_ip(request, 0);
            let method = request.uri.path();
            [Descriptor::from([("remote_address", &*address), ("method", method)])]
        });

    let (_, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind(option("LISTEN", "localhost:50051")).await?;
    println!("listening on {}", listener.local_addr()?);
    let server = Server::builder().layer(limit).add_service(health);
    server.serve_with_incoming(TcpListenerStream::new(listener)).await?;
    Ok(())
}
