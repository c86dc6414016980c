//! `sluicegate.admin.v1.AdminService`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use sluicegate_core::explain::Question;
use sluicegate_proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    sluicegate::admin::v1::{
        ExplainRequest, ExplainResponse, GetLogLevelRequest, GetLogLevelResponse,
        SetLogLevelRequest, SetLogLevelResponse, admin_service_server::AdminService,
    },
};
use sluicegate_store::{Stack, redis::KeyPrefix};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::log;
use crate::{
    explain,
    grpc::{self, AnswerError},
    limits::Snapshot,
    telemetry::KeyHash,
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
    hash: Option<Arc<KeyHash>>,
    explaining: Arc<Semaphore>,
}

impl Admin {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        store: Arc<Stack>,
        prefix: KeyPrefix,
        hash: Option<Arc<KeyHash>>,
    ) -> Self {
        let explaining = Arc::new(Semaphore::new(EXPLAINING_MAX));
        Self { snapshot, store, prefix, hash, explaining }
    }

    /// What the rules in force say about a request, and the permit, which is free when the work has ended and
    /// not when its caller gives up. The work ends soon after that too.
    async fn by_rules(
        &self,
        message: RateLimitRequest,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(ExplainResponse, Question, Option<OwnedSemaphorePermit>), Status> {
        let (snapshot, prefix) = (self.snapshot.load_full(), self.prefix.clone());
        let gone = CancellationToken::new();
        let _cancel_when_dropped = gone.clone().drop_guard();
        // Off the threads that decide: every rule of a level is looked at.
        let explaining = tokio::task::spawn_blocking(move || {
            let wanted = || !gone.is_cancelled();
            let explained =
                explain::explain_while_wanted(&snapshot.rules, &message, &prefix, wanted);
            (explained, permit)
        });
        let (explained, permit) =
            explaining.await.map_err(|error| Status::internal(error.to_string()))?;
        let explained = explained.map_err(|error: AnswerError| grpc::status(error))?;
        let (explained, question) =
            explained.ok_or_else(|| Status::cancelled("nobody waits for the explanation"))?;
        Ok((explained, question, permit))
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        let within = grpc::timeout(request.metadata().as_ref());
        let deadline = Instant::now() + within.map_or(PEEK_TIMEOUT, |it| it.min(PEEK_TIMEOUT));
        let ExplainRequest { domain, descriptors, hits_addend } = request.into_inner();
        let message = RateLimitRequest { domain, descriptors, hits_addend };
        // Never closed, so there is always a permit to come.
        let permit = Arc::clone(&self.explaining).acquire_owned().await.ok();
        let (mut explained, question, _permit) = self.by_rules(message, permit).await?;
        let peeks = question.peeks();
        if let Some(hash) = &self.hash {
            explain::hash(&mut explained, &peeks, hash);
        }
        if !peeks.is_empty() {
            let answers = self.store.peek(peeks, Some(deadline)).await;
            explain::answer(&mut explained, &question, &answers);
        }
        Ok(Response::new(explained))
    }

    async fn get_log_level(
        &self,
        _request: Request<GetLogLevelRequest>,
    ) -> Result<Response<GetLogLevelResponse>, Status> {
        log::level().map(Response::new)
    }

    async fn set_log_level(
        &self,
        request: Request<SetLogLevelRequest>,
    ) -> Result<Response<SetLogLevelResponse>, Status> {
        log::set_level(&request).map(Response::new)
    }
}
