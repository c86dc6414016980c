//! The services of the layers.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, request::Parts};
use http_body::Body;
use http_body_util::{Either, Full};
use tower_service::Service;

use super::{BodyFn, FailureMode, HeadFn, PeekedBody, RateLimit, answer::Protocol, body::peek};
use crate::{Check, Descriptor};

/// Body of a response: the inner service's or that of a refusal.
pub type LimitedBody<B> = Either<B, Full<Bytes>>;

type ResponseFuture<B, E> =
    Pin<Box<dyn Future<Output = Result<Response<LimitedBody<B>>, E>> + Send>>;

/// A service that limits requests, see [`RateLimit::layer`].
#[derive(Clone)]
pub struct RateLimitService<S> {
    inner: S,
    limit: Arc<RateLimit>,
    descriptors: Arc<HeadFn>,
}

/// A service that limits requests by their bodies too, see [`RateLimit::layer_with_body`].
#[derive(Clone)]
pub struct RateLimitBodyService<S> {
    inner: S,
    limit: Arc<RateLimit>,
    descriptors: Arc<BodyFn>,
}

/// What becomes of a request.
enum Decision {
    /// The inner service gets it, and these headers are added to the response.
    Pass(HeaderMap),
    /// This is the response.
    Answer(Response<Bytes>),
}

impl RateLimit {
    fn skips(&self, request: &Parts) -> bool {
        self.skip.as_ref().is_some_and(|skip| skip(request))
    }

    async fn decide(&self, request: &Parts, descriptors: Vec<Descriptor>) -> Decision {
        if descriptors.is_empty() {
            return Decision::Pass(HeaderMap::new());
        }
        let descriptors = descriptors.into_iter().map(Descriptor::into_utf8);
        let mut check = Check::new(&*self.domain).descriptors(descriptors);
        if let Some(hits) = &self.hits {
            check = check.hits(hits(request));
        }
        let protocol = Protocol::of(&request.headers);
        match self.client.check(check).await {
            Ok(verdict) if verdict.allowed => Decision::Pass(protocol.added_headers(&verdict)),
            Ok(verdict) => {
                let answer = protocol.refusal(&verdict);
                Decision::Answer(match &self.on_limited {
                    Some(on_limited) => on_limited(request, &verdict, answer),
                    None => answer,
                })
            }
            Err(error) => {
                if let Some(on_error) = &self.on_error {
                    on_error(request, &error);
                }
                match self.failure_mode {
                    FailureMode::Open => Decision::Pass(HeaderMap::new()),
                    FailureMode::Closed => Decision::Answer(protocol.unavailable()),
                }
            }
        }
    }
}

impl Decision {
    /// The response of the inner service, or that of this decision.
    async fn respond<S, B, R>(
        self,
        inner: &mut S,
        request: Request<B>,
    ) -> Result<Response<LimitedBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        match self {
            Self::Answer(answer) => Ok(answer.map(|body| Either::Right(Full::new(body)))),
            Self::Pass(headers) => {
                let mut response = inner.call(request).await?;
                for (name, value) in &headers {
                    response.headers_mut().append(name, value.clone());
                }
                Ok(response.map(Either::Left))
            }
        }
    }
}

impl<S> RateLimitService<S> {
    pub(super) const fn new(inner: S, limit: Arc<RateLimit>, descriptors: Arc<HeadFn>) -> Self {
        Self { inner, limit, descriptors }
    }
}

impl<S> RateLimitBodyService<S> {
    pub(super) const fn new(inner: S, limit: Arc<RateLimit>, descriptors: Arc<BodyFn>) -> Self {
        Self { inner, limit, descriptors }
    }
}

impl<S, B, R> Service<Request<B>> for RateLimitService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let (limit, descriptors) = (Arc::clone(&self.limit), Arc::clone(&self.descriptors));
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let decision = if limit.skips(&head) {
                Decision::Pass(HeaderMap::new())
            } else {
                limit.decide(&head, descriptors(&head)).await
            };
            decision.respond(&mut inner, Request::from_parts(head, body)).await
        })
    }
}

impl<S, B, R> Service<Request<B>> for RateLimitBodyService<S>
where
    S: Service<Request<PeekedBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let (limit, descriptors) = (Arc::clone(&self.limit), Arc::clone(&self.descriptors));
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let (decision, body) = if limit.skips(&head) {
                (Decision::Pass(HeaderMap::new()), PeekedBody::unread(body))
            } else {
                let (start, body) = peek(body).await;
                (limit.decide(&head, descriptors(&head, &start)).await, body)
            };
            decision.respond(&mut inner, Request::from_parts(head, body)).await
        })
    }
}

/// Takes the service that `poll_ready` reported ready, because its clone may not be ready.
fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}

impl<S: fmt::Debug> fmt::Debug for RateLimitService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitService")
            .field("inner", &self.inner)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimitBodyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitBodyService")
            .field("inner", &self.inner)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
