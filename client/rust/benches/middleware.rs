//! Cost of the middleware: requests to an axum application with a bare handler, and with the layer whose descriptors come
//! from the head or from the body, one after another over one connection each, in turns. Prints a table.
//!
//! ```sh
//! sluicegate serve --limits limits.yaml &    # domain: bench
//! cargo bench -p sluicegate-client --bench middleware -- http://localhost:8081
//! ```

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark that cannot go on fails"
)]

use std::{
    env,
    time::{Duration, Instant},
};

use axum::{Router, routing::post};
use sluicegate_client::{
    Client, Descriptor, LimitOverride,
    tower::{FailureMode, RateLimit, client_ip},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const REQUESTS: usize = 5_000;
const WARM_UP: usize = 500;
const REQUEST: &[u8] =
    b"POST / HTTP/1.1\r\nhost: bench\r\ncontent-length: 28\r\n\r\n{\"email\": \"ann@example.com\"}";
const BODY: &str = "handled";

#[tokio::main]
async fn main() {
    // Test runners start benchmarks without an endpoint, to list their tests.
    let Some(endpoint) = env::args().find(|argument| argument.contains("://")) else { return };
    let client = Client::connect(&endpoint).await.unwrap().with_deadline(Duration::from_secs(10));
    let limit = RateLimit::new(&client, "bench").failure_mode(FailureMode::Closed);
    let bare = || Router::new().route("/", post(async || BODY));
    let by_address = limit.clone().layer(|request| [never_reached("ip", &client_ip(request, 0))]);
    let by_body = limit.layer_with_body(|_, body| [never_reached("email", &body.field("email"))]);
    let applications = [
        ("bare", bare()),
        ("limited", bare().layer(by_address)),
        ("limited by a field of the body", bare().layer(by_body)),
    ];
    let mut measured = Vec::new();
    for (name, application) in applications {
        measured.push((name, connect(application).await, Vec::new()));
    }
    for turn in 0..WARM_UP + REQUESTS {
        for (_, connection, times) in &mut measured {
            let began = Instant::now();
            send(connection).await;
            if turn >= WARM_UP {
                times.push(began.elapsed());
            }
        }
    }
    println!("| handler | median µs | 99 % µs | median ÷ bare |\n|---|---|---|---|");
    let mut bare = None;
    for (name, _, mut times) in measured {
        times.sort_unstable();
        let micros = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
        let median = micros(50);
        let ratio = median / *bare.get_or_insert(median);
        println!("| {name} | {median:.0} | {:.0} | {ratio:.2} |", micros(99));
    }
}

/// A descriptor with a limit that the benchmark never reaches.
fn never_reached(key: &str, value: &str) -> Descriptor {
    let limit = LimitOverride::per_window(1_000_000, Duration::from_secs(1));
    Descriptor::from([(key, value)]).limit(limit)
}

async fn connect(application: Router) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connection = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    connection.set_nodelay(true).unwrap();
    let application = application.into_make_service_with_connect_info::<std::net::SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, application).await });
    connection
}

async fn send(connection: &mut TcpStream) {
    connection.write_all(REQUEST).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(BODY.as_bytes()) {
        assert_ne!(connection.read_buf(&mut response).await.unwrap(), 0, "the connection ended");
    }
    assert!(response.starts_with(b"HTTP/1.1 200 "), "{}", response.escape_ascii());
}
