//! Answers of the middleware itself, and the headers that it adds.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING},
};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::Verdict;

const REFUSED: &str = "The rate limit is exceeded.";
const UNAVAILABLE: &str = "The rate limit service does not answer.";

/// The protocol of a request, which its answer has too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc,
}

impl Protocol {
    pub(super) fn of(request: &HeaderMap) -> Self {
        let content_type = request.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        match content_type.and_then(|it| it.strip_prefix(b"application/grpc")) {
            Some([] | [b'+' | b';', ..]) => Self::Grpc,
            // Including grpc-web, which has the status of HTTP.
            _ => Self::Http,
        }
    }

    /// The headers that an allowed request's response gets.
    pub(super) fn added_headers(self, verdict: &Verdict) -> HeaderMap {
        let mut headers = sent_headers(verdict);
        // The body is the handler's.
        headers.remove(CONTENT_TYPE);
        if self == Self::Grpc {
            headers.remove(RETRY_AFTER);
        }
        headers
    }

    pub(super) fn refusal(self, verdict: &Verdict) -> Response<Bytes> {
        let mut headers = sent_headers(verdict);
        let seconds = verdict.retry_after_seconds();
        match self {
            Self::Http => {
                if let (Some(seconds), false) = (seconds, headers.contains_key(RETRY_AFTER)) {
                    headers.insert(RETRY_AFTER, seconds.into());
                }
                if verdict.raw_body.is_empty() {
                    let mut answer = problem(StatusCode::TOO_MANY_REQUESTS, REFUSED, seconds);
                    headers.remove(CONTENT_TYPE);
                    answer.headers_mut().extend(headers);
                    return answer;
                }
                let text = HeaderValue::from_static("text/plain; charset=utf-8");
                headers.entry(CONTENT_TYPE).or_insert(text);
                let mut answer = Response::new(verdict.raw_body.clone());
                *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                *answer.headers_mut() = headers;
                answer
            }
            Self::Grpc => {
                let details = match verdict.delay() {
                    Some(delay) => ErrorDetails::with_retry_info(Some(delay)),
                    None => ErrorDetails::new(),
                };
                headers.remove(CONTENT_TYPE);
                headers.remove(RETRY_AFTER);
                if let Some(seconds) = seconds {
                    headers.insert(RETRY_AFTER, seconds.into());
                }
                let code = Code::ResourceExhausted;
                let mut answer = trailers(Status::with_error_details(code, REFUSED, details));
                answer.headers_mut().extend(headers);
                answer
            }
        }
    }

    pub(super) fn unavailable(self) -> Response<Bytes> {
        match self {
            Self::Http => problem(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, None),
            Self::Grpc => trailers(Status::unavailable(UNAVAILABLE)),
        }
    }
}

/// A gRPC response of trailers only. HTTP/2 sends them as headers.
fn trailers(status: Status) -> Response<Bytes> {
    status.into_http::<()>().map(|()| Bytes::new())
}

/// The body of RFC 9457.
fn problem(status: StatusCode, detail: &str, retry_after: Option<u64>) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or_default();
    let code = status.as_u16();
    let retry_after = retry_after.map(|it| format!(",\"retryAfter\":{it}")).unwrap_or_default();
    let body = format!(
        r#"{{"type":"about:blank","title":"{title}","status":{code},"detail":"{detail}"{retry_after}}}"#
    );
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/problem+json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}

/// The headers of the rate limit service for the caller, without invalid ones.
fn sent_headers(verdict: &Verdict) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for header in &verdict.response_headers_to_add {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let value = HeaderValue::from_maybe_shared(header.value.clone());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    // They describe the body of the service, in place of which another one may be sent.
    headers.remove(CONTENT_LENGTH);
    headers.remove(TRANSFER_ENCODING);
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grpc_is_answered_as_grpc() {
        let protocol = |content_type: &'static str| {
            let value = HeaderValue::from_static(content_type);
            Protocol::of(&HeaderMap::from_iter([(CONTENT_TYPE, value)]))
        };
        for grpc in ["application/grpc", "application/grpc+proto", "application/grpc;a=b"] {
            assert_eq!(protocol(grpc), Protocol::Grpc, "{grpc}");
        }
        for http in ["application/json", "application/grpc-web", "application/grpc-web+proto", ""] {
            assert_eq!(protocol(http), Protocol::Http, "{http}");
        }
        assert_eq!(Protocol::of(&HeaderMap::new()), Protocol::Http);
    }
}
