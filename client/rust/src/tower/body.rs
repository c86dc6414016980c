//! Reading the beginning of a body that the inner service reads too.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use serde_json::Value;

/// The maximum size of a body whose fields are read.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// A request's body, as functions of descriptors see it.
#[derive(Clone, Debug)]
pub struct RequestBody {
    bytes: Option<Bytes>,
}

impl RequestBody {
    /// The whole body; `None` if it is larger than 64 KiB, or could not be read to its end.
    #[must_use]
    pub const fn bytes(&self) -> Option<&Bytes> {
        self.bytes.as_ref()
    }

    /// A field of a JSON object, such as the e-mail address of a login: a text, or a number as text.
    ///
    /// Empty if there is none, or the body is larger than 64 KiB or not a JSON object, or has several values for the
    /// field, of which the handler might read another. Use the empty text as a value too, so that such requests share
    /// one limit instead of having none.
    #[must_use]
    pub fn field(&self, name: &str) -> String {
        let field = self.bytes().and_then(|json| field(json, name));
        field.unwrap_or_default()
    }
}

fn field(json: &[u8], name: &str) -> Option<String> {
    let values = fields::parse(json, name)?;
    let (first, others) = values.split_first()?;
    if others.iter().any(|other| other != first) {
        return None;
    }
    match first {
        Value::String(text) => Some(text.clone()),
        // Integers and floats of one value have one text, such as 1 and 1.0.
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map(|it| (it + 0.0).to_string())
        }
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

mod fields {
    //! The values of one field of an object, including those that a map would overwrite.

    use std::fmt;

    use serde::{
        Deserializer as _,
        de::{IgnoredAny, MapAccess, Visitor},
    };
    use serde_json::Value;

    /// `None` if the text is not a JSON object.
    pub(super) fn parse(json: &[u8], name: &str) -> Option<Vec<Value>> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let values = deserializer.deserialize_map(Field(name)).ok()?;
        deserializer.end().ok()?;
        Some(values)
    }

    struct Field<'a>(&'a str);

    impl<'de> Visitor<'de> for Field<'_> {
        type Value = Vec<Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut values = Vec::new();
            while let Some(name) = map.next_key::<String>()? {
                if name == self.0 {
                    values.push(map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(values)
        }
    }
}

/// A body whose beginning was already read. It yields that beginning again, then the rest.
pub struct PeekedBody<B: Body> {
    /// What was read.
    start: Option<Bytes>,
    /// The frame or error that ended the reading.
    last: Option<Result<Frame<Bytes>, B::Error>>,
    /// What was not read; `None` after the end.
    rest: Option<B>,
}

/// Reads a body of up to [`BODY_BYTES_MAX`].
pub(super) async fn peek<B>(mut body: B) -> (RequestBody, PeekedBody<B>)
where
    B: Body<Data = Bytes> + Unpin,
{
    // One buffer: frames of a byte would take a hundred times their size.
    let mut start = Start::default();
    let mut last = None;
    let is_complete = loop {
        match body.frame().await {
            None => break true,
            Some(Err(error)) => {
                last = Some(Err(error));
                break false;
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if start.len() + data.len() <= BODY_BYTES_MAX => start.push(data),
                Ok(data) => {
                    last = Some(Ok(Frame::data(data)));
                    break false;
                }
                // Trailers are the last frame.
                Err(trailers) => {
                    last = Some(Ok(trailers));
                    break true;
                }
            },
        }
    };
    let start = start.into_bytes();
    let is_larger = matches!(&last, Some(Ok(frame)) if frame.is_data());
    let request_body = RequestBody { bytes: is_complete.then(|| start.clone()) };
    let start = Some(start).filter(|start| !start.is_empty());
    (request_body, PeekedBody { start, last, rest: is_larger.then_some(body) })
}

/// Data that was read: the only frame, or a copy of several.
#[derive(Default)]
struct Start {
    first: Bytes,
    all: BytesMut,
}

impl Start {
    fn len(&self) -> usize {
        self.first.len().max(self.all.len())
    }

    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&self.first);
        }
        self.all.extend_from_slice(&data);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

impl<B: Body> PeekedBody<B> {
    /// A body of which nothing was read.
    pub(super) const fn unread(body: B) -> Self {
        Self { start: None, last: None, rest: Some(body) }
    }
}

// Only the body itself is pinned, and it is `Unpin`.
impl<B: Body + Unpin> Unpin for PeekedBody<B> {}

impl<B> Body for PeekedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(start) = self.start.take() {
            return Poll::Ready(Some(Ok(Frame::data(start))));
        }
        if let Some(last) = self.last.take() {
            return Poll::Ready(Some(last));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.start.is_none()
            && self.last.is_none()
            && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let last = self.last.as_ref().and_then(|last| last.as_ref().ok()?.data_ref());
        let read =
            [self.start.as_ref(), last].into_iter().flatten().map(|it| it.len() as u64).sum();
        if matches!(self.last, Some(Err(_))) {
            let mut hint = SizeHint::new();
            hint.set_lower(read);
            return hint;
        }
        let Some(rest) = &self.rest else { return SizeHint::with_exact(read) };
        let rest = rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint
    }
}

impl<B: Body> fmt::Debug for PeekedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeekedBody").field("start", &self.start).finish_non_exhaustive()
    }
}
