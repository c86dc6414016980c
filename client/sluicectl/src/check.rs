//! `sluicectl check`.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::{Failure, OutputFormat, RequestArguments, ServerSettings, descriptor, output};
use sluicegate_client::{Code, Descriptor, Header, Limit, Status, Unit, Verdict};

/// Settings of `sluicectl check`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct CheckSettings {
    /// The request.
    #[command(flatten)]
    pub request: RequestArguments,

    /// Hits to charge. 0 peeks and charges nothing; a negative number is a refund.
    #[arg(long, value_name = "HITS", default_value = "1", allow_negative_numbers = true)]
    pub hits: i64,

    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The server.
    #[command(flatten)]
    pub server: ServerSettings,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl check --domain api --descriptor tenant=acme,user=bob --hits 0

  allowed
    tenant=acme, user=bob    9 of 10 per minute left, resets in 42s

Exit codes:
  0  allowed
  1  refused
  2  invalid command line, or an unusable file in it
  3  no decision: the server is unreachable, too slow, or returned an error";

/// Sends the request and prints the verdict. The exit code is 0 if the request is allowed, 1 if it is refused.
pub(super) async fn run(settings: &CheckSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    let verdict = client
        .check(settings.request.check(settings.hits))
        .await
        .map_err(|source| Failure::Call { endpoint: client.endpoint().clone(), source })?;
    let descriptors = &settings.request.descriptors;
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text => text(descriptors, &verdict),
            OutputFormat::Json => json(descriptors, &verdict).to_string(),
        },
    );
    Ok(if verdict.allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Maximum width of the first column. A longer descriptor shifts the second column of its line.
const COLUMN_MAX: usize = 48;

fn text(descriptors: &[Descriptor], verdict: &Verdict) -> String {
    let mut lines = vec![match verdict.retry_after() {
        _ if verdict.allowed => "allowed".to_owned(),
        Some(wait) => format!("refused, retry in {}", output::format_span(wait)),
        None => "refused".to_owned(),
    }];
    let names: Vec<String> = descriptors.iter().map(descriptor::render).collect();
    let widths = names.iter().map(|name| name.chars().count());
    let width = widths.filter(|width| *width <= COLUMN_MAX).max().unwrap_or_default();
    for (at, status) in verdict.statuses.iter().enumerate() {
        let name = names.get(at).map_or("(not requested)", String::as_str);
        lines.push(format!("  {name:width$}    {}", outcome(status)));
    }
    lines.extend(header_lines("response header", &verdict.response_headers_to_add));
    lines.extend(header_lines("request header", &verdict.request_headers_to_add));
    lines.join("\n")
}

fn outcome(status: &Status) -> String {
    let refused = status.code == Code::OverLimit;
    let Some(limit) = &status.limit else {
        return match status.code {
            _ if status.is_unlimited() => "unlimited".to_owned(),
            // For example, a server that sheds requests refuses before it matches them.
            Code::OverLimit => "refused without a limit".to_owned(),
            Code::Ok => "no limit applies".to_owned(),
            _ => "not decided".to_owned(),
        };
    };
    let remaining = status.remaining;
    let mut text = match (refused, remaining) {
        (true, 0) => format!("over {}", rate(limit)),
        (true, _) => format!("over {}, {remaining} left", rate(limit)),
        (false, _) => format!("{remaining} of {} left", rate(limit)),
    };
    if let Some(span) = status.until_reset.map(output::format_span) {
        text += &format!(", {} in {span}", if refused { "retry" } else { "resets" });
    }
    if !limit.name.is_empty() {
        text += &format!(" ({})", descriptor::printable_bytes(limit.name.as_bytes()));
    }
    text
}

/// `10 per minute`, `10 per 5 minutes`.
fn rate(limit: &Limit) -> String {
    let unit = limit.unit.map_or("unknown unit", Unit::name);
    match limit.unit_multiplier {
        1 => format!("{} per {unit}", limit.requests_per_unit),
        units => format!("{} per {units} {unit}s", limit.requests_per_unit),
    }
}

fn header_lines(kind: &str, headers: &[Header]) -> impl Iterator<Item = String> {
    headers.iter().map(move |header| {
        let (name, value) = (header.name.as_bytes(), &header.value);
        format!(
            "  {kind} {}: {}",
            descriptor::printable_bytes(name),
            descriptor::printable_bytes(value)
        )
    })
}

/// Every key is always present; an unknown value is null.
fn json(descriptors: &[Descriptor], verdict: &Verdict) -> Value {
    let statuses: Vec<Value> = verdict
        .statuses
        .iter()
        .enumerate()
        .map(|(at, status)| json_status(descriptors.get(at), status))
        .collect();
    json!({
        "allowed": verdict.allowed,
        "retry_after_seconds": verdict.retry_after().map(output::seconds),
        "statuses": statuses,
        "response_headers_to_add": json_headers(&verdict.response_headers_to_add),
        "request_headers_to_add": json_headers(&verdict.request_headers_to_add),
    })
}

fn json_status(descriptor: Option<&Descriptor>, status: &Status) -> Value {
    let entries = descriptor.map(|descriptor| {
        let entry = |(key, value)| json!({ "key": lossy(key), "value": lossy(value) });
        descriptor.entries().map(entry).collect::<Vec<_>>()
    });
    let limit = status.limit.as_ref().map(|limit| {
        json!({
            "name": limit.name,
            "requests_per_unit": limit.requests_per_unit,
            "unit": limit.unit.map(Unit::name),
            "unit_multiplier": limit.unit_multiplier,
        })
    });
    json!({
        "descriptor": entries,
        "code": match status.code {
            Code::Ok => "ok",
            Code::OverLimit => "over_limit",
            _ => "unknown",
        },
        "unlimited": status.is_unlimited(),
        "limit": limit,
        "remaining": status.remaining,
        "until_reset_seconds": status.until_reset.map(output::seconds),
    })
}

fn json_headers(headers: &[Header]) -> Vec<Value> {
    let header = |header: &Header| json!({ "name": header.name, "value": lossy(&header.value) });
    headers.iter().map(header).collect()
}

/// Text for JSON, with U+FFFD in place of bytes that are not UTF-8.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use sluicegate_proto::envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
        },
    };

    use super::{Descriptor, Verdict, descriptor, json, text};

    fn limit(requests_per_unit: u32, unit: Unit) -> RateLimit {
        RateLimit { requests_per_unit, unit: unit.into(), ..RateLimit::default() }
    }

    fn status(code: Code, limit: Option<RateLimit>, remaining: u32) -> DescriptorStatus {
        DescriptorStatus {
            code: code.into(),
            duration_until_reset: limit.is_some().then(|| "42s".parse().unwrap()),
            current_limit: limit,
            limit_remaining: remaining,
            ..DescriptorStatus::default()
        }
    }

    fn response(statuses: Vec<DescriptorStatus>) -> RateLimitResponse {
        let refused = statuses.iter().any(|status| status.code() == Code::OverLimit);
        let overall_code = if refused { Code::OverLimit } else { Code::Ok }.into();
        RateLimitResponse { overall_code, statuses, ..RateLimitResponse::default() }
    }

    fn verdict(statuses: Vec<DescriptorStatus>) -> Verdict {
        response(statuses).into()
    }

    fn header(value: &'static str) -> HeaderValue {
        let raw_value = value.into();
        HeaderValue { key: "x-a".to_owned(), raw_value, ..HeaderValue::default() }
    }

    fn descriptors(texts: &[&str]) -> Vec<Descriptor> {
        texts.iter().map(|text| descriptor::parse(text.as_bytes()).unwrap()).collect()
    }

    #[test]
    fn text_of_an_allowed_request() {
        let requested = descriptors(&["tenant=acme,user=bob", "path=/free", "user=root"]);
        let verdict = verdict(vec![
            status(Code::Ok, Some(limit(10, Unit::Minute)), 9),
            status(Code::Ok, None, 0),
            status(Code::Ok, None, u32::MAX),
        ]);
        assert_eq!(
            text(&requested, &verdict),
            "\
allowed
  tenant=acme, user=bob    9 of 10 per minute left, resets in 42s
  path=/free               no limit applies
  user=root                unlimited"
        );
    }

    #[test]
    fn text_of_a_refused_request() {
        let requested = descriptors(&["a=1", "b=2", "c=3"]);
        let named = RateLimit { name: "burst".to_owned(), ..limit(10, Unit::Second) };
        let long = RateLimit { unit_multiplier: Some(5), ..limit(7, Unit::Hour) };
        let verdict = verdict(vec![
            status(Code::OverLimit, Some(named), 0),
            status(Code::OverLimit, Some(long), 2),
            status(Code::OverLimit, None, 0),
        ]);
        assert_eq!(
            text(&requested, &verdict),
            "\
refused, retry in 42s
  a=1    over 10 per second, retry in 42s (burst)
  b=2    over 7 per 5 hours, 2 left, retry in 42s
  c=3    refused without a limit"
        );
    }

    #[test]
    fn long_descriptors_do_not_widen_the_column() {
        let long = format!("a={}", "x".repeat(60));
        let requested = descriptors(&[&long, "b=2"]);
        let no_limit = || status(Code::Ok, None, 0);
        let mut response = response(vec![no_limit(), no_limit(), status(Code::Unknown, None, 0)]);
        response.response_headers_to_add = vec![header("1\r\n")];
        assert_eq!(
            text(&requested, &response.into()),
            format!(
                "\
allowed
  {long}    no limit applies
  b=2    no limit applies
  (not requested)    not decided
  response header x-a: 1\u{fffd}\u{fffd}"
            )
        );
    }

    #[test]
    fn json_has_every_key() {
        let requested = descriptors(&["tenant=acme", "b=2"]);
        let mut response = response(vec![
            status(Code::OverLimit, Some(limit(10, Unit::Minute)), 0),
            status(Code::Ok, None, u32::MAX),
        ]);
        response.request_headers_to_add = vec![header("1")];
        assert_eq!(
            json(&requested, &response.into()),
            serde_json::json!({
                "allowed": false,
                "retry_after_seconds": 42,
                "statuses": [
                    {
                        "descriptor": [{ "key": "tenant", "value": "acme" }],
                        "code": "over_limit",
                        "unlimited": false,
                        "limit": {
                            "name": "",
                            "requests_per_unit": 10,
                            "unit": "minute",
                            "unit_multiplier": 1,
                        },
                        "remaining": 0,
                        "until_reset_seconds": 42,
                    },
                    {
                        "descriptor": [{ "key": "b", "value": "2" }],
                        "code": "ok",
                        "unlimited": true,
                        "limit": null,
                        "remaining": u32::MAX,
                        "until_reset_seconds": null,
                    },
                ],
                "response_headers_to_add": [],
                "request_headers_to_add": [{ "name": "x-a", "value": "1" }],
            })
        );
    }
}
