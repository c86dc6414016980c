//! `sluicectl check`, as a shell runs it.

use std::process::Command;

use sluicegate_client::Endpoint;
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tonic::Status;

use sluicegate_client_testkit::service::{Answer, Service, free_address, response_with_limit};

/// Exit code, standard output and standard error.
type Outcome = (Option<i32>, String, String);

/// Runs the command, the server being named by the environment.
async fn sluicectl(server: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicectl"));
    command.env_clear().env("SLUICECTL_SERVER", server).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

async fn check(server: &Endpoint, more: &[&str]) -> Outcome {
    let command = ["check", "--domain", "api", "--descriptor", "tenant=acme,user=bob"];
    sluicectl(&server.to_string(), &[&command, more].concat()).await
}

#[tokio::test]
async fn allowed_request_exits_with_0() {
    let server = Service::new(response_with_limit(Code::Ok, 9)).start().await;
    let (code, out, err) = check(&server, &[]).await;
    let line = "  tenant=acme, user=bob    9 of 10 per minute left, resets in 42s (per user)";
    assert_eq!((code, out, err), (Some(0), format!("allowed\n{line}\n"), String::new()));
}

#[tokio::test]
async fn refused_request_exits_with_1() {
    let server = Service::new(response_with_limit(Code::OverLimit, 0)).start().await;
    let (code, out, err) = check(&server, &[]).await;
    let line = "  tenant=acme, user=bob    over 10 per minute, retry in 42s (per user)";
    assert_eq!(
        (code, out, err),
        (Some(1), format!("refused, retry in 42s\n{line}\n"), String::new())
    );
}

#[tokio::test]
async fn json_output_is_one_line() {
    let server = Service::new(response_with_limit(Code::OverLimit, 0)).start().await;
    let (code, out, _) = check(&server, &["--output", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, out.lines().count()), (Some(1), 1));
    assert_eq!(json["retry_after_seconds"], 42);
    assert_eq!(json["statuses"][0]["limit"]["name"], "per user");
}

#[tokio::test]
async fn negative_hits_are_sent_as_refunds() {
    let service = Service::new(response_with_limit(Code::Ok, 9));
    let server = service.start().await;
    for (hits, on_request, on_descriptor, negative) in
        [("3", 3, None, false), ("0", 0, Some(0), false), ("-3", 0, Some(3), true)]
    {
        assert_eq!(check(&server, &["--hits", hits]).await.0, Some(0));
        let [(_, received)] = &service.take_requests()[..] else { panic!("not one request") };
        let descriptor = &received.descriptors[0];
        assert_eq!(
            (received.hits_addend, descriptor.hits_addend, descriptor.is_negative_hits),
            (on_request, on_descriptor, negative),
            "--hits {hits}"
        );
    }
}

#[tokio::test]
async fn invalid_command_line_exits_with_2() {
    let server: Endpoint = "http://127.0.0.1:1".parse().unwrap();
    let mistakes: [(&[&str], &str); 6] = [
        (&["--descriptor", "a=1,bob"], "entry 2 (bob) has no `=`"),
        (&["--server", "localhost:8081"], "must start with http://, https:// or unix:"),
        (&["--timeout", "soon"], "expected number"),
        (&["--tls-cert", "client.pem"], "--tls-key"),
        (&["--tls-server-name", "x"], "need an https:// endpoint"),
        (&["--server", "https://x", "--tls-ca", "/none/ca.pem"], "cannot read /none/ca.pem"),
    ];
    for (arguments, message) in mistakes {
        let (code, out, err) = check(&server, arguments).await;
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(err.starts_with("error: ") && err.contains(message), "{arguments:?}: {err}");
    }
}

#[tokio::test]
async fn failed_call_exits_with_3() {
    let unused: Endpoint = format!("http://{}", free_address().await).parse().unwrap();
    let rejecting = Service::new(Answer::Error(Status::invalid_argument("no such thing")));
    let rejecting = rejecting.start().await;
    let silent = Service::new(Answer::Never).start().await;
    for (server, message) in [
        (unused, "unavailable: "),
        (rejecting, "invalid request: no such thing"),
        (silent, "no answer within 100ms"),
    ] {
        let timeout = if message.contains("100ms") { "100ms" } else { "30s" };
        let (code, out, err) = check(&server, &["--timeout", timeout]).await;
        assert_eq!((code, out.as_str()), (Some(3), ""), "{err}");
        assert!(err.starts_with(&format!("error: {server}: {message}")), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}

/// What would clear a terminal, turn the direction of writing around, or begin another line.
#[tokio::test]
async fn control_characters_of_a_server_are_escaped() {
    const HOSTILE: &str = "a\u{1b}[2J\u{9b}b\r\nc\u{202e}d\u{2028}e\u{e0041}";
    let hidden = |text: &str| text.chars().any(|it| it != '\n' && !(' '..='~').contains(&it));
    for error in [Status::invalid_argument(HOSTILE), Status::internal(HOSTILE)] {
        let server = Service::new(Answer::Error(error)).start().await;
        let (code, out, err) = check(&server, &[]).await;
        assert_eq!((code, out.as_str(), err.lines().count()), (Some(3), "", 1), "{err:?}");
        assert!(
            err.contains("a\\u{1b}[2J\\u{9b}b\\r\\nc\\u{202e}d\\u{2028}e\\u{e0041}"),
            "{err:?}"
        );
        assert!(!hidden(&err), "{err:?}");
    }
    let Answer::Response(mut response) = response_with_limit(Code::OverLimit, 0) else {
        panic!("no response")
    };
    for status in &mut response.statuses {
        status.current_limit.as_mut().unwrap().name = HOSTILE.to_owned();
    }
    let server = Service::new(Answer::Response(response)).start().await;
    let (code, out, _) = check(&server, &[]).await;
    let shown: String = out.chars().filter(|it| *it != '\u{fffd}').collect();
    assert_eq!((code, hidden(&shown)), (Some(1), false), "{out:?}");
    let (_, out, _) = check(&server, &["--output", "json"]).await;
    assert!(!hidden(&out), "{out:?}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["statuses"][0]["limit"]["name"], HOSTILE);
}

#[tokio::test]
async fn help_has_examples_and_exit_codes() {
    let (code, out, _) = sluicectl("http://127.0.0.1:1", &["check", "--help"]).await;
    assert_eq!(code, Some(0));
    for part in ["Try it:", "Exit codes:", "[env: SLUICECTL_SERVER", "KEY=VALUE"] {
        assert!(out.contains(part), "{part}: {out}");
    }
}
