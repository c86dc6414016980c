//! `response_body` of limits files: what clients of a real Envoy receive, and which rule's body it is.

use serde_json::{Value, json};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};
use sluicegate_tests::{Fleet, Redis, Sluicegate, hit, hits, request, until};

use crate::envoy::{Gateway, by_user};

/// The header and the body that refusals carry because of `response_body`.
fn sent(response: &RateLimitResponse) -> (Option<&str>, &str) {
    let headers = &response.response_headers_to_add;
    let content_type = headers.iter().find(|header| header.key == "content-type");
    let body = std::str::from_utf8(&response.raw_body).unwrap();
    (content_type.map(|header| &*header.value), body)
}

async fn ask(server: &Sluicegate, request: RateLimitRequest) -> RateLimitResponse {
    server.should_rate_limit(request).await.unwrap()
}

/// The body that the server sends; empty for none. Asserts that it has a content type exactly if it is not empty.
async fn body(server: &Sluicegate, request: RateLimitRequest) -> String {
    let response = ask(server, request).await;
    let (content_type, body) = sent(&response);
    assert_eq!(content_type.is_some(), !body.is_empty(), "{response:?}");
    body.to_owned()
}

/// A limits file with these descriptors. The bodies are texts.
fn limits(descriptors: &str) -> String {
    let text = |text: &str| format!("{{content_type: text/plain, text: \"{text}\"}}");
    let domain = text("domain of {domain}: {limit} {window}");
    let rule = text("{rule} {name} {limit} {window} {remaining}");
    let descriptors = descriptors.replace("$body", &format!("response_body: {rule}"));
    format!("domain: api\nresponse_body: {domain}\ndescriptors:\n{descriptors}")
}

#[tokio::test]
async fn clients_of_envoy_receive_body_and_content_type_of_a_refusal_only() {
    let limits = "
domain: edge
descriptors:
  - key: user
    response_body: problem_json
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: user
    value: bob
    response_body: {content_type: text/html, text: \"<p>{rule}: {limit}\"}
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: user
    value: eve
    rate_limit: {unit: day, requests_per_unit: 0}
";
    let gateway = Gateway::with_flags(limits, &[], &[by_user()]).await;
    let ask = async |user: &'static str| gateway.get("/", &[("x-user", user.as_bytes())]).await;
    let allowed = ask("ann").await;
    let without_limit = gateway.get("/", &[]).await;
    assert_eq!((allowed.status, without_limit.status), (200, 200));
    assert_eq!(allowed.header("content-type"), without_limit.header("content-type"));
    assert_eq!(allowed.body, without_limit.body);
    let refused = ask("ann").await;
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (429, Some("application/problem+json"))
    );
    let mut problem: Value = serde_json::from_str(&refused.body).unwrap();
    let wait = problem.as_object_mut().unwrap().remove("retryAfter").unwrap();
    assert!(wait.as_u64().unwrap() > 0, "{wait}");
    let expected = json!({
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "The rate limit is exceeded.",
    });
    assert_eq!(problem, expected);
    let refused = ask("bob").await;
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("text/html")));
    assert_eq!(refused.body, "<p>user=bob: 0");
    // Callers of gRPC services stay able to read the response.
    let grpc = [("x-user", &b"bob"[..]), ("content-type", &b"application/grpc"[..])];
    let grpc = gateway.get("/", &grpc).await;
    assert_eq!((grpc.status, grpc.header("content-type")), (200, Some("application/grpc")));
    assert_eq!((grpc.header("grpc-message"), &*grpc.body), (Some("<p>user=bob: 0"), ""));
    let refused = ask("eve").await;
    assert_eq!((refused.status, refused.header("content-type"), &*refused.body), (429, None, ""));
    gateway.assert_all_decided(1, 4).await;
}

#[tokio::test]
async fn rule_body_wins_over_domain_body() {
    let descriptors = "
  - {key: own, $body, rate_limit: {unit: hour, requests_per_unit: 0, name: n}}
  - {key: inherited, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: none, response_body: none, rate_limit: {unit: hour, requests_per_unit: 0}}
";
    let server = Sluicegate::start(&limits(descriptors), &[]).await;
    assert_eq!(body(&server, hit("own", "x")).await, "own n 0 3600 0");
    assert_eq!(body(&server, hit("inherited", "x")).await, "domain of api: 0 3600");
    assert_eq!(body(&server, hit("none", "x")).await, "");
    // An override replaces the limits of a rule, not its body.
    let overridden = |key: &str| {
        let limit = RateLimitOverride { requests_per_unit: 0, unit: 2, unit_multiplier: None };
        let mut request = hit(key, "x");
        request.descriptors[0].limit = Some(limit);
        request
    };
    assert_eq!(body(&server, overridden("own")).await, "own  0 60 0");
    assert_eq!(body(&server, overridden("unknown")).await, "domain of api: 0 60");
    let (_, listed) = server.get("/rlconfig").await;
    assert!(listed.contains(" default_response_body=text/plain\n"), "{listed}");
    assert!(
        listed.contains(
            "  none: [0 per hour algorithm=fixed_window] counting=free on_failure=local\n"
        )
    );
    assert!(listed.contains(" response_body=text/plain\n"), "{listed}");
}

#[tokio::test]
async fn body_is_of_the_rule_that_refuses_longest() {
    let descriptors = "
  - {key: open, $body, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: day, $body, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: minute, $body, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: hour, $body, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: shadow, shadow_mode: true, $body, rate_limit: {unit: hour, requests_per_unit: 0}}
  - key: several
    response_body: {content_type: text/plain, text: '{name}'}
    limits:
      - {unit: minute, requests_per_unit: 1, name: minute}
      - {window: 366d, requests_per_unit: 1, name: year}
";
    let server = Sluicegate::start(&limits(descriptors), &[]).await;
    let of = async |keys: &[&str]| {
        let descriptors: Vec<_> = keys.iter().map(|key| [(*key, "x")]).collect();
        let descriptors: Vec<_> = descriptors.iter().map(|it| &it[..]).collect();
        body(&server, request(&descriptors)).await
    };
    assert_eq!(of(&["open", "shadow"]).await, "");
    assert_eq!(of(&["minute", "hour"]).await, "");
    // A window that never admits the hits is the longest wait.
    assert_eq!(of(&["shadow", "day", "minute", "open"]).await, "day  0 86400 0");
    assert_eq!(of(&["several"]).await, "");
    assert_eq!(of(&["several", "open"]).await, "year");
    // A peek is refused like a hit; a refund never is.
    assert_eq!(body(&server, hits("day", "x", 0)).await, "day  0 86400 0");
    let mut refund = hit("day", "x");
    refund.descriptors[0].is_negative_hits = true;
    assert_eq!(body(&server, refund).await, "");
}

#[tokio::test]
async fn quota_rules_send_a_body_only_if_they_refuse_together() {
    let descriptors = "
  - {key: a, quota_mode: true, $body, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: b, quota_mode: true, $body, rate_limit: {unit: hour, requests_per_unit: 1}}
";
    let server =
        Sluicegate::start(&limits(descriptors), &["--response-headers", "x-ratelimit-draft-03"])
            .await;
    let both = || request(&[&[("a", "x")], &[("b", "x")]]);
    assert_eq!(body(&server, both()).await, "");
    // The limit that the headers describe.
    assert_eq!(body(&server, both()).await, "a  0 3600 0");
}

#[tokio::test]
async fn nothing_is_sent_if_everything_is_in_shadow_mode() {
    let limits = limits("  - {key: a, rate_limit: {unit: hour, requests_per_unit: 0}}");
    let server = Sluicegate::start(&limits, &["--shadow-mode", "--request-max-bytes", "50"]).await;
    for value in ["x".to_owned(), "x".repeat(51)] {
        let response = ask(&server, hit("a", &value)).await;
        assert_eq!((response.overall_code(), sent(&response)), (Code::Ok, (None, "")));
    }
}

#[tokio::test]
async fn refusal_without_a_decision_has_the_body_of_its_domain() {
    let limits = limits("  - {key: a, rate_limit: {unit: hour, requests_per_unit: 9}}");
    let server = Sluicegate::start(&limits, &["--request-max-bytes", "50"]).await;
    let long = hit("a", &"x".repeat(51));
    assert_eq!(body(&server, long.clone()).await, "domain of api: unknown unknown");
    let unknown = RateLimitRequest { domain: "other".to_owned(), ..long };
    assert_eq!(body(&server, unknown).await, "");
}

#[tokio::test]
async fn failure_policy_and_deny_cache_send_the_body() {
    let descriptors = "
  - {key: closed, on_failure: deny, response_body: openai, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let mut redis = Redis::start().await;
    let store = redis.url();
    let fleet = Fleet::start(1, &limits(descriptors), &["--store", &store]).await;
    let server = &fleet.servers[0];
    let message = async || {
        let response = ask(server, hit("closed", "x")).await;
        let (content_type, body) = sent(&response);
        assert_eq!(content_type, Some("application/json"), "{response:?}");
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "rate_limit_exceeded");
        body["error"]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(body(server, hit("closed", "x")).await, "");
    let cached = [("source", "deny_cache")];
    until("a refusal of the deny cache", || async {
        assert!(message().await.starts_with("Rate limit reached. Please try again in "));
        (server.sum("sluicegate_decisions_total", &cached).await > 0.0).then_some(())
    })
    .await;
    redis.kill().await;
    until("a refusal of the failure policy", || async {
        (message().await == "Rate limit reached. Please try again in 1s.").then_some(())
    })
    .await;
}

#[tokio::test]
async fn reload_changes_the_body() {
    let closed = |body: &str| {
        format!(
            "domain: api\ndescriptors:\n  - {{key: a, {body} rate_limit: {{unit: day, requests_per_unit: 0}}}}"
        )
    };
    let server = Sluicegate::start(&closed(""), &["--poll-interval", "100ms"]).await;
    assert_eq!(body(&server, hit("a", "x")).await, "");
    let replace = async |limits: String, expected: &str| {
        server.replace_limits(&limits);
        until(expected, || async {
            body(&server, hit("a", "x")).await.contains(expected).then_some(())
        })
        .await;
    };
    replace(closed("response_body: anthropic,"), "\"rate_limit_error\"").await;
    let text = "response_body: {content_type: text/plain, text: no},";
    replace(closed(text), "no").await;
    // A file with mistakes changes nothing.
    server.replace_limits(&closed("response_body: {content_type: text/plain, text: '{user}'},"));
    until("a failed load", || async {
        let failed = [("result", "failure")];
        (server.sum("sluicegate_config_loads_total", &failed).await > 0.0).then_some(())
    })
    .await;
    assert_eq!(body(&server, hit("a", "x")).await, "no");
}
