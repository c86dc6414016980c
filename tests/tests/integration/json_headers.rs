//! Headers and bodies of responses on `/json`.

use reqwest::{Method, Response, header::HeaderMap};
use serde_json::Value;
use sluicegate_tests::Sluicegate;

const LIMITS: &str = "
domain: api
descriptors:
  - {key: two, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: body, response_body: problem_json, rate_limit: {unit: day, requests_per_unit: 1}}
";

async fn send(
    server: &Sluicegate,
    method: Method,
    headers: &[(&str, &str)],
    key: &str,
) -> Response {
    let body = format!(
        "{{\"domain\": \"api\", \"descriptors\": [{{\"entries\": [{{\"key\": \"{key}\", \"value\": \"x\"}}]}}]}}"
    );
    let url = format!("http://{}/json", server.http);
    let request = reqwest::Client::new().request(method, url).body(body);
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.send().await.unwrap()
}

async fn post(server: &Sluicegate, key: &str) -> Response {
    send(server, Method::POST, &[], key).await
}

async fn json(response: Response) -> Value {
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn json_answers_have_the_headers_that_envoy_is_asked_to_add() {
    for format in ["x-ratelimit-draft-03", "x-ratelimit-unix", "ratelimit-draft-11"] {
        let server = Sluicegate::start(LIMITS, &["--response-headers", format]).await;
        for status in [200, 200, 429] {
            let response = post(&server, "two").await;
            assert_eq!(response.status(), status);
            let headers = response.headers().clone();
            assert_eq!(header(&headers, "content-type"), Some("application/json"));
            assert_eq!(headers.contains_key("retry-after"), status == 429, "{headers:?}");
            let body: Value = json(response).await;
            let asked = body["responseHeadersToAdd"].as_array().unwrap();
            assert!(asked.len() > 1, "{body}");
            for added in asked {
                let (name, value) = (added["key"].as_str().unwrap(), added["value"].as_str());
                assert_eq!(header(&headers, name), value, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn json_answers_have_no_rate_limit_headers_by_default() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for status in [200, 200, 429] {
        let response = post(&server, "two").await;
        assert_eq!(response.status(), status);
        let mut names: Vec<_> = response.headers().keys().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(names, ["content-length", "content-type", "date"]);
    }
}

#[tokio::test]
async fn json_answers_of_refusals_have_the_response_body() {
    let server = Sluicegate::start(LIMITS, &["--response-headers", "x-ratelimit-unix"]).await;
    let allowed = post(&server, "body").await;
    assert_eq!(allowed.status(), 200);
    assert_eq!(header(allowed.headers(), "content-type"), Some("application/json"));
    assert_eq!(json(allowed).await["overallCode"], "OK");
    let refused = post(&server, "body").await;
    assert_eq!(refused.status(), 429);
    let headers = refused.headers().clone();
    assert_eq!(header(&headers, "content-type"), Some("application/problem+json"));
    assert_eq!(headers.get_all("content-type").iter().count(), 1);
    let body: Value = json(refused).await;
    assert_eq!(body["title"], "Too Many Requests");
    assert_eq!(header(&headers, "retry-after"), Some(&*body["retryAfter"].to_string()));
}

#[tokio::test]
async fn header_flags_cannot_break_the_framing_of_json_answers() {
    let flags = ["--response-headers", "x-ratelimit-unix", "--limit-header", "Content-Length"];
    let server =
        Sluicegate::start(LIMITS, &[&flags[..], &["--reset-header", "Transfer-Encoding"]].concat())
            .await;
    for status in [200, 200, 429] {
        let response = post(&server, "two").await;
        assert_eq!(response.status(), status);
        assert!(!response.headers().contains_key("transfer-encoding"));
        assert!(json(response).await["overallCode"].is_string());
    }
}

#[tokio::test]
async fn json_sends_no_cors_headers() {
    let server = Sluicegate::start(LIMITS, &["--response-headers", "ratelimit-draft-11"]).await;
    let origin = ("origin", "https://example.com");
    let preflight = [
        origin,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type"),
    ];
    let answers = [
        send(&server, Method::OPTIONS, &preflight, "two").await,
        send(&server, Method::POST, &[origin], "two").await,
        send(&server, Method::POST, &[origin], "two").await,
    ];
    assert_eq!(answers[2].status(), 429);
    for answer in answers {
        let names: Vec<_> =
            answer.headers().keys().map(reqwest::header::HeaderName::as_str).collect();
        assert!(!names.iter().any(|name| name.starts_with("access-control-")), "{names:?}");
        assert!(!names.contains(&"vary"), "{names:?}");
    }
}
