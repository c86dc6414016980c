//! Middleware for servers with tower, such as axum and tonic.
//!
//! [`RateLimit`] holds the options. [`RateLimit::layer`] makes a layer whose descriptors come from the request's head;
//! [`RateLimit::layer_with_body`] one that reads the body too, for fields of a JSON body.
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use sluicegate_client::{Client, Descriptor, tower::{RateLimit, client_ip}};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("http://localhost:8081".parse()?).connect_lazy()?;
//! let limit = RateLimit::new(&client, "web")
//!     .layer(|request| [Descriptor::from([("remote_address", client_ip(request, 0))])]);
//! let app: Router = Router::new().route("/", get(|| async { "hello\n" })).layer(limit);
//! # Ok(())
//! # }
//! ```
//!
//! # Answers
//!
//! An allowed request reaches the inner service, and the headers that the rate limit service sends are added to its
//! response. A refused one is answered with status 429, `Retry-After`, those headers, and the body of the rate limit
//! service or `application/problem+json`. A gRPC call is answered with `RESOURCE_EXHAUSTED`, `google.rpc.RetryInfo` and
//! `retry-after` in the trailing metadata.
//!
//! If a check fails, the [`FailureMode`] applies. A refusal is not a failure, nor is overload of the rate limit
//! service, which refuses.

mod answer;
mod body;
mod request_values;
mod service;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, request::Parts};
use tower_layer::Layer;

use crate::{CheckError, Client, Descriptor, Verdict};

pub use body::{PeekedBody, RequestBody};
pub use request_values::{PeerAddr, client_ip, header};
pub use service::{LimitedBody, RateLimitBodyService, RateLimitService};

/// What happens to a request whose check fails: the service does not answer, or does not apply an override.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureMode {
    /// The request passes, as in Envoy by default.
    #[default]
    Open,
    /// The request is answered with status 503, a gRPC call with `UNAVAILABLE`.
    Closed,
}

/// Options of a layer that limits requests.
///
/// Functions get the head of the request: method, URI, headers, and extensions such as the user that an outer layer
/// authenticated.
#[derive(Clone)]
#[must_use]
pub struct RateLimit {
    client: Client,
    domain: String,
    failure_mode: FailureMode,
    hits: Option<Arc<HitsFn>>,
    skip: Option<Arc<SkipFn>>,
    on_limited: Option<Arc<OnLimitedFn>>,
    on_error: Option<Arc<OnErrorFn>>,
}

type HitsFn = dyn Fn(&Parts) -> u64 + Send + Sync;
type SkipFn = dyn Fn(&Parts) -> bool + Send + Sync;
type OnLimitedFn = dyn Fn(&Parts, &Verdict, Response<Bytes>) -> Response<Bytes> + Send + Sync;
type OnErrorFn = dyn Fn(&Parts, &CheckError) + Send + Sync;
type HeadFn = dyn Fn(&Parts) -> Vec<Descriptor> + Send + Sync;
type BodyFn = dyn Fn(&Parts, &RequestBody) -> Vec<Descriptor> + Send + Sync;

impl RateLimit {
    /// Limits of a domain, which selects the limits file.
    pub fn new(client: &Client, domain: impl Into<String>) -> Self {
        Self {
            client: client.clone(),
            domain: domain.into(),
            failure_mode: FailureMode::Open,
            hits: None,
            skip: None,
            on_limited: None,
            on_error: None,
        }
    }

    /// Sets what happens to a request whose check fails. Default: [`FailureMode::Open`].
    pub const fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.failure_mode = mode;
        self
    }

    /// Sets the time for the answer of the service. Default: the client's deadline, 100 ms.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.client = self.client.with_deadline(timeout);
        self
    }

    /// Sets the hits of a request. Default: one hit. 0 is a [`peek`](crate::Check::peek).
    pub fn hits(mut self, hits: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.hits = Some(Arc::new(hits));
        self
    }

    /// Sets which requests are not limited.
    pub fn skip(mut self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.skip = Some(Arc::new(skip));
        self
    }

    /// Sets the answer to a refused request. The function gets the default answer, with all headers, and returns that
    /// or another one.
    pub fn on_limited(
        mut self,
        answer: impl Fn(&Parts, &Verdict, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.on_limited = Some(Arc::new(answer));
        self
    }

    /// Sets a function that is called with each failed check, before the failure mode applies, for example to log it.
    pub fn on_error(
        mut self,
        on_error: impl Fn(&Parts, &CheckError) + Send + Sync + 'static,
    ) -> Self {
        self.on_error = Some(Arc::new(on_error));
        self
    }

    /// A layer that limits each request by these descriptors. A request without descriptors is not limited.
    pub fn layer<D: IntoIterator<Item = Descriptor>>(
        self,
        descriptors: impl Fn(&Parts) -> D + Send + Sync + 'static,
    ) -> RateLimitLayer {
        let descriptors = move |request: &Parts| descriptors(request).into_iter().collect();
        RateLimitLayer { limit: Arc::new(self), descriptors: Arc::new(descriptors) }
    }

    /// A layer that limits each request by these descriptors, which may depend on the request's body. A request without
    /// descriptors is not limited.
    ///
    /// The layer reads up to 64 KiB of the body, and the inner service gets the whole body as [`PeekedBody`]. A timeout
    /// for slow bodies belongs outside of this layer.
    pub fn layer_with_body<D: IntoIterator<Item = Descriptor>>(
        self,
        descriptors: impl Fn(&Parts, &RequestBody) -> D + Send + Sync + 'static,
    ) -> RateLimitBodyLayer {
        let descriptors = move |request: &Parts, body: &RequestBody| {
            descriptors(request, body).into_iter().collect()
        };
        RateLimitBodyLayer { limit: Arc::new(self), descriptors: Arc::new(descriptors) }
    }
}

/// A layer that limits requests, see [`RateLimit::layer`].
#[derive(Clone)]
pub struct RateLimitLayer {
    limit: Arc<RateLimit>,
    descriptors: Arc<HeadFn>,
}

/// A layer that limits requests by their bodies too, see [`RateLimit::layer_with_body`].
#[derive(Clone)]
pub struct RateLimitBodyLayer {
    limit: Arc<RateLimit>,
    descriptors: Arc<BodyFn>,
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimitService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService::new(inner, Arc::clone(&self.limit), Arc::clone(&self.descriptors))
    }
}

impl<S> Layer<S> for RateLimitBodyLayer {
    type Service = RateLimitBodyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitBodyService::new(inner, Arc::clone(&self.limit), Arc::clone(&self.descriptors))
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, domain, failure_mode, .. } = self;
        f.debug_struct("RateLimit")
            .field("client", client)
            .field("domain", domain)
            .field("failure_mode", failure_mode)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl fmt::Debug for RateLimitBodyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitBodyLayer").field("limit", &self.limit).finish_non_exhaustive()
    }
}
