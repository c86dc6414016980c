//! The admin listener: authentication, and its address.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use prost::Message as _;
use prost_types::FileDescriptorProto;
use sluicegate_client::{AdminClient, Check, CheckError, GrpcCode};
use sluicegate_proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    sluicegate::admin::v1::{ExplainRequest, admin_service_client::AdminServiceClient},
};
use sluicegate_tests::{Authority, Finished, HangingStore, Sluicegate, binary, finish, hit, until};
use tempfile::TempDir;
use tokio::process::Command;
use tonic::{Code, Request, Status, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
";

const SERVICE: &str = "sluicegate.admin.v1.AdminService";

fn limits(folder: &TempDir) -> String {
    let file = folder.path().join("limits.yaml");
    fs::write(&file, LIMITS).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Replaces a file by renaming, as editors do.
fn put(folder: &Path, name: &str, text: &str) -> String {
    let (new, file) = (folder.join(".new"), folder.join(name));
    fs::write(&new, text).unwrap();
    fs::rename(new, &file).unwrap();
    file.to_str().unwrap().to_owned()
}

async fn guarded(token: &str, flags: &[&str]) -> Sluicegate {
    let folder = tempfile::tempdir().unwrap();
    let (limits, file) = (limits(&folder), put(folder.path(), "token", token));
    let own = ["--limits", &limits, "--admin-token-file", &file];
    Sluicegate::start_with(folder, &[&own, flags].concat()).await
}

fn client(server: &Sluicegate) -> AdminClient {
    let endpoint = format!("http://{}", server.admin).parse().unwrap();
    let builder = AdminClient::builder(endpoint).deadline(Duration::from_secs(30));
    builder.connect_admin_lazy().unwrap()
}

fn check() -> Check {
    Check::new("api").descriptor([("user", "bob")])
}

async fn shows(server: &Sluicegate, token: &str) -> Result<(), CheckError> {
    client(server).with_token(token).unwrap().explain(check()).await.map(|_| ())
}

fn assert_unauthenticated(answer: Result<(), CheckError>) {
    match answer {
        Err(CheckError::Other { code: GrpcCode::Unauthenticated, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn calls_need_the_token() {
    let server = guarded("the-operators-secret\nnot this\n", &[]).await;
    let bare = client(&server).explain(check()).await.map(|_| ());
    assert_unauthenticated(bare);
    for wrong in
        ["wrong", "the-operators-secre", "the-operators-secrets", "THE-OPERATORS-SECRET", "not"]
    {
        assert_unauthenticated(shows(&server, wrong).await);
    }
    shows(&server, "the-operators-secret").await.unwrap();

    let raw = async |authorization: Option<&'static str>| {
        let endpoint = Channel::from_shared(format!("http://{}", server.admin)).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let mut client = AdminServiceClient::new(channel);
        let mut request = Request::new(ExplainRequest::default());
        if let Some(value) = authorization {
            request.metadata_mut().insert("authorization", value.parse().unwrap());
        }
        client.explain(request).await.unwrap_err().code()
    };
    // The call is authenticated, and a request without a domain is invalid.
    assert_eq!(raw(Some("Bearer the-operators-secret")).await, Code::InvalidArgument);
    assert_eq!(raw(Some("bearer the-operators-secret")).await, Code::InvalidArgument);
    for wrong in [
        "the-operators-secret",
        "Basic the-operators-secret",
        "Bearer",
        "Bearer  the-operators-secret",
        "Bearer the-operators-secret ",
    ] {
        assert_eq!(raw(Some(wrong)).await, Code::Unauthenticated, "{wrong:?}");
    }
    assert_eq!(raw(None).await, Code::Unauthenticated);
}

#[tokio::test]
async fn sluicectl_sends_the_token_of_a_file() {
    let server = guarded("the-operators-secret\n", &[]).await;
    let sluicectl = async |flags: &[&str]| {
        let mut command = Command::new(binary("sluicectl"));
        command.args(["explain", "--domain", "api", "--descriptor", "user=bob"]);
        command.args(["--timeout", "30s"]);
        command.arg("--admin-server").arg(format!("http://{}", server.admin));
        command.args(flags);
        finish(command).await
    };
    let token = server.folder().join("token");
    let answer = sluicectl(&["--token-file", token.to_str().unwrap()]).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    let answer = sluicectl(&[]).await;
    assert_eq!((answer.code, &*answer.stdout), (3, ""));
    assert!(answer.stderr.contains("Unauthenticated: a token is required"), "{answer:?}");
    let wrong = put(server.folder(), "wrong", "guess");
    let answer = sluicectl(&["--token-file", &wrong]).await;
    assert!(answer.stderr.contains("wrong token"), "{answer:?}");
    for (text, expected) in [("", "visible ASCII"), ("two words", "visible ASCII")] {
        let file = put(server.folder(), "broken", text);
        let answer = sluicectl(&["--token-file", &file]).await;
        assert_eq!((answer.code, answer.stderr.lines().count()), (2, 1), "{answer:?}");
        assert!(answer.stderr.contains(expected), "{answer:?}");
    }
    let answer = sluicectl(&["--token-file", "/nowhere/token"]).await;
    assert_eq!(answer.code, 2);
    assert!(answer.stderr.contains("cannot read /nowhere/token"), "{answer:?}");
}

#[tokio::test]
async fn a_replaced_token_is_reloaded_and_an_invalid_one_rejected() {
    let server = guarded("the-first-of-tokens", &["--poll-interval", "200ms"]).await;
    shows(&server, "the-first-of-tokens").await.unwrap();
    put(server.folder(), "token", "the-second-of-tokens\n");
    until("the new token", || async { shows(&server, "the-second-of-tokens").await.ok() }).await;
    assert_unauthenticated(shows(&server, "the-first-of-tokens").await);
    let loads = async |result: &str| {
        server.metric(&format!("sluicegate_admin_token_loads_total{{result=\"{result}\"}}")).await
    };
    let last = async || server.metric("sluicegate_admin_token_last_load_successful").await;
    // The new token is valid before the load is counted.
    until("it to be counted", async || (loads("success").await == 1.0).then_some(())).await;
    assert_eq!((loads("failure").await, last().await), (0.0, 1.0));
    put(server.folder(), "token", "too-short\n");
    let log = server.process.printed("admin token rejected", 1).await;
    assert!(log.contains("has less than 16 bytes"));
    assert_eq!((loads("success").await, loads("failure").await, last().await), (1.0, 1.0, 0.0));
    shows(&server, "the-second-of-tokens").await.unwrap();
    fs::remove_file(server.folder().join("token")).unwrap();
    server.process.printed("admin token rejected", 2).await;
    // After several polls it is reported once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.process.output().matches("admin token rejected").count(), 2);
    shows(&server, "the-second-of-tokens").await.unwrap();
    assert!(!server.process.output().contains("the-second-of-tokens"), "the token is not logged");
    put(server.folder(), "token", "the-second-of-tokens\n");
    until("the one in force to be no longer rejected", || async {
        (last().await == 1.0).then_some(())
    })
    .await;
    assert_eq!((loads("success").await, loads("failure").await), (1.0, 2.0));
}

async fn channel(server: &Sluicegate) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", server.admin)).unwrap();
    endpoint.connect().await.unwrap()
}

async fn reflect(server: &Sluicegate, token: Option<&str>) -> Result<Vec<String>, Status> {
    let ask =
        |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let asked = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(SERVICE.to_owned())),
    ];
    let mut request = Request::new(futures::stream::iter(asked));
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    let mut client = ServerReflectionClient::new(channel(server).await);
    let mut answers = client.server_reflection_info(request).await?.into_inner();
    let mut names = Vec::new();
    while let Some(answer) = answers.message().await? {
        match answer.message_response {
            Some(MessageResponse::ListServicesResponse(list)) => {
                names.extend(list.service.into_iter().map(|service| service.name));
            }
            Some(MessageResponse::FileDescriptorResponse(files)) => {
                let file = files.file_descriptor_proto.first().unwrap();
                let file = FileDescriptorProto::decode(file.as_slice()).unwrap();
                names.push(file.name().to_owned());
            }
            other => panic!("{other:?}"),
        }
    }
    Ok(names)
}

async fn health(server: &Sluicegate, service: &str) -> ServingStatus {
    let mut client = HealthClient::new(channel(server).await);
    let request = HealthCheckRequest { service: service.to_owned() };
    client.check(request).await.unwrap().into_inner().status()
}

#[tokio::test]
async fn health_needs_no_token_but_reflection_does() {
    let server = guarded("the-operators-secret", &[]).await;
    for name in ["", SERVICE] {
        assert_eq!(health(&server, name).await, ServingStatus::Serving);
    }
    assert_eq!(reflect(&server, None).await.unwrap_err().code(), Code::Unauthenticated);
    let names = reflect(&server, Some("the-operators-secret")).await.unwrap();
    for name in [SERVICE, "grpc.health.v1.Health", "sluicegate/admin/v1/admin_service.proto"] {
        assert!(names.iter().any(|it| it == name), "{name} of {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("RateLimitService")), "{names:?}");
    // The gRPC listener does not have the admin service.
    let endpoint = server.channel().await;
    let mut client = AdminServiceClient::new(endpoint);
    let error = client.explain(ExplainRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
}

// === Disconnected callers ===

/// Number of threads of a server.
fn threads(server: &Sluicegate) -> usize {
    let folder = server.folder().to_str().unwrap().as_bytes();
    let serves = |process: &Path| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        command.windows(folder.len()).any(|part| part == folder)
    };
    let mut processes = fs::read_dir("/proc").unwrap().map(|process| process.unwrap().path());
    let process = processes.find(|process| serves(process)).unwrap();
    fs::read_dir(process.join("task")).unwrap().count()
}

#[tokio::test]
async fn explanations_stop_when_their_callers_disconnect() {
    let rules = (0..20_000).map(|rule| {
        format!("  - {{key: k{rule}, rate_limit: {{unit: day, requests_per_unit: 10}}}}\n")
    });
    let limits = format!("domain: api\ndescriptors:\n{}", rules.collect::<String>());
    let mut server = Sluicegate::start(&limits, &[]).await;
    let before = threads(&server);
    let descriptors: [&[(&str, &str)]; 250] = [&[("user", "bob")]; 250];
    let RateLimitRequest { domain, descriptors, .. } = sluicegate_tests::request(&descriptors);
    let request = ExplainRequest { domain, descriptors, hits_addend: 1 };
    let client = AdminServiceClient::new(channel(&server).await);
    for _ in 0..24 {
        let (mut client, request) = (client.clone(), request.clone());
        let impatient = Duration::from_millis(100);
        let answer = tokio::time::timeout(impatient, client.explain(request)).await;
        assert!(answer.is_err(), "the explanations ended too soon: {answer:?}");
    }
    // A thread for each concurrent explanation, and two for other work.
    let most = before + 4 + 2;
    assert!(threads(&server) <= most, "{} of {most}", threads(&server));
    // Waiting callers are served.
    self::client(&server).explain(check()).await.unwrap();

    let started = Instant::now();
    let hanging = tokio::spawn(async move { client.clone().explain(request).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().await.code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let _cut_off = hanging.await.unwrap();
}

// === TLS ===

const HOST: &str = "127.0.0.1";

/// A server that requires admin callers to have a certificate of `ours`, with one of the names `wanted`.
async fn certified(wanted: &[&str]) -> Sluicegate {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    ours.issue(HOST).write(folder.path(), "server");
    ours.issue("spiffe://test/ops").write(folder.path(), "ops");
    ours.issue("spiffe://test/shop").write(folder.path(), "shop");
    other.issue("spiffe://test/ops").write(folder.path(), "stranger");
    fs::write(folder.path().join("ca.pem"), ours.pem()).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [limits, cert, key, ca] =
        [limits(&folder), path("server.pem"), path("server.key"), path("ca.pem")];
    let mut flags = vec!["--limits", &*limits, "--admin-tls-cert", &*cert];
    flags.extend(["--admin-tls-key", &*key, "--admin-tls-client-ca", &*ca]);
    let names = wanted.join(",");
    if !names.is_empty() {
        flags.extend(["--admin-tls-client-names", &*names]);
    }
    // With certificates the listener may be on any address.
    flags.extend(["--admin-listen", "0.0.0.0:0"]);
    Sluicegate::start_with(folder, &flags).await
}

async fn explain_as(server: &Sluicegate, caller: Option<&str>) -> Finished {
    let path = |name: &str| server.folder().join(name);
    let port = server.admin.rsplit_once(':').unwrap().1;
    let mut command = Command::new(binary("sluicectl"));
    command.args(["explain", "--domain", "api", "--descriptor", "user=bob", "--timeout", "30s"]);
    command.args(["--admin-server", &format!("https://{HOST}:{port}")]);
    command.arg("--tls-ca").arg(path("ca.pem"));
    if let Some(caller) = caller {
        command.arg("--tls-cert").arg(path(&format!("{caller}.pem")));
        command.arg("--tls-key").arg(path(&format!("{caller}.key")));
    }
    finish(command).await
}

#[tokio::test]
async fn callers_need_a_certificate_of_the_client_ca() {
    let server = certified(&[]).await;
    for (caller, code) in [(Some("ops"), 0), (Some("shop"), 0), (Some("stranger"), 3), (None, 3)] {
        let answer = explain_as(&server, caller).await;
        assert_eq!(answer.code, code, "{caller:?}: {answer:?}");
    }
    assert_eq!(server.metric("sluicegate_tls_handshakes_failed_total").await, 2.0);
    assert!(!server.process.output().contains("WARN"), "{}", server.process.output());
}

#[tokio::test]
async fn callers_need_a_certificate_with_a_client_name() {
    let server = certified(&["spiffe://test/ops", "ops.example"]).await;
    for (caller, code) in [(Some("ops"), 0), (Some("shop"), 3), (Some("stranger"), 3)] {
        let answer = explain_as(&server, caller).await;
        assert_eq!(answer.code, code, "{caller:?}: {answer:?}");
    }
}

#[tokio::test]
async fn new_connections_get_reloaded_certificates() {
    let server = certified(&[]).await;
    let second = Authority::new("second");
    second.issue(HOST).write(server.folder(), "server");
    second.issue("spiffe://test/ops").write(server.folder(), "ops");
    fs::write(server.folder().join("ca.pem"), second.pem()).unwrap();
    until("the new certificate", || async {
        (explain_as(&server, Some("ops")).await.code == 0).then_some(())
    })
    .await;
}

// === Addresses ===

async fn refused(flags: &[&str]) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let limits = limits(&folder);
    finish(Sluicegate::command(&[&["--limits", &limits], flags].concat(), &[])).await
}

#[tokio::test]
async fn network_addresses_need_a_token_or_client_ca() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let answer = refused(&["--admin-listen", address]).await;
        assert_eq!((answer.code, answer.stderr.lines().count()), (1, 1), "{answer:?}");
        for part in [address, "--admin-token-file", "--admin-tls-client-ca"] {
            assert!(answer.stderr.contains(part), "{answer:?}");
        }
    }
    // TLS without a CA admits every client.
    let folder = tempfile::tempdir().unwrap();
    Authority::new("a").issue(HOST).write(folder.path(), "server");
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (cert, key) = (path("server.pem"), path("server.key"));
    let tls = ["--admin-tls-cert", &cert, "--admin-tls-key", &key];
    let answer = refused(&[&tls[..], &["--admin-listen", "0.0.0.0:0"]].concat()).await;
    assert!(answer.code == 1 && answer.stderr.contains("is open to the network"), "{answer:?}");

    let warned = "the admin token crosses the network unencrypted";
    let server = guarded("the-operators-secret", &["--admin-listen", "0.0.0.0:0"]).await;
    server.process.printed(warned, 1).await;
    let server =
        guarded("the-operators-secret", &[&tls[..], &["--admin-listen", "0.0.0.0:0"]].concat())
            .await;
    assert!(!server.process.output().contains(warned));
    let server = guarded("the-operators-secret", &[]).await;
    assert!(!server.process.output().contains(warned));
}

#[tokio::test]
async fn an_unusable_token_file_prevents_the_start() {
    let folder = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("two words", "is not a token"),
        ("", "less than 16 bytes"),
        ("\nthe-second-of-tokens", "less than 16 bytes"),
        ("fifteen-bytes--", "less than 16 bytes"),
    ] {
        let file = put(folder.path(), "token", text);
        let answer = refused(&["--admin-token-file", &file]).await;
        assert_eq!((answer.code, answer.stderr.lines().count()), (1, 1), "{answer:?}");
        assert!(answer.stderr.contains(expected) && answer.stderr.contains(&file), "{answer:?}");
    }
    let answer = refused(&["--admin-token-file", "/nowhere/token"]).await;
    assert_eq!((answer.code, answer.stderr.lines().count()), (1, 1), "{answer:?}");
    assert!(answer.stderr.contains("/nowhere/token") && answer.stderr.contains("No such file"));
}

#[tokio::test]
async fn the_admin_listener_can_be_a_unix_socket_or_off() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("admin.sock").display());
    let server = Sluicegate::start(LIMITS, &["--admin-listen", &socket]).await;
    assert_eq!(server.admin, socket);
    let endpoint = socket.parse().unwrap();
    let client = AdminClient::builder(endpoint).connect_admin_lazy().unwrap();
    client.explain(check()).await.unwrap();

    let server = Sluicegate::start(LIMITS, &["--admin-listen", "off"]).await;
    assert_eq!(server.admin, "off");
    assert_eq!(server.get("/healthcheck").await.0, 200);
}

#[tokio::test]
async fn the_admin_listener_lasts_as_long_as_http() {
    let mut store = HangingStore::start().await;
    let flags = [&store.arguments()[..], &["--drain-timeout", "1h"]].concat();
    let mut server = Sluicegate::start(LIMITS, &flags).await;
    let held = store.hold(&server, hit("user", "bob")).await;
    server.process.signal(Signal::SIGTERM);
    until("health to say so", || async {
        (health(&server, "").await == ServingStatus::NotServing).then_some(())
    })
    .await;
    client(&server).explain(check()).await.unwrap();
    assert_eq!(server.get("/healthcheck").await.0, 500);
    // A gRPC call in progress is answered while both listeners are open.
    store.release();
    held.answer().await.unwrap();
    assert_eq!(server.process.ended().await.code(), Some(0));
}
