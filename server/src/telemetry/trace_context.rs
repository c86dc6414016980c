//! The trace of a request, from the headers of W3C Trace Context.
//!
//! OpenTelemetry's propagator parses the headers of requests that the caller samples. It allocates, so the format is
//! checked before, and for other requests only the trace ID is parsed.

use http::{HeaderMap, HeaderName};
use opentelemetry::{
    Context, TraceId,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{SpanContext, TraceContextExt as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The span of the caller.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RemoteParent {
    /// The caller samples the request.
    Sampled(SpanContext),
    /// The caller does not sample the request. Only the trace ID is known.
    NotSampled(TraceId),
}

impl RemoteParent {
    /// The span in the headers; `None` if there is none, an invalid one, or several.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(&TRACEPARENT).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        let parent = value.to_str().ok().filter(|value| has_format(value.as_bytes()))?;
        if !is_sampled(parent) {
            let trace = TraceId::from_hex(parent.get(TRACE_ID)?).ok()?;
            return (trace != TraceId::INVALID).then_some(Self::NotSampled(trace));
        }
        let states = headers.get_all(&TRACESTATE).iter().map(|value| value.to_str());
        // An invalid `tracestate` is ignored.
        let state = states.collect::<Result<Vec<_>, _>>().unwrap_or_default().join(",");
        let context = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &TraceHeaders { parent, state });
        let span = context.span().span_context().clone();
        span.is_valid().then_some(Self::Sampled(span))
    }

    /// The trace ID.
    pub(super) fn trace_id(&self) -> TraceId {
        match self {
            Self::Sampled(span) => span.trace_id(),
            Self::NotSampled(trace) => *trace,
        }
    }
}

/// Length of `00-TRACE-SPAN-FLAGS`: version, trace ID, span ID and flags. Later versions may append fields.
const FIELDS_LENGTH: usize = 2 + 1 + 32 + 1 + 16 + 1 + 2;

/// The position of the trace ID.
const TRACE_ID: std::ops::Range<usize> = 3..35;

/// Whether the value begins with version, trace ID, span ID and flags in lower-case hex digits. Version ff is invalid.
fn has_format(value: &[u8]) -> bool {
    let is_right = |(at, byte): (usize, &u8)| match at {
        2 | 35 | 52 => *byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    value.len() >= FIELDS_LENGTH
        && !value.starts_with(b"ff")
        && value.iter().take(FIELDS_LENGTH).enumerate().all(is_right)
}

/// Whether the sampled flag, the last bit of the flags, is set. The value must have the format.
fn is_sampled(value: &str) -> bool {
    let digit = value.as_bytes().get(FIELDS_LENGTH - 1).copied().map(char::from);
    digit.and_then(|digit| digit.to_digit(16)).is_some_and(|digit| digit % 2 == 1)
}

/// Provides the headers to the propagator.
struct TraceHeaders<'h> {
    parent: &'h str,
    state: String,
}

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => Some(self.parent),
            "tracestate" => Some(&self.state),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT.as_str(), TRACESTATE.as_str()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn headers(pairs: &[(&HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| ((*name).clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn traceparent_is_parsed() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
            let text = format!("00-{TRACE}-{SPAN}-{flags}");
            let parent = RemoteParent::from_headers(&headers(&[(&TRACEPARENT, &text)])).unwrap();
            assert_eq!(parent.trace_id().to_string(), TRACE);
            let RemoteParent::Sampled(span) = parent else {
                assert!(!sampled, "{flags}");
                continue;
            };
            assert_eq!(span.span_id().to_string(), SPAN);
            assert!(sampled, "{flags}");
        }
    }

    #[test]
    fn later_versions_may_have_more_fields() {
        for text in [format!("01-{TRACE}-{SPAN}-01"), format!("cc-{TRACE}-{SPAN}-01-more")] {
            let parent = RemoteParent::from_headers(&headers(&[(&TRACEPARENT, &text)]));
            assert!(matches!(parent, Some(RemoteParent::Sampled(_))), "{text}");
        }
    }

    #[test]
    fn invalid_traceparent_is_ignored() {
        let (no_trace, no_span) = ("0".repeat(32), "0".repeat(16));
        let upper = TRACE.to_uppercase();
        for text in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{no_trace}-{SPAN}-01"),
            format!("00-{TRACE}-{no_span}-01"),
            format!("00-{upper}-{SPAN}-01"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}_{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}_01"),
            format!("0x-{TRACE}-{SPAN}-01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
        ] {
            assert_eq!(
                RemoteParent::from_headers(&headers(&[(&TRACEPARENT, &text)])),
                None,
                "{text:?}"
            );
        }
        let text = format!("00-{TRACE}-{SPAN}-01");
        let twice = [(&TRACEPARENT, &*text), (&TRACEPARENT, &*text)];
        let twice: HeaderMap = twice.iter().fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(*name, value.parse().unwrap());
            headers
        });
        assert_eq!(RemoteParent::from_headers(&twice), None);
        assert_eq!(RemoteParent::from_headers(&HeaderMap::new()), None);
    }

    #[test]
    fn tracestate_is_kept() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let context = |state: &str| {
            let headers = headers(&[(&TRACEPARENT, &text), (&TRACESTATE, state)]);
            match RemoteParent::from_headers(&headers) {
                Some(RemoteParent::Sampled(span)) => span,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(context("a=1,b=2").trace_state().header(), "a=1,b=2");
        for none in ["", "no state", "A=1", "a"] {
            assert_eq!(context(none).trace_state().header(), "", "{none:?}");
        }
        assert!(context("").is_remote() && context("").is_valid());
    }
}
