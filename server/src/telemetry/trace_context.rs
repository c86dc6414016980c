//! The trace that a request belongs to, as W3C Trace Context tells it in headers.

use std::str::FromStr as _;

use http::{HeaderMap, HeaderName};
use opentelemetry::{
    SpanId, TraceFlags, TraceId,
    trace::{SpanContext, TraceState},
};

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The caller's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace: TraceId,
    span: SpanId,
    flags: TraceFlags,
}

impl Parent {
    /// The span that the headers name. `None` if they name none, several, or nothing that can be read.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(&TRACEPARENT).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        Self::read(value.as_bytes())
    }

    /// `00-TRACE-SPAN-FLAGS`. Later versions may have more behind it.
    fn read(value: &[u8]) -> Option<Self> {
        let (field, rest) = value.split_at_checked(FIELD)?;
        let [v, w, b'-', ids @ ..] = field else { return None };
        let version = number(&[*v, *w])?;
        let known = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => matches!(rest, [] | [b'-', ..]),
        };
        let (trace, ids) = ids.split_at_checked(32)?;
        let (span, flags) = ids.strip_prefix(b"-")?.split_at_checked(16)?;
        let flags = u8::try_from(number(flags.strip_prefix(b"-")?)?).ok()?;
        let trace = TraceId::from(number(trace)?);
        let span = SpanId::from(u64::try_from(number(span)?).ok()?);
        let valid = known && trace != TraceId::INVALID && span != SpanId::INVALID;
        valid.then_some(Self { trace, span, flags: TraceFlags::new(flags) })
    }

    /// Whether the caller traces the request.
    pub(super) fn is_sampled(self) -> bool {
        self.flags.is_sampled()
    }

    /// The caller's span with the state that the headers carry along.
    pub(super) fn context(self, headers: &HeaderMap) -> SpanContext {
        let Self { trace, span, flags } = self;
        let states = headers.get_all(&TRACESTATE).iter().map(|value| value.to_str());
        // One that cannot be read is as good as none.
        let state = states.collect::<Result<Vec<_>, _>>().ok();
        let state = state.and_then(|state| TraceState::from_str(&state.join(",")).ok());
        SpanContext::new(trace, span, flags, true, state.unwrap_or_default())
    }
}

/// Bytes of version, trace, span and flags.
const FIELD: usize = 2 + 1 + 32 + 1 + 16 + 1 + 2;

/// The number that lower-case hex digits stand for.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
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
    fn a_parent_is_read() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
            let text = format!("00-{TRACE}-{SPAN}-{flags}");
            let parent = Parent::of(&headers(&[(&TRACEPARENT, &text)])).unwrap();
            assert_eq!(parent.trace.to_string(), TRACE);
            assert_eq!(parent.span.to_string(), SPAN);
            assert_eq!(parent.is_sampled(), sampled, "{flags}");
        }
    }

    #[test]
    fn later_versions_may_say_more() {
        for text in [format!("01-{TRACE}-{SPAN}-01"), format!("cc-{TRACE}-{SPAN}-01-more")] {
            assert!(Parent::read(text.as_bytes()).is_some_and(Parent::is_sampled), "{text}");
        }
    }

    #[test]
    fn what_is_no_parent_is_none() {
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
            assert_eq!(Parent::read(text.as_bytes()), None, "{text:?}");
        }
        let text = format!("00-{TRACE}-{SPAN}-01");
        let twice = [(&TRACEPARENT, &*text), (&TRACEPARENT, &*text)];
        let twice: HeaderMap = twice.iter().fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(*name, value.parse().unwrap());
            headers
        });
        assert_eq!(Parent::of(&twice), None);
        assert_eq!(Parent::of(&HeaderMap::new()), None);
    }

    #[test]
    fn the_state_comes_along() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let context = |state: &str| {
            let headers = headers(&[(&TRACEPARENT, &text), (&TRACESTATE, state)]);
            Parent::of(&headers).unwrap().context(&headers)
        };
        assert_eq!(context("a=1,b=2").trace_state().header(), "a=1,b=2");
        for none in ["", "no state", "A=1", "a"] {
            assert_eq!(context(none).trace_state().header(), "", "{none:?}");
        }
        assert!(context("").is_remote() && context("").is_valid());
    }
}
