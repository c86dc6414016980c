//! `sluicectl explain`, as a shell runs it.

use std::process::Command;

use sluicegate_client_testkit::admin::{start, unmatched_response};
use tonic::Status;

async fn explain(server: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicectl"));
    command.env_clear().env("SLUICECTL_ADMIN_SERVER", server);
    command.args(["explain", "--domain", "api", "--descriptor", "tenant=acme"]).args(more);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn exit_code_reports_whether_hits_would_pass() {
    for (would_pass, code, first) in [
        (Some(true), 0, "would pass"),
        (Some(false), 1, "would be refused"),
        (None, 3, "explained from files: no counter was read"),
    ] {
        let (endpoint, _) = start(Ok(unmatched_response(would_pass))).await;
        let (exit, out, err) = explain(&endpoint, &[]).await;
        assert_eq!((exit, err.as_str()), (Some(code), ""));
        let rest = "  (no entries)\n    no limit applies: no limits file has this domain\n";
        assert_eq!(out, format!("{first}\n{rest}"));
    }
    let (endpoint, _) = start(Err(Status::unauthenticated("who are you"))).await;
    let (exit, out, err) = explain(&endpoint, &[]).await;
    assert_eq!((exit, out.as_str()), (Some(3), ""));
    assert_eq!(err, format!("error: {endpoint}: Unauthenticated: who are you\n"));
}

#[tokio::test]
async fn invalid_command_line_exits_with_2() {
    for (arguments, message) in [
        (&["--token-file", "/nowhere/token"][..], "cannot read /nowhere/token"),
        (&["--tls-server-name", "x"], "need an https:// endpoint"),
        (&["--admin-server", "localhost:8082"], "must start with http://"),
        (
            &["--admin-server", "http://limiter.example:8082", "--token-file", "token"],
            "the token would cross the network unencrypted to http://limiter.example:8082",
        ),
    ] {
        let (code, out, err) = explain("http://127.0.0.1:1", arguments).await;
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(err.starts_with("error: ") && err.contains(message), "{err}");
    }
}

#[tokio::test]
async fn help_has_examples_and_exit_codes() {
    let (code, out, _) = explain("http://127.0.0.1:1", &["--help"]).await;
    assert_eq!(code, Some(0));
    for part in ["Try it:", "Exit codes:", "SLUICECTL_ADMIN_SERVER", "http://127.0.0.1:8082"] {
        assert!(out.contains(part), "{part}: {out}");
    }
}
