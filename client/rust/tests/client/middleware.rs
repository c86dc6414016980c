//! The middleware with tower services, axum and tonic.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header::RETRY_AFTER, request::Parts};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::BoxBody};
use sluicegate_client::{
    Check, CheckError, Client, Descriptor, LimitOverride,
    tower::{FailureMode, PeerAddr, RateLimit, client_ip, header},
};
use sluicegate_client_testkit::service::{
    Answer, Service, client_of, free_address, response_with_limit, sample_check,
};
use sluicegate_proto::envoy::{
    config::core::v3::HeaderValue,
    service::ratelimit::v3::{
        RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_server::RateLimitServiceServer,
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::timeout,
};
use tokio_stream::wrappers::TcpListenerStream;
use tower::{
    Layer as _, Service as TowerService, ServiceBuilder, ServiceExt as _, service_fn,
    util::BoxCloneSyncService,
};

type Handler = BoxCloneSyncService<Request<Full<Bytes>>, Response<Bytes>, Infallible>;

fn by_user(request: &Parts) -> Vec<Descriptor> {
    match header(request, "user") {
        b"" => Vec::new(),
        user => vec![Descriptor::from([("user", user)])],
    }
}

/// A handler behind a layer, and how often it ran.
fn limited(limit: RateLimit) -> (Handler, Arc<AtomicUsize>) {
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let handler = service_fn(move |_: Request<Full<Bytes>>| {
        count.fetch_add(1, SeqCst);
        async {
            let response = Response::builder().header("content-type", "text/html");
            Ok::<_, Infallible>(response.body(Full::from("handled")).unwrap())
        }
    });
    let service = ServiceBuilder::new()
        .then(async |response: Result<Response<_>, Infallible>| {
            let (head, body) = response?.into_parts();
            Ok(Response::from_parts(head, whole(body).await))
        })
        .layer(limit.layer(by_user))
        .service(handler);
    (BoxCloneSyncService::new(service), handled)
}

async fn whole<B: Body<Data = Bytes>>(body: B) -> Bytes
where
    B::Error: std::fmt::Debug,
{
    body.collect().await.unwrap().to_bytes()
}

fn request(user: &str) -> Request<Full<Bytes>> {
    let request = Request::builder().header("user", user).header("x-forwarded-for", "1.2.3.4");
    request.body(Full::default()).unwrap()
}

async fn send(handler: &Handler, request: Request<Full<Bytes>>) -> Response<Bytes> {
    handler.clone().oneshot(request).await.unwrap()
}

fn header_to_add(name: &str, value: &str) -> HeaderValue {
    let (key, value) = (name.to_owned(), value.to_owned());
    HeaderValue { key, value, ..HeaderValue::default() }
}

fn over_limit() -> Answer {
    response_with_limit(Code::OverLimit, 0)
}

#[tokio::test]
async fn skipped_requests_and_those_without_descriptors_are_not_checked() {
    let service = Service::new(over_limit());
    let client = client_of(service.start().await);
    let limit = RateLimit::new(&client, "shop").skip(|request| request.uri.path() == "/healthz");
    let (handler, handled) = limited(limit);
    assert_eq!(send(&handler, request("")).await.status(), StatusCode::OK);
    let mut skipped = request("ann");
    *skipped.uri_mut() = "/healthz".parse().unwrap();
    assert_eq!(send(&handler, skipped).await.status(), StatusCode::OK);
    assert!(service.take_requests().is_empty());
    assert_eq!(send(&handler, request("ann")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(handled.load(SeqCst), 2);
}

#[tokio::test]
async fn check_has_domain_hits_and_descriptors_as_text() {
    let service = Service::new(response_with_limit(Code::Ok, 9));
    let client = client_of(service.start().await);
    let (handler, _) = limited(RateLimit::new(&client, "shop").hits(|_| 7));
    let mut binary = request("ann");
    let value = http::HeaderValue::from_bytes(b"a\xff\xfe").unwrap();
    binary.headers_mut().insert("user", value);
    send(&handler, binary).await;
    let [(metadata, asked)] = &service.take_requests()[..] else { panic!("one request") };
    assert_eq!((asked.domain.as_str(), asked.hits_addend), ("shop", 7));
    let entry = &asked.descriptors[0].entries[0];
    assert_eq!((&entry.key[..], &entry.value[..]), (&b"user"[..], "a\u{fffd}\u{fffd}".as_bytes()));
    assert!(metadata.contains_key("grpc-timeout"));
}

#[tokio::test]
async fn headers_are_added_to_the_handlers_response() {
    let headers = vec![
        header_to_add("X-RateLimit-Remaining", "9"),
        header_to_add("x-twice", "1"),
        header_to_add("x-twice", "2"),
        // Neither may break the response of the handler.
        header_to_add("content-type", "application/json"),
        header_to_add("content-length", "3"),
        header_to_add("not a name", "1"),
        header_to_add("x-line", "1\r\nx-other: 2"),
    ];
    let service = Service::new(Answer::Response(RateLimitResponse {
        overall_code: Code::Ok.into(),
        response_headers_to_add: headers,
        ..RateLimitResponse::default()
    }));
    let client = client_of(service.start().await);
    let (handler, _) = limited(RateLimit::new(&client, "shop"));
    let response = send(&handler, request("ann")).await;
    let headers = response.headers();
    let values =
        |name: &str| Vec::from_iter(headers.get_all(name).iter().map(http::HeaderValue::as_bytes));
    assert_eq!(values("x-ratelimit-remaining"), [b"9"]);
    assert_eq!(values("x-twice"), [b"1", b"2"]);
    assert_eq!(values("content-type"), [b"text/html"]);
    assert!(!headers.contains_key("content-length") && !headers.contains_key("x-line"));
    assert_eq!(response.body(), "handled");
}

#[tokio::test]
async fn on_limited_replaces_the_answer() {
    let client = client_of(Service::new(over_limit()).start().await);
    let limit = RateLimit::new(&client, "shop").on_limited(|request, verdict, mut answer| {
        assert!(request.headers.contains_key("user") && !verdict.allowed);
        *answer.status_mut() = StatusCode::IM_A_TEAPOT;
        answer
    });
    let (handler, handled) = limited(limit);
    let response = send(&handler, request("ann")).await;
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(response.headers()[RETRY_AFTER], "42");
    assert_eq!(handled.load(SeqCst), 0);
}

/// A client of no service, of one that never answers, of one that fails, and of one that does not apply overrides.
async fn failing_clients() -> [(Client, CheckError); 4] {
    let brief = Duration::from_millis(50);
    let gone = client_of(format!("http://{}", free_address().await).parse().unwrap());
    let unavailable = gone.check(sample_check()).await.unwrap_err();
    let start = async |answer| client_of(Service::new(answer).start().await);
    let error = tonic::Status::internal("why");
    let reason = "why".to_owned();
    [
        (gone, unavailable),
        (
            start(Answer::Never).await.with_deadline(brief),
            CheckError::DeadlineExceeded { deadline: brief },
        ),
        (
            start(Answer::Error(error)).await,
            CheckError::Other { code: tonic::Code::Internal, reason },
        ),
        (
            start(Answer::Response(RateLimitResponse::default())).await,
            CheckError::OverrideNotApplied,
        ),
    ]
}

#[tokio::test]
async fn failure_mode_decides_without_an_answer() {
    for (client, expected) in failing_clients().await {
        for (mode, status) in [
            (FailureMode::Open, StatusCode::OK),
            (FailureMode::Closed, StatusCode::SERVICE_UNAVAILABLE),
        ] {
            let reported = Arc::new(Mutex::new(Vec::new()));
            let errors = Arc::clone(&reported);
            let limit = RateLimit::new(&client, "shop")
                .failure_mode(mode)
                .on_error(move |_, error| errors.lock().unwrap().push(error.clone()));
            let layer = limit.layer(|_| {
                [Descriptor::from([("login", "ann")])
                    .limit(LimitOverride::per_window(5, Duration::from_secs(90)))]
            });
            let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("handled")))
            }));
            let response = service.oneshot(request("ann")).await.unwrap();
            assert_eq!(response.status(), status, "{expected:?}");
            assert_eq!(*reported.lock().unwrap(), *std::slice::from_ref(&expected));
            if mode == FailureMode::Closed {
                assert_eq!(response.headers()["content-type"], "application/problem+json");
            }
        }
    }
}

#[tokio::test]
async fn timeout_of_the_layer_replaces_that_of_the_client() {
    let client = client_of(Service::new(Answer::Never).start().await);
    let brief = Duration::from_millis(30);
    let (handler, _) =
        limited(RateLimit::new(&client, "shop").timeout(brief).failure_mode(FailureMode::Closed));
    assert_eq!(send(&handler, request("ann")).await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// A service that panics if it is called without having been ready, and is never ready twice.
struct ReadyOnceService {
    is_ready: AtomicBool,
}

impl Clone for ReadyOnceService {
    fn clone(&self) -> Self {
        Self { is_ready: AtomicBool::new(false) }
    }
}

impl TowerService<Request<Full<Bytes>>> for ReadyOnceService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready.store(true, SeqCst);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        assert!(self.is_ready.swap(false, SeqCst), "called without poll_ready");
        std::future::ready(Ok(Response::new(Full::from("handled"))))
    }
}

#[tokio::test]
async fn the_ready_service_is_called_and_clones_are_independent() {
    let client = client_of(Service::new(response_with_limit(Code::Ok, 9)).start().await);
    let layer = RateLimit::new(&client, "shop").layer(by_user);
    let mut service = layer.layer(ReadyOnceService { is_ready: AtomicBool::new(false) });
    let mut calls = Vec::new();
    for _ in 0..3 {
        let mut clone = service.clone();
        calls.push(service.ready().await.unwrap().call(request("ann")));
        calls.push(clone.ready().await.unwrap().call(request("")));
    }
    // In another order than they were called.
    for call in calls.into_iter().rev() {
        assert_eq!(call.await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn dropped_request_does_not_reach_the_handler() {
    let asked = Arc::new(Notify::new());
    let notify = Arc::clone(&asked);
    let service = Service::new(Answer::script(move |_| {
        notify.notify_one();
        std::future::pending()
    }));
    let client = client_of(service.start().await);
    let (handler, handled) = limited(RateLimit::new(&client, "shop"));
    let request = tokio::spawn({
        let handler = handler.clone();
        async move { send(&handler, request("ann")).await }
    });
    asked.notified().await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    assert_eq!(handled.load(SeqCst), 0);
    // The connection to the service is still good.
    assert_eq!(send(&handler, self::request("")).await.status(), StatusCode::OK);
}

/// A body that arrives in these frames, and then trailers or an error.
fn frames(data: Vec<Bytes>, end: Option<io::Result<HeaderMap>>) -> BoxBody<Bytes, Arc<io::Error>> {
    let data = data.into_iter().map(|it| Ok(Frame::data(it)));
    let end = end.map(|end| end.map(Frame::trailers).map_err(Arc::new));
    BoxBody::new(StreamBody::new(tokio_stream::iter(data.chain(end).collect::<Vec<_>>())))
}

fn email_layer(client: &Client) -> sluicegate_client::tower::RateLimitBodyLayer {
    RateLimit::new(client, "shop")
        .layer_with_body(|_, body| [Descriptor::from([("email", body.field("email"))])])
}

/// Sends a body through the middleware. Returns the field that was sent to the service, and what the handler read.
async fn through(
    body: BoxBody<Bytes, Arc<io::Error>>,
) -> (String, Result<(Bytes, Option<HeaderMap>), Arc<io::Error>>) {
    let service = Service::new(response_with_limit(Code::Ok, 9));
    let client = client_of(service.start().await);
    let read = Arc::new(Mutex::new(None));
    let result = Arc::clone(&read);
    let handler = service_fn(move |request: Request<_>| {
        let result = Arc::clone(&result);
        async move {
            let body =
                Request::<sluicegate_client::tower::PeekedBody<BoxBody<_, _>>>::into_body(request);
            let hint = body.size_hint();
            let collected = body.collect().await.map(|it| {
                let trailers = it.trailers().cloned();
                (it.to_bytes(), trailers)
            });
            if let Ok((bytes, _)) = &collected {
                assert!(hint.lower() <= bytes.len() as u64);
                assert!(hint.upper().is_none_or(|upper| upper >= bytes.len() as u64));
            }
            *result.lock().unwrap() = Some(collected);
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    email_layer(&client).layer(handler).oneshot(Request::new(body)).await.unwrap();
    let asked = service.take_requests().remove(0).1;
    let email = String::from_utf8(asked.descriptors[0].entries[0].value.to_vec()).unwrap();
    let read = read.lock().unwrap().take().unwrap();
    (email, read)
}

#[tokio::test]
async fn body_is_read_for_its_field_and_by_the_handler() {
    let json = Bytes::from(r#"{"email": "ann@example.com", "password": "secret"}"#);
    let bytewise = || json.chunks(1).map(Bytes::copy_from_slice).collect::<Vec<_>>();
    let trailers = || HeaderMap::from_iter([(RETRY_AFTER, http::HeaderValue::from_static("1"))]);
    for (body, expected) in [
        (frames(vec![json.clone()], None), None),
        (frames(bytewise(), None), None),
        (frames(bytewise(), Some(Ok(trailers()))), Some(trailers())),
        (frames(vec![Bytes::new(), json.clone(), Bytes::new()], None), None),
    ] {
        let (email, read) = through(body).await;
        assert_eq!(email, "ann@example.com");
        assert_eq!(read.unwrap(), (json.clone(), expected));
    }
    let (email, read) = through(frames(Vec::new(), None)).await;
    assert_eq!((email.as_str(), read.unwrap().0), ("", Bytes::new()));
}

#[tokio::test]
async fn large_and_broken_bodies_reach_the_handler_unread() {
    let padded = |size: usize| {
        let json = r#"{"email": "ann@example.com", "padding": ""#;
        format!("{json}{}\"}}", "x".repeat(size - json.len() - 2))
    };
    for (size, email) in [(64 * 1024, "ann@example.com"), (64 * 1024 + 1, ""), (1 << 20, "")] {
        let text = Bytes::from(padded(size));
        let chunks: Vec<Bytes> = text.chunks(16_000).map(Bytes::copy_from_slice).collect();
        for body in [frames(vec![text.clone()], None), frames(chunks, None)] {
            let (asked, read) = through(body).await;
            assert_eq!((asked.as_str(), read.unwrap().0.len()), (email, size));
        }
    }
    let start = vec![Bytes::from(r#"{"email": "ann@example.com""#)];
    let (email, read) = through(frames(start, Some(Err(io::Error::other("reset"))))).await;
    assert_eq!((email.as_str(), read.unwrap_err().to_string().as_str()), ("", "reset"));
}

#[tokio::test]
async fn ambiguous_fields_share_one_limit() {
    for (json, email) in [
        (r#"{"email": "a"}"#, "a"),
        (r#"{"email": "a", "email": "a"}"#, "a"),
        (r#"{"email": "a", "email": "b"}"#, ""),
        (r#"{"email": "\u0061"}"#, "a"),
        (r#"{"em\u0061il": "a"}"#, "a"),
        (r#"{"Email": "a"}"#, ""),
        (r#"{"email": 17}"#, "17"),
        (r#"{"email": 17.0}"#, "17"),
        (r#"{"email": 1.7e1}"#, "17"),
        (r#"{"email": -0.0}"#, "0"),
        (r#"{"email": null}"#, ""),
        (r#"{"email": ["a"]}"#, ""),
        (r#"{"user": {"email": "a"}}"#, ""),
        (r#"["email", "a"]"#, ""),
        (r#"{"email": "a"} {"email": "b"}"#, ""),
        (r#"{"email": "a""#, ""),
        ("email=a", ""),
        ("", ""),
    ] {
        let (asked, read) = through(frames(vec![Bytes::from(json)], None)).await;
        assert_eq!(asked, email, "{json}");
        assert_eq!(read.unwrap().0, json);
    }
    let deep = format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    assert_eq!(through(frames(vec![Bytes::from(deep)], None)).await.0, "");
}

/// Starts axum with this application. Its requests have their peers.
async fn serve(app: axum::Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends this text, and returns all that is answered.
async fn exchange(address: SocketAddr, text: &str) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = connection.read_to_string(&mut answer);
    timeout(Duration::from_secs(30), read).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn axum_answers_get_head_and_chunked_post() {
    let service = Service::new(over_limit());
    let client = client_of(service.start().await);
    let by_address =
        |request: &Parts| [Descriptor::from([("remote_address", client_ip(request, 0))])];
    let app = axum::Router::new()
        .fallback(async || "handled")
        .layer(RateLimit::new(&client, "web").layer(by_address));
    let address = serve(app).await;
    let get = exchange(address, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(get.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{get}");
    assert!(get.contains("\r\nretry-after: 42\r\n"), "{get}");
    assert!(get.ends_with("\"retryAfter\":42}"), "{get}");
    let length = get.split("\r\n\r\n").nth(1).unwrap().len();
    let head = exchange(address, "HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
    assert!(head.contains(&format!("\r\ncontent-length: {length}\r\n")), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    for (_, asked) in service.take_requests() {
        assert_eq!(&asked.descriptors[0].entries[0].value[..], b"127.0.0.1");
    }

    let service = Service::new(response_with_limit(Code::Ok, 9));
    let client = client_of(service.start().await);
    let echo = axum::routing::post(async |body: Bytes| body);
    let address = serve(axum::Router::new().route("/", echo).layer(email_layer(&client))).await;
    let json = r#"{"email": "ann@example.com"}"#;
    let chunks: String = json
        .as_bytes()
        .chunks(5)
        .map(|it| {
            format!("{:x}\r\n{}\r\n", it.len(), it.escape_ascii().to_string().replace("\\\"", "\""))
        })
        .collect();
    let head = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n";
    let answer = exchange(address, &format!("{head}\r\n{chunks}0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(json), "{answer}");
    let asked = service.take_requests().remove(0).1;
    assert_eq!(&asked.descriptors[0].entries[0].value[..], b"ann@example.com");
}

#[tokio::test]
async fn streamed_response_passes_frame_by_frame() {
    let client = client_of(Service::new(response_with_limit(Code::Ok, 9)).start().await);
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    let stream = Arc::new(Mutex::new(Some(receiver)));
    let handler = service_fn(move |_: Request<Empty<Bytes>>| {
        let receiver = stream.lock().unwrap().take().unwrap();
        let body = StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver));
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let layer = RateLimit::new(&client, "shop").layer(by_user);
    let request = Request::builder().header("user", "ann").body(Empty::new()).unwrap();
    let mut body = layer.layer(handler).oneshot(request).await.unwrap().into_body();
    for chunk in ["a", "b"] {
        sender.send(Ok(Frame::data(chunk.into()))).await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), chunk);
    }
    let trailers = HeaderMap::from_iter([(RETRY_AFTER, http::HeaderValue::from_static("1"))]);
    sender.send(Ok(Frame::trailers(trailers.clone()))).await.unwrap();
    drop(sender);
    assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers);
    assert!(body.frame().await.is_none());
}

/// A gRPC service behind a layer.
async fn grpc(limit: RateLimit) -> (Client, Service) {
    let service = Service::new(Answer::Response(RateLimitResponse::default()));
    let by_address = |request: &Parts| {
        assert_eq!(client_ip(request, 0), "127.0.0.1");
        [Descriptor::from([("method", request.uri.path())])]
    };
    let router = tonic::transport::Server::builder()
        .layer(limit.layer(by_address))
        .add_service(RateLimitServiceServer::new(service.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    (client_of(endpoint.parse().unwrap()), service)
}

async fn call(client: &Client) -> Result<tonic::metadata::MetadataMap, tonic::Status> {
    use sluicegate_proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
    };
    let channel = Client::builder(client.endpoint().clone()).channel_lazy().unwrap();
    let request = RateLimitRequest::from(Check::new("d").descriptor([("a", "b")]));
    let mut service = RateLimitServiceClient::new(channel);
    service.should_rate_limit(request).await.map(|response| response.metadata().clone())
}

#[tokio::test]
async fn grpc_call_is_refused_with_retry_info() {
    let limiter = Service::new(over_limit());
    let client = client_of(limiter.start().await);
    let (caller, service) = grpc(RateLimit::new(&client, "shop")).await;
    let status = call(&caller).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert_eq!(status.message(), "The rate limit is exceeded.");
    assert_eq!(status.metadata().get("retry-after").unwrap(), "42");
    let details = tonic_types::StatusExt::get_error_details(&status);
    let delay = details.retry_info().unwrap().retry_delay;
    assert_eq!(delay, Some(Duration::from_secs(42)));
    assert!(service.take_requests().is_empty());
    let asked = limiter.take_requests().remove(0).1;
    let method = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    assert_eq!(&asked.descriptors[0].entries[0].value[..], method);
}

#[tokio::test]
async fn grpc_call_passes_with_headers() {
    let limiter = Service::new(Answer::Response(RateLimitResponse {
        overall_code: Code::Ok.into(),
        response_headers_to_add: vec![header_to_add("x-ratelimit-remaining", "9")],
        ..RateLimitResponse::default()
    }));
    let client = client_of(limiter.start().await);
    let (caller, service) = grpc(RateLimit::new(&client, "shop")).await;
    let metadata = call(&caller).await.unwrap();
    assert_eq!(metadata.get("x-ratelimit-remaining").unwrap(), "9");
    assert_eq!(service.take_requests().len(), 1);
}

#[tokio::test]
async fn failed_check_of_a_grpc_call_is_unavailable_in_closed_mode() {
    let gone = client_of(format!("http://{}", free_address().await).parse().unwrap());
    let limit = RateLimit::new(&gone, "shop");
    let (caller, _) = grpc(limit.clone().failure_mode(FailureMode::Closed)).await;
    assert_eq!(call(&caller).await.unwrap_err().code(), tonic::Code::Unavailable);
    let (caller, _) = grpc(limit).await;
    call(&caller).await.unwrap();
}

#[tokio::test]
async fn peer_of_other_servers_is_an_extension() {
    let mut request = request("ann");
    request.extensions_mut().insert(PeerAddr("192.0.2.9:1".parse().unwrap()));
    let (head, _) = request.into_parts();
    assert_eq!((client_ip(&head, 0), client_ip(&head, 1)), ("192.0.2.9".into(), "1.2.3.4".into()));
}
