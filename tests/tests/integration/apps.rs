//! The example applications and workers in Rust, and the middleware in front of a server that sheds.

use std::{
    collections::HashSet,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use sluicegate_client::{
    AcquireError, Check, CheckError, Client, Descriptor, GrpcCode, LimitOverride, Pacer, backoff,
    parse_retry_after,
    tower::{FailureMode, RateLimit, header},
};
use sluicegate_tests::{HangingStore, Process, Sluicegate, binary, hit, tools::workspace};
use tokio::{io::AsyncWriteExt as _, net::TcpListener, process::Command, task::JoinSet};

/// Starts a server with the limits of an example.
async fn limiter(example: &str, flags: &[&str]) -> Sluicegate {
    let limits = workspace().join("examples").join(example).join("limits.yaml");
    let flags = [&["--limits", limits.to_str().unwrap()], flags].concat();
    Sluicegate::start_with(tempfile::tempdir().unwrap(), &flags).await
}

/// The command of an example that uses this server.
fn example(name: &str, limiter: &Sluicegate) -> Command {
    let mut command = Command::new(binary(name));
    command.env("SLUICEGATE_URL", format!("http://{}", limiter.grpc)).env("LISTEN", "127.0.0.1:0");
    command
}

/// Starts an example, and returns its address.
async fn start(command: Command) -> (Process, String) {
    let mut process = Process::start(command);
    let address = |line: &str| line.strip_prefix("listening on ").map(str::to_owned);
    let address = process.line("listening", address).await;
    (process, address)
}

/// Sends requests to the axum example through one proxy.
struct Site {
    url: String,
    http: reqwest::Client,
}

impl Site {
    async fn status(&self, request: reqwest::RequestBuilder, address: &str) -> StatusCode {
        let response = request.header("x-forwarded-for", address).send().await.unwrap();
        let status = response.status();
        if status == StatusCode::TOO_MANY_REQUESTS {
            assert!(response.headers().contains_key("retry-after"), "{response:?}");
        }
        status
    }

    async fn get(&self, path: &str, address: &str, api_key: &str) -> StatusCode {
        let mut request = self.http.get(format!("{}{path}", self.url));
        if !api_key.is_empty() {
            request = request.header("x-api-key", api_key);
        }
        self.status(request, address).await
    }

    async fn log_in(&self, email: &str, address: &str) -> StatusCode {
        let body = format!(r#"{{"email": "{email}", "password": "guess"}}"#);
        self.status(self.http.post(format!("{}/login", self.url)).body(body), address).await
    }
}

#[tokio::test]
async fn axum_example_limits_addresses_logins_and_tiers() {
    let limiter = limiter("apps/axum", &[]).await;
    let mut command = example("sluicegate-example-axum", &limiter);
    command.env("TRUSTED_PROXIES", "1");
    let (_application, address) = start(command).await;
    let site = Site { url: format!("http://{address}"), http: reqwest::Client::new() };

    for request in 1..=100 {
        assert_eq!(site.get("/", "203.0.113.1", "").await, StatusCode::OK, "request {request}");
    }
    assert_eq!(site.get("/", "203.0.113.1", "").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(site.get("/", "203.0.113.2", "").await, StatusCode::OK);

    let spellings = [
        "ann@example.com",
        "Ann@example.com",
        " ann@example.com",
        "ANN@EXAMPLE.COM",
        "ann@example.com",
    ];
    for (attempt, email) in spellings.into_iter().enumerate() {
        let status = site.log_in(email, &format!("203.0.113.{}", 10 + attempt)).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "attempt {attempt}");
    }
    let status = site.log_in("ann@example.com", "203.0.113.15").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(site.log_in("eve@example.com", "203.0.113.16").await, StatusCode::FORBIDDEN);

    for api_key in ["", "forged"] {
        let status = site.get("/api", "203.0.113.20", api_key).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{api_key:?}");
    }
    for (api_key, calls, then) in [
        ("key-of-ann", 10, StatusCode::TOO_MANY_REQUESTS),
        ("key-of-bob", 60, StatusCode::TOO_MANY_REQUESTS),
        ("key-of-acme", 90, StatusCode::OK),
    ] {
        let address = format!("203.0.113.{}", 30 + calls);
        for call in 1..=calls {
            let status = site.get("/api", &address, api_key).await;
            assert_eq!(status, StatusCode::OK, "{api_key}, call {call}");
        }
        assert_eq!(site.get("/api", &address, api_key).await, then, "{api_key}");
    }
}

#[tokio::test]
async fn tonic_example_limits_calls() {
    let limiter = limiter("apps/tonic", &[]).await;
    let (_service, address) = start(example("sluicegate-example-tonic", &limiter)).await;
    let client = Client::connect(&format!("http://{address}")).await.unwrap();
    let client = client.with_deadline(Duration::from_secs(30));
    for _ in 0..5 {
        assert_eq!(client.is_serving().await, Ok(true));
    }
    let code = GrpcCode::ResourceExhausted;
    let reason = "The rate limit is exceeded.".to_owned();
    assert_eq!(client.is_serving().await, Err(CheckError::Other { code, reason }));
}

const JOBS: usize = 300;
const INTERVAL: Duration = Duration::from_millis(100);
/// Requests that start 100 ms apart do not arrive so exactly.
const PROVIDER_BURST: u32 = 2;

/// A provider with a limit of its own: GCRA, 10 a second.
#[derive(Default)]
struct Provider {
    free_at: Option<Instant>,
    refused: usize,
    arrived: Vec<(Instant, String)>,
}

async fn provide(State(provider): State<Arc<Mutex<Provider>>>, job: String) -> StatusCode {
    let mut provider = provider.lock().unwrap();
    let now = Instant::now();
    let free_at = provider.free_at.map_or(now, |free_at| free_at.max(now)) + INTERVAL;
    if free_at > now + INTERVAL * PROVIDER_BURST {
        provider.refused += 1;
        return StatusCode::TOO_MANY_REQUESTS;
    }
    provider.free_at = Some(free_at);
    provider.arrived.push((now, job));
    StatusCode::OK
}

#[tokio::test]
async fn tokio_worker_sends_300_jobs_at_the_rate_of_the_provider() {
    let limiter = limiter("workers/tokio", &["--dynamic-metadata"]).await;
    let provider = Arc::new(Mutex::new(Provider::default()));
    let app = Router::new().route("/", post(provide)).with_state(Arc::clone(&provider));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });

    let mut workers = Vec::new();
    for number in 0..2 {
        let mut command = example("sluicegate-example-tokio-worker", &limiter);
        command.env("PROVIDER", &url).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut worker = command.kill_on_drop(true).spawn().unwrap();
        let jobs: String = (0..JOBS / 4)
            .map(|job| format!("interactive {number} {job}\nbatch {number} {job}\n"))
            .collect();
        let mut input = worker.stdin.take().unwrap();
        input.write_all(jobs.as_bytes()).await.unwrap();
        workers.push(worker);
    }
    for mut worker in workers {
        assert!(worker.wait().await.unwrap().success());
    }

    let provider = provider.lock().unwrap();
    assert_eq!(provider.refused, 0);
    let jobs: HashSet<&String> = provider.arrived.iter().map(|(_, job)| job).collect();
    assert_eq!((jobs.len(), provider.arrived.len()), (JOBS, JOBS));
    let (Some((begin, _)), Some((end, _))) = (provider.arrived.first(), provider.arrived.last())
    else {
        panic!("no job arrived")
    };
    let took = *end - *begin;
    let perfect = INTERVAL * u32::try_from(JOBS - 1).unwrap();
    println!("{JOBS} jobs took {took:.1?}; {perfect:.1?} is perfect");
    // The first or the last request may have been slower than the other.
    assert!(took + INTERVAL >= perfect, "{took:?}");
    let first = &provider.arrived[..100];
    let interactive = first.iter().filter(|(_, job)| job.starts_with("interactive")).count();
    assert!((65..=85).contains(&interactive), "{interactive} of the first 100");
}

const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per_user, unit: day, requests_per_unit: 5}
  - key: provider
    rate_limit: {algorithm: gcra, unit: second, requests_per_unit: 100, burst: 1}
";

/// Starts an application that limits by the header `user`, without a failure mode of its own: open.
async fn site(limit: RateLimit, override_of: Option<LimitOverride>) -> String {
    let layer = limit.layer(move |request| {
        let descriptor = Descriptor::from([(&b"user"[..], header(request, "user"))]);
        [match override_of {
            Some(limit) => descriptor.limit(limit),
            None => descriptor,
        }]
    });
    let app = Router::new().route("/", axum::routing::get(async || "handled")).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

async fn get(url: &str, user: &str) -> reqwest::Response {
    reqwest::Client::new().get(url).header("user", user).send().await.unwrap()
}

async fn client(server: &Sluicegate) -> Client {
    let client = Client::connect(&format!("http://{}", server.grpc)).await.unwrap();
    client.with_deadline(Duration::from_secs(30))
}

#[tokio::test]
async fn middleware_refuses_the_sixth_request() {
    let server = Sluicegate::start(LIMITS, &["--response-headers", "x-ratelimit-draft-03"]).await;
    let url = site(RateLimit::new(&client(&server).await, "shop"), None).await;
    for remaining in ["4", "3", "2", "1", "0"] {
        let response = get(&url, "ann").await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["x-ratelimit-remaining"], remaining);
    }
    let refused = get(&url, "ann").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers().get_all("retry-after").iter().count(), 1);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(get(&url, "eve").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn override_in_an_unknown_domain_is_an_error() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let client = client(&server).await;
    let limit = LimitOverride::per_window(1, Duration::from_secs(90));
    let check = |domain| Check::new(domain).descriptor(Descriptor::from([("a", "1")]).limit(limit));
    assert_eq!(client.check(check("unknown")).await, Err(CheckError::OverrideNotApplied));
    assert!(client.check(check("shop")).await.unwrap().allowed);
    assert!(!client.check(check("shop")).await.unwrap().allowed);

    for (mode, status) in [
        (FailureMode::Open, StatusCode::OK),
        (FailureMode::Closed, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let options = RateLimit::new(&client, "unknown").failure_mode(mode);
        assert_eq!(get(&site(options, Some(limit)).await, "ann").await.status(), status);
    }
}

#[tokio::test]
async fn shed_request_is_refused_with_failure_mode_open() {
    let mut store = HangingStore::start().await;
    let flags = [&store.arguments()[..], &["--max-in-flight", "1"]].concat();
    let limits = LIMITS.replace("domain: shop", "domain: api");
    let server = Sluicegate::start(&limits, &flags).await;
    let held = store.hold(&server, hit("user", "held")).await;
    let client = client(&server).await;
    let limit = LimitOverride::per_window(5, Duration::from_secs(60));
    for override_of in [None, Some(limit)] {
        let options = RateLimit::new(&client, "api").failure_mode(FailureMode::Open);
        let response = get(&site(options, override_of).await, "ann").await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    store.release();
    held.answer().await.unwrap();
}

#[tokio::test]
async fn rate_limited_call_is_repeated_with_backoff() {
    let app = Router::new().route("/", axum::routing::get(busy_at_first));
    let app = app.with_state(Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let (client, started) = (reqwest::Client::new(), Instant::now());
    let status = call(&client, &url).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
}

async fn busy_at_first(
    State(calls): State<Arc<AtomicUsize>>,
) -> (StatusCode, [(&'static str, &'static str); 1]) {
    let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
    (if is_first { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK }, [("retry-after", "1")])
}

/// The code of `docs/backoff.md`.
async fn call(client: &reqwest::Client, url: &str) -> reqwest::Result<StatusCode> {
    let mut status = StatusCode::TOO_MANY_REQUESTS;
    for attempt in 0..5 {
        let response = client.get(url).send().await?;
        status = response.status();
        if status != StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        tokio::time::sleep(backoff(parse_retry_after(response.headers()), attempt)).await;
    }
    Ok(status)
}

#[tokio::test]
async fn acquire_and_pacer_keep_to_the_limit() {
    let server = Sluicegate::start(LIMITS, &["--dynamic-metadata"]).await;
    let client = client(&server).await;
    let mail = || Check::new("shop").descriptor([("provider", "mail")]);
    let started = Instant::now();
    let mut waiters = JoinSet::new();
    for _ in 0..30 {
        let client = client.clone();
        waiters.spawn(async move { client.acquire(mail(), Duration::MAX).await.unwrap() });
    }
    assert!(waiters.join_all().await.iter().all(|verdict| verdict.allowed));
    let pacer = Pacer::builder(&client, mail()).build().unwrap();
    for _ in 0..30 {
        pacer.run(0, async {}).await.unwrap();
    }
    assert!(started.elapsed() > Duration::from_millis(590), "{:?}", started.elapsed());
    let ann = || Check::new("shop").descriptor([("user", "ann")]).hits(5);
    client.acquire(ann(), Duration::ZERO).await.unwrap();
    assert_eq!(client.acquire(ann(), Duration::ZERO).await, Err(AcquireError::WaitExceeded));
}
