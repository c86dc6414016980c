//! `sluicegate.admin.v1.AdminService`.

use std::{sync::Arc, time::Instant};

use arc_swap::ArcSwap;
use sluicegate_core::{CounterKey, explain::PeekPlan};
use sluicegate_proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    sluicegate::admin::v1::{
        self as wire, ExplainRequest, ExplainResponse, admin_service_server::AdminService,
    },
};
use sluicegate_store::Stack;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    Names, StatusSources,
    caller::Caller,
    log,
    message_stream::{MessageStream, message_stream},
    resets::{Resets, reset_of},
    rules, status,
    store::PEEK_TIMEOUT,
    tenant::{self, Tenant},
    top,
};
use crate::{
    explain, grpc,
    limits::Snapshot,
    telemetry::{KeyHash, Telemetry},
};

/// The most explanations that are being made at once. Others wait.
const EXPLAINING_MAX: usize = 4;

/// The most tenants whose counters are being listed at once. Others wait.
const LISTING_MAX: usize = 4;

/// The most tenants that are being reset at once. Others wait, but not for those who list.
const RESETTING_MAX: usize = 4;

/// Answers operators.
pub(crate) struct Admin {
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<Stack>,
    telemetry: Arc<Telemetry>,
    names: Names,
    vitals: StatusSources,
    /// Hashes that explanations show, where the log of decisions does.
    shown_hash: Option<Arc<KeyHash>>,
    explaining: Arc<Semaphore>,
    listing: Arc<Semaphore>,
    resetting: Arc<Semaphore>,
    resets: Resets,
}

impl Admin {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        store: Arc<Stack>,
        telemetry: Arc<Telemetry>,
        names: Names,
        vitals: StatusSources,
        shown_hash: Option<Arc<KeyHash>>,
    ) -> Self {
        let resets = Resets::new(Arc::clone(&store), Arc::clone(&telemetry), names.clone());
        Self {
            snapshot,
            store,
            telemetry,
            names,
            vitals,
            shown_hash,
            explaining: Arc::new(Semaphore::new(EXPLAINING_MAX)),
            listing: Arc::new(Semaphore::new(LISTING_MAX)),
            resetting: Arc::new(Semaphore::new(RESETTING_MAX)),
            resets,
        }
    }

    /// The resets in progress, to wait for their end.
    pub(crate) fn resets(&self) -> Resets {
        self.resets.clone()
    }

    /// An explanation by the rules in force, and by the store what it knows by the deadline, and the question that was
    /// put to it.
    async fn explained(
        &self,
        message: RateLimitRequest,
        deadline: Instant,
    ) -> Result<(ExplainResponse, PeekPlan), Status> {
        // Never closed, so there is always a permit to come.
        let permit = Arc::clone(&self.explaining).acquire_owned().await.ok();
        let snapshot = self.snapshot.load_full();
        let (mut explained, question, _permit) = self.by_rules(snapshot, message, permit).await?;
        let peeks = question.peeks();
        if !peeks.is_empty() {
            let answers = self.store.peek(peeks, Some(deadline)).await;
            explain::answer(&mut explained, &question, &answers);
        }
        Ok((explained, question))
    }

    /// The counters of a descriptor, or those of one of its limits.
    async fn counters_of(
        &self,
        asked: wire::DescriptorCounters,
    ) -> Result<Vec<CounterKey>, Status> {
        let wire::DescriptorCounters { domain, descriptor, limit_name } = asked;
        let snapshot = self.snapshot.load_full();
        let unknown = snapshot.rules.domain(&domain).is_none().then(|| tenant::no_domain(&domain));
        let descriptor =
            descriptor.ok_or_else(|| Status::invalid_argument("descriptor must be set"))?;
        let message = RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 0 };
        let permit = Arc::clone(&self.explaining).acquire_owned().await.ok();
        let (explained, question, _permit) = self.by_rules(snapshot, message, permit).await?;
        unknown.map_or(Ok(()), Err)?;
        let limits = explained.descriptors.iter().flat_map(|descriptor| &descriptor.limits);
        let names: Vec<&str> = limits.map(|limit| &*limit.name).collect();
        if !limit_name.is_empty() && !names.contains(&&*limit_name) {
            let has: Vec<&str> = names.iter().copied().filter(|name| !name.is_empty()).collect();
            let but = match (&*has, &*names) {
                ([], []) => "no limit does".to_owned(),
                ([], _) => "those that do have no names".to_owned(),
                (has, _) => format!("these do: {}", has.join(", ")),
            };
            let message =
                format!("no limit of the name {limit_name} applies to the descriptor; {but}");
            return Err(Status::not_found(message));
        }
        let peeks = question.peeks();
        let wanted = names.iter().zip(peeks.iter());
        let wanted = wanted.filter(|(name, _)| limit_name.is_empty() || **name == limit_name);
        Ok(wanted.map(|(_, check)| check.key.clone()).collect())
    }

    /// What these rules say about a request, and the permit, which is free when the work has ended and
    /// not when its caller gives up. The work ends soon after that too.
    async fn by_rules(
        &self,
        snapshot: Arc<Snapshot>,
        message: RateLimitRequest,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(ExplainResponse, PeekPlan, Option<OwnedSemaphorePermit>), Status> {
        let prefix = self.names.prefix().clone();
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
        let explained = explained.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (explained, question) =
            explained.ok_or_else(|| Status::cancelled("the caller has disconnected"))?;
        Ok((explained, question, permit))
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        let deadline = deadline(&request);
        let ExplainRequest { domain, descriptors, hits_addend } = request.into_inner();
        let message = RateLimitRequest { domain, descriptors, hits_addend };
        let (mut explained, question) = self.explained(message, deadline).await?;
        if let Some(hash) = &self.shown_hash {
            explain::hash(&mut explained, &question.peeks(), hash);
        }
        Ok(Response::new(explained))
    }

    type ListRulesStream = MessageStream<wire::ListRulesResponse>;

    async fn list_rules(
        &self,
        request: Request<wire::ListRulesRequest>,
    ) -> Result<Response<Self::ListRulesStream>, Status> {
        Ok(rules::list(self.snapshot.load_full(), request.into_inner()))
    }

    async fn peek_counters(
        &self,
        request: Request<wire::PeekCountersRequest>,
    ) -> Result<Response<wire::PeekCountersResponse>, Status> {
        let deadline = deadline(&request);
        let wire::PeekCountersRequest { domain, descriptors } = request.into_inner();
        let message = RateLimitRequest { domain, descriptors, hits_addend: 0 };
        let (explained, question) = self.explained(message, deadline).await?;
        let peeks = question.peeks();
        let mut hashes = peeks.iter().map(|check| self.names.hash(&check.key));
        let descriptors = explained.descriptors.into_iter().map(|it| wire::PeekedDescriptor {
            entries: it.entries,
            rule: it.rule,
            counters: it
                .limits
                .into_iter()
                .map(|limit| wire::PeekedCounter {
                    limit: Some(limit),
                    key_hash: hashes.next().unwrap_or_default(),
                })
                .collect(),
        });
        let descriptors = descriptors.collect();
        Ok(Response::new(wire::PeekCountersResponse { descriptors }))
    }

    type ListCountersStream = MessageStream<wire::ListCountersResponse>;

    async fn list_counters(
        &self,
        request: Request<wire::ListCountersRequest>,
    ) -> Result<Response<Self::ListCountersStream>, Status> {
        let wire::ListCountersRequest { domain, tenant, limit } = request.into_inner();
        let tenant = Tenant::new(self.snapshot.load_full(), domain, &tenant)?;
        let permit = Arc::clone(&self.listing).acquire_owned().await.ok();
        let (store, names) = (Arc::clone(&self.store), self.names.clone());
        let (sender, response) = message_stream();
        tokio::spawn(async move {
            let _permit = permit;
            tenant::list(tenant, limit, &store, &names, &sender).await;
        });
        Ok(response)
    }

    async fn reset_counter(
        &self,
        request: Request<wire::ResetCounterRequest>,
    ) -> Result<Response<wire::ResetCounterResponse>, Status> {
        use wire::reset_counter_request::Counters;
        let caller = Caller::of(&request);
        let wire::ResetCounterRequest { counters, dry_run } = request.into_inner();
        let (domain, keys) = match counters {
            Some(Counters::Descriptor(asked)) => {
                (Some(asked.domain.clone()), self.counters_of(asked).await?)
            }
            Some(Counters::CounterKey(name)) => {
                let key = self.names.prefix().counter(&name).ok_or_else(|| {
                    Status::invalid_argument(
                        "this is not the name of a counter; they are like s1:fw:60:{api:user=bob}, behind --key-prefix",
                    )
                })?;
                (None, vec![key])
            }
            None => return Err(Status::invalid_argument("descriptor or counter_key must be set")),
        };
        let results = self.resets.counters(caller, domain, keys, reset_of(dry_run)).await?;
        Ok(Response::new(wire::ResetCounterResponse { results }))
    }

    type ResetTenantStream = MessageStream<wire::ResetTenantResponse>;

    async fn reset_tenant(
        &self,
        request: Request<wire::ResetTenantRequest>,
    ) -> Result<Response<Self::ResetTenantStream>, Status> {
        let caller = Caller::of(&request);
        let wire::ResetTenantRequest { domain, tenant, dry_run } = request.into_inner();
        let tenant = Tenant::new(self.snapshot.load_full(), domain, &tenant)?;
        let permit = Arc::clone(&self.resetting).acquire_owned().await.ok();
        let (sender, response) = message_stream();
        self.resets.start_tenant(caller, tenant, reset_of(dry_run), sender, permit);
        Ok(response)
    }

    async fn get_status(
        &self,
        _request: Request<wire::GetStatusRequest>,
    ) -> Result<Response<wire::GetStatusResponse>, Status> {
        Ok(Response::new(status::status(&self.vitals, &self.snapshot.load(), &self.store)))
    }

    async fn top(
        &self,
        request: Request<wire::TopRequest>,
    ) -> Result<Response<wire::TopResponse>, Status> {
        let top = self.telemetry.top.as_ref();
        top::top(top, &self.names, request.get_ref()).map(Response::new)
    }

    async fn get_log_level(
        &self,
        _request: Request<wire::GetLogLevelRequest>,
    ) -> Result<Response<wire::GetLogLevelResponse>, Status> {
        log::level().map(Response::new)
    }

    async fn set_log_level(
        &self,
        request: Request<wire::SetLogLevelRequest>,
    ) -> Result<Response<wire::SetLogLevelResponse>, Status> {
        log::set_level(&request).map(Response::new)
    }
}

/// Deadline of a query of counters.
fn deadline<T>(request: &Request<T>) -> Instant {
    let within = grpc::timeout(request.metadata().as_ref());
    Instant::now() + within.map_or(PEEK_TIMEOUT, |it| it.min(PEEK_TIMEOUT))
}
