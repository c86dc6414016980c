//! A web application that limits its requests with Sluicegate: by address, by the e-mail of a login, and by the tier of an
//! API key.

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Extension, Router,
    body::Body,
    extract::Request,
    http::{Response, StatusCode, request::Parts},
    middleware::{self, Next},
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;
use serde::Deserialize;
use sluicegate_client::{
    CheckError, Client, Descriptor,
    tower::{FailureMode, RateLimit, client_ip, header},
};
use tokio::net::TcpListener;

/// The domain of `limits.yaml`.
const DOMAIN: &str = "axum_app";

/// The owner of an API key.
#[derive(Clone)]
struct Customer {
    tier: &'static str,
}

/// The tier of an API key. A real application looks it up where it has its customers.
fn customer(api_key: &[u8]) -> Option<Customer> {
    let tier = match api_key {
        b"key-of-ann" => "free",
        b"key-of-bob" => "pro",
        b"key-of-acme" => "enterprise",
        _ => return None,
    };
    Some(Customer { tier })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let option = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let endpoint = option("SLUICEGATE_URL", "http://localhost:8081");
    let client = Client::builder(endpoint.parse()?).connect_lazy()?;
    let app = application(&client, option("TRUSTED_PROXIES", "0").parse()?);
    let listener = TcpListener::bind(option("LISTEN", "localhost:8000")).await?;
    println!("listening on {}", listener.local_addr()?);
    // With the address of the peer, for `client_ip`.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// The routes of the application, each behind its limits.
fn application(client: &Client, trusted_proxies: usize) -> Router {
    let limit = RateLimit::new(client, DOMAIN).on_error(log_error);
    let per_address = limit.clone().layer(move |request| {
        [Descriptor::from([("remote_address", client_ip(request, trusted_proxies))])]
    });
    // Fails closed: without an answer, passwords could be guessed without a limit.
    let per_account = limit.clone().failure_mode(FailureMode::Closed).layer_with_body(|_, body| {
        let email = body.field("email").trim().to_lowercase();
        [Descriptor::from([("email", email)])]
    });
    let per_key = limit.layer(|request| {
        // Every request here has passed `authenticate`.
        request.extensions.get().map(|Customer { tier }| {
            Descriptor::from([
                (&b"tier"[..], tier.as_bytes()),
                (&b"api_key"[..], header(request, "x-api-key")),
            ])
        })
    });

    // The layer that is added last is the outermost.
    let api = get(api).layer(per_key).layer(middleware::from_fn(authenticate));
    Router::new()
        .route("/", get(async || "hello\n"))
        .route("/login", post(login).layer(per_account))
        .route("/api", api)
        .layer(per_address)
}

fn log_error(request: &Parts, error: &CheckError) {
    eprintln!("{}: {error}", request.uri);
}

/// Answers 401 without a valid API key. The tier comes from here and never from the client.
async fn authenticate(mut request: Request, next: Next) -> Response<Body> {
    let api_key = request.headers().get("x-api-key");
    let Some(customer) = api_key.and_then(|it| customer(it.as_bytes())) else {
        return (StatusCode::UNAUTHORIZED, "an API key is needed\n").into_response();
    };
    request.extensions_mut().insert(customer);
    next.run(request).await
}

#[derive(Deserialize)]
struct Login {
    email: String,
    password: String,
}

/// Rejects every attempt, because the example has no accounts.
async fn login(body: Bytes) -> (StatusCode, &'static str) {
    match serde_json::from_slice(&body) {
        Ok(Login { email, password }) if email.is_empty() || password.is_empty() => {
            (StatusCode::BAD_REQUEST, "e-mail and password are needed\n")
        }
        Ok(_) => (StatusCode::FORBIDDEN, "wrong e-mail or password\n"),
        Err(_) => (StatusCode::BAD_REQUEST, "the body must be JSON\n"),
    }
}

async fn api(Extension(customer): Extension<Customer>) -> String {
    format!("tier {}\n", customer.tier)
}
