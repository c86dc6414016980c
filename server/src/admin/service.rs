//! `sluicegate.admin.v1.AdminService`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use sluicegate_core::explain::Question;
use sluicegate_proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    sluicegate::admin::v1::{ExplainRequest, ExplainResponse, admin_service_server::AdminService},
};
use sluicegate_store::{Stack, redis::KeyPrefix};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::{
    explain,
    grpc::{self, AnswerError},
    limits::Snapshot,
};

/// The most explanations that are being made at once. Others wait.
const EXPLAINING_MAX: usize = 4;

/// How long the store may take to tell how counters stand. A person waits, not Envoy.
const PEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers operators.
pub(crate) struct Admin {
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<Stack>,
    prefix: KeyPrefix,
    explaining: Semaphore,
}

impl Admin {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        store: Arc<Stack>,
        prefix: KeyPrefix,
    ) -> Self {
        Self { snapshot, store, prefix, explaining: Semaphore::new(EXPLAINING_MAX) }
    }

    /// What the rules in force say about a request.
    async fn by_rules(
        &self,
        message: RateLimitRequest,
    ) -> Result<(ExplainResponse, Question), Status> {
        let (snapshot, prefix) = (self.snapshot.load_full(), self.prefix.clone());
        // Off the threads that decide: every rule of a level is looked at.
        let explained = tokio::task::spawn_blocking(move || {
            explain::explain(&snapshot.rules, &message, &prefix)
        });
        let explained = explained.await.map_err(|error| Status::internal(error.to_string()))?;
        explained.map_err(|error: AnswerError| grpc::status(error))
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        let within = grpc::timeout(request.metadata());
        let deadline = Instant::now() + within.map_or(PEEK_TIMEOUT, |it| it.min(PEEK_TIMEOUT));
        let ExplainRequest { domain, descriptors, hits_addend } = request.into_inner();
        let message = RateLimitRequest { domain, descriptors, hits_addend };
        // Never closed, so there is always a permit to come.
        let _permit = self.explaining.acquire().await.ok();
        let (mut explained, question) = self.by_rules(message).await?;
        let peeks = question.peeks();
        if !peeks.is_empty() {
            let answers = self.store.peek(peeks, Some(deadline)).await;
            explain::answer(&mut explained, &question, &answers);
        }
        Ok(Response::new(explained))
    }
}
