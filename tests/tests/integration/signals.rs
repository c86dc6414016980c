//! Signals to a running server.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::FileExt,
    path::Path,
    process::Stdio,
};

use nix::{pty::openpty, sys::signal::Signal};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{
    Authority, HangingStore, Mode, Process, Proxy, Sluicegate, binary, finish, hit,
};
use tokio::{net::TcpListener, process::Command};

/// Without polling, only a signal makes the server check files whose changes are not reported.
const NO_POLL: [&str; 2] = ["--poll-interval", "1h"];

fn limits(requests: usize) -> String {
    format!(
        "domain: api\ndescriptors:\n  - key: user\n    rate_limit: {{unit: day, requests_per_unit: {requests}}}\n"
    )
}

/// Writes a file through another hard link, which causes no notification in its folder.
fn rewrite(elsewhere: &Path, name: &str, text: &str) {
    let file = fs::OpenOptions::new().write(true).open(elsewhere.join(name)).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
    file.set_len(text.len().try_into().unwrap()).unwrap();
}

#[tokio::test]
async fn sighup_reloads_limits_tls_files_and_the_admin_token() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let authority = Authority::new("ours");
    authority.issue("127.0.0.1").write(elsewhere.path(), "server");
    fs::write(elsewhere.path().join("limits.yaml"), limits(10)).unwrap();
    fs::write(elsewhere.path().join("token"), "the-first-of-the-tokens\n").unwrap();
    let path = |name: &str| {
        let path = folder.path().join(name);
        fs::hard_link(elsewhere.path().join(name), &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let [file, token, cert, key] = ["limits.yaml", "token", "server.pem", "server.key"].map(path);
    let flags = ["--limits", &file, "--admin-token-file", &token];
    let tls = ["--grpc-tls-cert", &cert, "--grpc-tls-key", &key];
    let server = Sluicegate::start_with(folder, &[&flags[..], &tls, &NO_POLL].concat()).await;

    // Until all have checked their files once without a signal.
    server.process.signal(Signal::SIGHUP);
    server.process.printed("limits files unchanged", 1).await;
    let new = authority.issue("127.0.0.1");
    rewrite(elsewhere.path(), "server.pem", &new.certificate);
    rewrite(elsewhere.path(), "server.key", &new.key);
    rewrite(elsewhere.path(), "token", "another-token-of-some-length\n");
    rewrite(elsewhere.path(), "limits.yaml", &limits(7));
    server.process.signal(Signal::SIGHUP);
    server
        .process
        .printed("reloading limits, TLS files, the admin token and usage tenants", 2)
        .await;
    for taken_up in ["limits reloaded", "TLS files reloaded", "admin token reloaded"] {
        server.process.printed(taken_up, 1).await;
    }
    assert!(server.get("/rlconfig").await.1.contains("user: [7 per day"));
    let loads = "sluicegate_tls_loads_total{result=\"success\"}";
    assert_eq!(server.metric(loads).await, 1.0);
    for (shown, code) in [("the-first-of-the-tokens", 3), ("another-token-of-some-length", 0)] {
        let mut status = Command::new(binary("sluicectl"));
        let shown_file = elsewhere.path().join("shown");
        fs::write(&shown_file, shown).unwrap();
        status.args(["status", "--admin-server", &format!("http://{}", server.admin)]);
        status.arg("--token-file").arg(shown_file);
        assert_eq!(finish(status).await.code, code, "{shown}");
    }
    assert!(server.stop().await.success());
}

#[tokio::test]
async fn sighup_logs_the_mistakes_of_rejected_files_again() {
    let server = Sluicegate::start(&limits(10), &NO_POLL).await;
    server.replace_limits("domain: api\ndescriptors: 5\n");
    server.process.printed("descriptors: a number is not valid here", 1).await;
    server.process.signal(Signal::SIGHUP);
    server.process.printed("descriptors: a number is not valid here", 2).await;
    server.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert!(server.stop().await.success());
}

#[tokio::test]
async fn sigusr1_and_sigusr2_are_logged_and_change_nothing() {
    let mut server = Sluicegate::start(&limits(10), &[]).await;
    server.process.signal(Signal::SIGUSR1);
    server.process.printed("signal=SIGUSR1", 1).await;
    server.process.signal(Signal::SIGUSR2);
    server.process.printed("signal=SIGUSR2", 1).await;
    let answer = server.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    server.process.assert_running();
    assert!(server.stop().await.success());
}

/// With a Redis that accepts connections and does not reply.
#[tokio::test]
async fn stop_signals_end_a_starting_server_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    fs::write(&file, limits(10)).unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT] {
        let redis = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", redis.local_addr().unwrap());
        let flags = ["--limits", file.to_str().unwrap(), "--store", &url];
        let times = ["--redis-connect-timeout", "1h", "--drain-delay", "1h"];
        let flags = [&flags[..], &times].concat();
        let mut process = Process::start(Sluicegate::command(&flags, &[]));
        let _silent = redis.accept().await.unwrap();
        process.signal(signal);
        assert_eq!(process.ended().await.code(), Some(0), "{}", process.output());
        let log = process.output();
        assert!(log.contains("stopped before serving") && !log.contains("serving grpc"), "{log}");
    }
}

#[tokio::test]
async fn a_long_redis_connect_timeout_does_not_delay_serving() {
    let silent = Proxy::start("127.0.0.1:1").await;
    silent.set(Mode::Swallow);
    let url = format!("redis://{}", silent.address());
    let flags = ["--store", &url, "--redis-connect-timeout", "1h"];
    let server = Sluicegate::start(&limits(10), &flags).await;
    assert_eq!(server.get("/livez").await.0, 200);
    let answer = server.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    assert!(server.stop().await.success());
}

#[tokio::test]
async fn sigint_stops_without_the_drain_delay() {
    let mut server = Sluicegate::start(&limits(10), &["--drain-delay", "1h"]).await;
    server.process.signal(Signal::SIGINT);
    assert_eq!(server.process.ended().await.code(), Some(0), "{}", server.process.output());
    assert!(server.process.output().ends_with("stopped\n"));
}

#[tokio::test]
async fn a_second_sigint_or_sigterm_ends_a_drain_immediately() {
    for (second, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let mut server = Sluicegate::start(&limits(10), &["--drain-delay", "1h"]).await;
        server.process.signal(Signal::SIGTERM);
        server.process.printed("draining", 1).await;
        server.process.signal(second);
        assert_eq!(server.process.ended().await.code(), Some(code), "{second}");
        let log = server.process.output();
        assert!(log.contains(&format!("signal={:?}", second.as_str())), "{log}");
    }
}

#[tokio::test]
async fn a_second_sigint_does_not_wait_for_calls_in_progress() {
    let mut store = HangingStore::start().await;
    let flags = [&store.arguments()[..], &["--drain-timeout", "1h"]].concat();
    let mut server = Sluicegate::start(&limits(10), &flags).await;
    let _held = store.hold(&server, hit("user", "bob")).await;
    server.process.signal(Signal::SIGINT);
    server.process.printed("draining", 1).await;
    server.process.signal(Signal::SIGINT);
    assert_eq!(server.process.ended().await.code(), Some(130), "{}", server.process.output());
}

#[tokio::test]
async fn a_server_in_a_terminal_prints_a_first_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    fs::write(&file, limits(10)).unwrap();
    let mut command = Sluicegate::command(&["--limits", file.to_str().unwrap()], &[]);
    let terminal = openpty(None, None).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(terminal.slave));
    let mut server = command.kill_on_drop(true).spawn().unwrap();
    // The command also has the terminal open, so that reading would not end with the server.
    drop(command);
    let printed = tokio::task::spawn_blocking(move || {
        let lines = BufReader::new(fs::File::from(terminal.master)).lines();
        // On Linux, reading a closed terminal is an error.
        let mut lines = lines.map_while(Result::ok);
        lines.find_map(|line| Some(line.split_once("Try it: ")?.1.to_owned()))
    });
    let request = printed.await.unwrap().expect("no request is printed");
    let curl = Command::new("bash").args(["-c", &request]).output().await.unwrap();
    let answer = String::from_utf8(curl.stdout).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"currentLimit\""),
        "{answer}"
    );
    server.kill().await.unwrap();
}

#[tokio::test]
async fn a_server_without_a_terminal_prints_no_request() {
    let server = Sluicegate::start(&limits(10), &[]).await;
    assert!(!server.process.output().contains("Try it"));
    assert!(server.stop().await.success());
}

/// The server continues to drain.
#[tokio::test]
async fn signals_do_not_cut_a_drain_short() {
    let mut server = Sluicegate::start(&limits(10), &["--drain-delay", "2s"]).await;
    server.process.signal(Signal::SIGTERM);
    server.process.printed("draining", 1).await;
    for signal in [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGQUIT] {
        server.process.signal(signal);
    }
    let answer = server.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(server.process.ended().await.code(), Some(0));
    assert!(server.process.output().ends_with("stopped\n"));
}
