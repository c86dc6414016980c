//! Redis with passwords, ACLs and TLS.

use std::{fs, path::Path};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{
    Authority, Cluster, Fleet, Redis, Sentinels, Setup, Sluicegate, binary, finish, hit, until,
};
use tempfile::TempDir;
use tokio::process::Command;

use sluicegate_tests::tools;

const LIMITS: &str = "
domain: api
on_failure: deny
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000}
";

/// A folder with certificates of a CA, and the flags that use them.
struct Certified {
    authority: Authority,
    folder: TempDir,
}

impl Certified {
    fn new() -> Self {
        let (authority, folder) = (Authority::new("redis"), tempfile::tempdir().unwrap());
        fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        authority.issue("sluicegate").write(folder.path(), "client");
        Self { authority, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn flags(&self) -> [String; 6] {
        let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| self.path(name));
        let [ca_flag, cert_flag, key_flag] =
            ["--redis-tls-ca", "--redis-tls-cert", "--redis-tls-key"].map(str::to_owned);
        [ca_flag, ca, cert_flag, cert, key_flag, key]
    }
}

async fn start(store: &str, flags: &[&str]) -> Sluicegate {
    let all = [&["--store", store, "--decision-timeout", "5s"], flags].concat();
    Sluicegate::start(LIMITS, &all).await
}

/// Asserts that Redis decides requests of the server.
async fn assert_let_in(server: Sluicegate) {
    let fleet = Fleet { servers: vec![server] };
    fleet.until_available().await;
    let answer = fleet.servers[0].should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(fleet.remaining(&[("user", "bob")]).await, 999);
}

/// Asserts that Redis rejects the server, and that the server logs the reason.
async fn assert_kept_out(server: Sluicegate, because: &str) {
    until("the reason to be logged", || async {
        let (_, health) = server.get("/healthcheck?verbose").await;
        (health.contains("store: degraded") && health.contains(because)).then_some(())
    })
    .await;
    let answer = server.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn a_password_authenticates() {
    let redis = Setup::new().user("default", "p@ss/word").start().await;
    assert_let_in(start(&redis.url(), &["--redis-password", "p@ss/word"]).await).await;
    redis.query(&["FLUSHALL"]).await;
    let url = redis.url().replace("//", "//:p%40ss%2Fword@");
    assert_let_in(start(&url, &[]).await).await;
    redis.query(&["FLUSHALL"]).await;
    let flags = ["--redis-username", "default", "--redis-password", "p@ss/word"];
    assert_let_in(start(&redis.url(), &flags).await).await;
    assert_kept_out(start(&redis.url(), &["--redis-password", "other"]).await, "WRONGPASS").await;
    assert_kept_out(start(&redis.url(), &[]).await, "NOAUTH").await;
}

/// The documented permissions of an ACL user.
fn documented_permissions() -> Vec<String> {
    let text = fs::read_to_string(tools::workspace().join("docs/redis.md")).unwrap();
    let (_, text) = text.split_once("An ACL user needs").unwrap();
    let (text, _) = text.split_once("keys").unwrap();
    let words = text.split(|it: char| it.is_whitespace() || "`(),".contains(it));
    words.filter(|word| word.starts_with('+')).map(str::to_owned).collect()
}

/// The additional documented permissions to reset counters.
fn permissions_to_reset() -> Vec<String> {
    let text = fs::read_to_string(tools::workspace().join("docs/redis.md")).unwrap();
    let (_, text) = text.split_once("To reset counters it needs `").unwrap();
    let (text, _) = text.split_once('`').unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn an_acl_user_with_documented_permissions_can_count() {
    let redis = Setup::new().user("admin", "admin").start().await;
    let permissions = documented_permissions();
    let mut user = vec!["ACL", "SETUSER", "limiter", "on", ">secret", "~blue:s1:*"];
    user.extend(permissions.iter().map(String::as_str));
    redis.query(&user).await;
    let algorithms =
        ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "gcra"];
    let rule = |algorithm| {
        let limit = format!("{{algorithm: {algorithm}, unit: day, requests_per_unit: 3}}");
        format!("  - key: {algorithm}\n    rate_limit: {limit}\n")
    };
    let rules = algorithms.map(rule).concat();
    let limits = format!("domain: api\non_failure: deny\ndescriptors:\n{rules}");
    let url = redis.url().replace("//", "//limiter:secret@");
    let flags = ["--store", &url, "--key-prefix", "blue:", "--decision-timeout", "5s"];
    let fleet = Fleet::start(1, &limits, &flags).await;
    for algorithm in algorithms {
        for expected in [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
            let answer = fleet.servers[0].should_rate_limit(hit(algorithm, "bob")).await.unwrap();
            assert_eq!(answer.overall_code(), expected, "{algorithm}");
        }
    }
    until("heartbeats", || async {
        (redis.query(&["ZCARD", "blue:s1:replicas"]).await == "1").then_some(())
    })
    .await;
    let reset = async || {
        let mut reset = Command::new(binary("sluicectl"));
        reset.args(["reset", "counter", "--domain", "api", "--descriptor", "gcra=bob"]);
        reset.arg("--admin-server").arg(format!("http://{}", fleet.servers[0].admin));
        finish(reset).await
    };
    let refused = reset().await;
    assert_eq!(refused.code, 3, "{refused:?}");
    let expected = "FailedPrecondition: the user of Redis may not run UNLINK: ";
    assert!(refused.stderr.contains(expected) && refused.stderr.contains("NOPERM"), "{refused:?}");
    let more = permissions_to_reset();
    let mut user = vec!["ACL", "SETUSER", "limiter"];
    user.extend(more.iter().map(String::as_str));
    redis.query(&user).await;
    assert_eq!(reset().await.code, 0);
}

#[tokio::test]
async fn a_corrected_password_file_applies_without_a_restart() {
    let redis = Setup::new().user("default", "right").start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "wrong").unwrap();
    let path = file.path().to_str().unwrap();
    let server = start(&redis.url(), &["--redis-password-file", path]).await;
    until("the server to be kept out", || async {
        server.get("/healthcheck?verbose").await.1.contains("WRONGPASS").then_some(())
    })
    .await;
    fs::write(&file, "right\n").unwrap();
    assert_let_in(server).await;
}

#[tokio::test]
async fn tls_needs_a_server_certificate_of_the_ca() {
    let certified = Certified::new();
    let setup = Setup::new().tls(&certified.authority).config("tls-auth-clients no");
    let redis = setup.start().await;
    let ca = certified.path("ca.pem");
    assert_let_in(start(&redis.url(), &["--redis-tls-ca", &ca]).await).await;
    let other = certified.path("other.pem");
    fs::write(Path::new(&other), Authority::new("other").pem()).unwrap();
    assert_kept_out(start(&redis.url(), &["--redis-tls-ca", &other]).await, "UnknownIssuer").await;
    let plain = redis.url().replace("rediss", "redis");
    assert_kept_out(start(&plain, &[]).await, "").await;
}

#[tokio::test]
async fn mtls_needs_a_client_certificate() {
    let certified = Certified::new();
    let redis = Setup::new().tls(&certified.authority).start().await;
    let flags = certified.flags();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    assert_let_in(start(&redis.url(), &flags).await).await;
    assert_kept_out(start(&redis.url(), &flags[..2]).await, "").await;
}

#[tokio::test]
async fn a_cluster_over_mtls_is_reached() {
    let certified = Certified::new();
    let cluster = Cluster::of(Setup::new().tls(&certified.authority)).await;
    let flags = certified.flags();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    assert_let_in(start(&cluster.url(), &flags).await).await;
}

#[tokio::test]
async fn no_password_is_logged_or_shown() {
    let redis = Redis::start().await;
    let url = redis.url().replace("//", "//:hunter2@");
    let server = start(&url, &["--log-level", "debug"]).await;
    server.should_rate_limit(hit("user", "bob")).await.unwrap();
    for text in [
        server.get("/healthcheck?verbose").await.1,
        server.get("/metrics").await.1,
        server.get("/rlconfig").await.1,
        server.process.output(),
    ] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn sentinels_need_not_have_the_servers_password() {
    let sentinels = Sentinels::with_password("secret").await;
    assert_let_in(start(&sentinels.url(), &["--redis-password", "secret"]).await).await;
    assert_kept_out(start(&sentinels.url(), &["--redis-password", "other"]).await, "WRONGPASS")
        .await;
}

#[tokio::test]
async fn settings_without_effect_are_rejected() {
    for (store, flags) in [
        ("redis://:a@h", ["--redis-password", "b"]),
        ("redis://:a@h", ["--redis-password-file", "b"]),
        ("redis://a:b@h", ["--redis-username", "c"]),
        ("redis://h", ["--redis-username", "a"]),
        ("redis://h", ["--redis-tls-ca", "ca.pem"]),
    ] {
        let all = [&["--limits", "examples/limits", "--store", store], &flags[..]].concat();
        let mut command = Sluicegate::command(&all, &[]);
        command.current_dir(tools::workspace());
        let refused = finish(command).await;
        assert_eq!((refused.code, refused.stderr.lines().count()), (1, 1), "{refused:?}");
        assert!(refused.stderr.contains(flags[0]), "{refused:?}");
    }
}
