//! The report of a load, as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    LoadSettings,
    drive::{AnswerCounts, EndReason, LoadResult},
    history::HISTORY_MAX,
    verify::{LimitRow, Uncertainty, Verified},
};
use crate::output::Table;

/// Reported quantiles of the latency.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// Share of the requested rate below which the report warns.
const RATE_REACHED: f64 = 0.95;

/// The report as text.
pub(super) fn text(
    settings: &LoadSettings,
    domain: &str,
    result: &LoadResult,
    verified: Option<&Verified>,
) -> String {
    let LoadResult { counts, took, ended, not_sent, .. } = result;
    let mut lines = vec![
        format!(
            "{} requests: {} allowed, {} refused, {} errors",
            counts.sent(),
            counts.allowed,
            counts.refused,
            counts.failed()
        ),
        refusals(counts),
        speed(settings, counts, *took),
    ];
    lines.extend(counts.errors.iter().map(|(error, count)| format!("  {count} times: {error}")));
    match ended {
        EndReason::Done => {}
        EndReason::Interrupted => lines.push("interrupted".to_owned()),
        EndReason::Full => {
            lines.push(format!("ended early: --verify keeps {HISTORY_MAX} requests at most"));
        }
    }
    let reached = per_second(counts, *took);
    if let Some(rate) = settings.rate
        && reached < rate * RATE_REACHED
        && *ended == EndReason::Done
        && counts.sent() as f64 > rate
    {
        lines.push(format!("slower than the {rate} requests/s asked for: try more --callers"));
    }
    if *not_sent > 0 {
        lines.push(format!("{not_sent} requests were due and not sent in time"));
    }
    if let Some(verified) = verified {
        lines.push(String::new());
        verification(&mut lines, settings, domain, verified);
    }
    lines.join("\n")
}

/// The line about the first refused and the last request.
fn refusals(counts: &AnswerCounts) -> String {
    let Some(first) = counts.first_refused else { return "no request is refused".to_owned() };
    let mut line = format!("request {first} is refused");
    if first > 1 && counts.errors.is_empty() {
        line += ", all before it are allowed";
    } else if first > 1 {
        line += ", none before it";
    }
    if counts.last > first {
        let outcome = match counts.last_allowed {
            Some(true) => "allowed",
            Some(false) => "refused",
            None => "not answered",
        };
        line += &format!("; request {}, the last, is {outcome}", counts.last);
    }
    line
}

fn speed(settings: &LoadSettings, counts: &AnswerCounts, took: Duration) -> String {
    let rate = per_second(counts, took);
    let mut line = format!("took {:.1}s, {rate:.0} requests/s", took.as_secs_f64());
    if !counts.latency.is_empty() {
        let quantiles = QUANTILES.map(|(name, share)| {
            format!("{name} {}", millis(counts.latency.value_at_quantile(share)))
        });
        let max = millis(counts.latency.max());
        let since = if settings.rate.is_some() { " since due" } else { "" };
        line += &format!("; latency{since} {}, max {max}", quantiles.join(", "));
    }
    line
}

fn per_second(counts: &AnswerCounts, took: Duration) -> f64 {
    counts.sent() as f64 / took.as_secs_f64().max(f64::EPSILON)
}

/// Formats microseconds as milliseconds.
fn millis(micros: u64) -> String {
    format!("{:.2}ms", micros as f64 / 1e3)
}

fn verification(
    lines: &mut Vec<String>,
    settings: &LoadSettings,
    domain: &str,
    verified: &Verified,
) {
    lines.push(format!(
        "{} hits over-admitted, {} hits under-admitted, in domain {domain}",
        verified.over(),
        verified.under()
    ));
    let mut table = Table::new([
        "RULE",
        "LIMIT",
        "REQUESTS",
        "ALLOWED",
        "REFUSED",
        "ADMITTED",
        "EXACT",
        "OVER",
        "UNDER",
        "WINDOWS BEGIN",
    ]);
    for row in &verified.rows {
        let counts = [row.requests, row.allowed, row.refused].map(|it| it.to_string());
        let [requests, allowed, refused] = counts;
        let hits = [row.admitted, row.exact(), row.over, row.under];
        let [admitted, exact, over, under] = hits.map(|it| match row.not_verified {
            None => it.to_string(),
            Some(_) => "?".to_owned(),
        });
        let begin = match row.window_start_uncertainty {
            None => String::new(),
            Some(Uncertainty::Unknown) => "anywhere".to_owned(),
            Some(Uncertainty::Within(span)) => {
                format!("within {}", millis(span.unsigned_abs()))
            }
        };
        let rule = row.rule.clone().unwrap_or_else(|| "(none)".to_owned());
        let limit = row.limit.clone();
        table.row([rule, limit, requests, allowed, refused, admitted, exact, over, under, begin]);
    }
    lines.push(table.text());
    lines.push(format!(
        "tolerance: clocks drift by at most {}",
        humantime::format_duration(settings.tolerance)
    ));
    for row in &verified.rows {
        let rule = row.rule.as_deref().unwrap_or("(none)");
        if let Some(why) = row.not_verified {
            let refused = row.refused;
            lines.push(format!("not verified: {rule}, {}, {refused} refusals: {why}", row.limit));
        }
        if let Some(requests) = row.server_requests_per_unit {
            lines.push(format!(
                "{rule}, {}: the server's responses show a limit of {requests} requests",
                row.limit
            ));
        }
        if row.used_before > 0 {
            let before = row.used_before;
            lines.push(format!(
                "{rule}, {}: up to {before} hits were used before the first answers; refusals because of them count as correct",
                row.limit
            ));
        }
        for (count, what) in [
            (row.unexplained, "although the limit cannot have been reached"),
            (
                row.explained_by_errors,
                "that are correct only if requests without an answer were charged",
            ),
            (row.not_judged, "that cannot be judged: what was used before is not known"),
        ] {
            if count > 0 && row.not_verified.is_none() {
                lines.push(format!("{rule}, {}: {count} refusals {what}", row.limit));
            }
        }
        if row.window_start_uncertainty == Some(Uncertainty::Unknown) {
            lines.push(format!(
                "{rule}, {}: responses do not show when windows begin, so only an excess over several windows is detected",
                row.limit
            ));
        }
    }
}

/// The report as JSON. Every key is always present; an unknown value is null.
pub(super) fn json(
    settings: &LoadSettings,
    domain: &str,
    result: &LoadResult,
    verified: Option<&Verified>,
) -> Value {
    let LoadResult { counts, took, ended, not_sent, .. } = result;
    let seconds = |micros: u64| micros as f64 / 1e6;
    let latency = (!counts.latency.is_empty()).then(|| {
        let quantile = |share| seconds(counts.latency.value_at_quantile(share));
        let [p50, p90, p99, p99_9] = QUANTILES.map(|(_, share)| quantile(share));
        let max = seconds(counts.latency.max());
        json!({ "p50": p50, "p90": p90, "p99": p99, "p99_9": p99_9, "max": max })
    });
    json!({
        "domain": domain,
        "requests": counts.sent(),
        "allowed": counts.allowed,
        "refused": counts.refused,
        "errors": counts.failed(),
        "not_sent": not_sent,
        "errors_by_reason": counts.errors,
        "first_refused": counts.first_refused,
        "last_allowed": counts.last_allowed,
        "seconds": took.as_secs_f64(),
        "requests_per_second": per_second(counts, *took),
        "latency_seconds": latency,
        "ended": match ended {
            EndReason::Done => "done",
            EndReason::Interrupted => "interrupted",
            EndReason::Full => "full",
        },
        "seed": settings.seed,
        "verified": verified.map(|verified| json!({
            "over_admitted_hits": verified.over(),
            "under_admitted_hits": verified.under(),
            "refusals_unexplained": verified.sum(|row| row.unexplained),
            "refusals_explained_by_errors": verified.sum(|row| row.explained_by_errors),
            "refusals_not_judged": verified.sum(|row| row.not_judged),
            "tolerance_seconds": settings.tolerance.as_secs_f64(),
            "limits": verified.rows.iter().map(limit).collect::<Vec<_>>(),
        })),
    })
}

fn limit(row: &LimitRow) -> Value {
    json!({
        "rule": row.rule,
        "place": row.location,
        "limit": row.limit,
        "server_requests_per_unit": row.server_requests_per_unit,
        "requests": row.requests,
        "allowed": row.allowed,
        "refused": row.refused,
        "errors": row.errors,
        "admitted_hits": row.admitted,
        "exact_hits": row.exact(),
        "over_admitted_hits": row.over,
        "under_admitted_hits": row.under,
        "refusals_unexplained": row.unexplained,
        "refusals_explained_by_errors": row.explained_by_errors,
        "refusals_not_judged": row.not_judged,
        "used_before_hits": row.used_before,
        "aligned_windows": row.window_start_uncertainty.is_some(),
        "windows_begin_within_seconds": match row.window_start_uncertainty {
            Some(Uncertainty::Within(span)) => Some(span as f64 / 1e6),
            Some(Uncertainty::Unknown) | None => None,
        },
        "not_verified": row.not_verified,
    })
}
