//! The implementation of `sluicegate.admin.v1.AdminService`.

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
    CounterNames, StatusSources,
    caller::Caller,
    log_level,
    message_stream::{MessageStream, message_stream},
    resets::{Resets, reset_mode},
    rules, status,
    store_calls::PEEK_TIMEOUT,
    tenant::{self, Tenant},
    top,
};
use crate::{
    explain, grpc,
    limits::Snapshot,
    telemetry::{KeyHasher, Metrics},
};

/// The most concurrent explanations. Others wait.
const EXPLAINING_MAX: usize = 4;

/// The most tenants whose counters are listed concurrently. Others wait.
const LISTING_MAX: usize = 4;

/// The most tenants that are reset concurrently. Others wait. Independent of [`LISTING_MAX`].
const RESETTING_MAX: usize = 4;

/// The admin service.
pub(crate) struct Admin {
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<Stack>,
    metrics: Arc<Metrics>,
    names: CounterNames,
    status: StatusSources,
    /// Key hashes in explanations. `None` if there is no decision log to compare them with.
    key_hasher: Option<Arc<KeyHasher>>,
    explaining: Arc<Semaphore>,
    listing: Arc<Semaphore>,
    resetting: Arc<Semaphore>,
    resets: Resets,
}

impl Admin {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        store: Arc<Stack>,
        metrics: Arc<Metrics>,
        names: CounterNames,
        status: StatusSources,
        key_hasher: Option<Arc<KeyHasher>>,
    ) -> Self {
        let resets = Resets::new(Arc::clone(&store), Arc::clone(&metrics), names.clone());
        Self {
            snapshot,
            store,
            metrics,
            names,
            status,
            key_hasher,
            explaining: Arc::new(Semaphore::new(EXPLAINING_MAX)),
            listing: Arc::new(Semaphore::new(LISTING_MAX)),
            resetting: Arc::new(Semaphore::new(RESETTING_MAX)),
            resets,
        }
    }

    /// The resets in progress.
    pub(crate) fn resets(&self) -> Resets {
        self.resets.clone()
    }

    /// Explains a request by the rules in force, and adds the states of its counters that the store reports before the
    /// deadline.
    async fn explain_with_counters(
        &self,
        message: RateLimitRequest,
        deadline: Instant,
    ) -> Result<(ExplainResponse, PeekPlan), Status> {
        // The semaphore is never closed, so there is always a permit.
        let permit = Arc::clone(&self.explaining).acquire_owned().await.ok();
        let snapshot = self.snapshot.load_full();
        let explained = self.explain_by_rules(snapshot, message, permit).await?;
        let (mut explanation, peek_plan, _permit) = explained;
        let peeks = peek_plan.peeks();
        if !peeks.is_empty() {
            let answers = self.store.peek(peeks, Some(deadline)).await;
            explain::add_counter_states(&mut explanation, &peek_plan, &answers);
        }
        Ok((explanation, peek_plan))
    }

    /// The counters of a descriptor, or only that of its limit with a name.
    async fn counters_of(
        &self,
        request: wire::DescriptorCounters,
    ) -> Result<Vec<CounterKey>, Status> {
        let wire::DescriptorCounters { domain, descriptor, limit_name } = request;
        let snapshot = self.snapshot.load_full();
        let unknown = snapshot.rules.domain(&domain).is_none().then(|| tenant::no_domain(&domain));
        let descriptor =
            descriptor.ok_or_else(|| Status::invalid_argument("descriptor must be set"))?;
        let message = RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 0 };
        let permit = Arc::clone(&self.explaining).acquire_owned().await.ok();
        let explained = self.explain_by_rules(snapshot, message, permit).await?;
        let (explanation, peek_plan, _permit) = explained;
        unknown.map_or(Ok(()), Err)?;
        let limits = explanation.descriptors.iter().flat_map(|descriptor| &descriptor.limits);
        let names: Vec<&str> = limits.map(|limit| &*limit.name).collect();
        if !limit_name.is_empty() && !names.contains(&&*limit_name) {
            let named: Vec<&str> = names.iter().copied().filter(|name| !name.is_empty()).collect();
            let applicable = match (&*named, &*names) {
                ([], []) => "no limit does".to_owned(),
                ([], _) => "those that do have no names".to_owned(),
                (named, _) => format!("these do: {}", named.join(", ")),
            };
            let message = format!(
                "no limit of the name {limit_name} applies to the descriptor; {applicable}"
            );
            return Err(Status::not_found(message));
        }
        let peeks = peek_plan.peeks();
        let wanted = names.iter().zip(peeks.iter());
        let wanted = wanted.filter(|(name, _)| limit_name.is_empty() || **name == limit_name);
        Ok(wanted.map(|(_, check)| check.key.clone()).collect())
    }

    /// Explains a request by these rules, on a blocking thread that holds the permit. If the caller disconnects, the
    /// explanation stops soon, and the permit is released then.
    async fn explain_by_rules(
        &self,
        snapshot: Arc<Snapshot>,
        message: RateLimitRequest,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(ExplainResponse, PeekPlan, Option<OwnedSemaphorePermit>), Status> {
        let prefix = self.names.prefix().clone();
        let cancelled = CancellationToken::new();
        let _cancel_when_dropped = cancelled.clone().drop_guard();
        // On a blocking thread, because an explanation visits all rules of a level.
        let explaining = tokio::task::spawn_blocking(move || {
            let is_wanted = || !cancelled.is_cancelled();
            let explained =
                explain::explain_until_cancelled(&snapshot.rules, &message, &prefix, is_wanted);
            (explained, permit)
        });
        let (explained, permit) =
            explaining.await.map_err(|error| Status::internal(error.to_string()))?;
        let explained = explained.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (explanation, peek_plan) =
            explained.ok_or_else(|| Status::cancelled("the caller has disconnected"))?;
        Ok((explanation, peek_plan, permit))
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
        let (mut explanation, peek_plan) = self.explain_with_counters(message, deadline).await?;
        if let Some(hasher) = &self.key_hasher {
            explain::add_key_hashes(&mut explanation, &peek_plan.peeks(), hasher);
        }
        Ok(Response::new(explanation))
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
        let (explanation, peek_plan) = self.explain_with_counters(message, deadline).await?;
        let peeks = peek_plan.peeks();
        let mut hashes = peeks.iter().map(|check| self.names.hash(&check.key));
        let descriptors = explanation.descriptors.into_iter().map(|it| wire::PeekedDescriptor {
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
            Some(Counters::Descriptor(descriptor)) => {
                (Some(descriptor.domain.clone()), self.counters_of(descriptor).await?)
            }
            Some(Counters::CounterKey(name)) => {
                let key = self.names.prefix().counter(&name).ok_or_else(|| {
                    Status::invalid_argument(
                        "not the name of a counter; example: s1:fw:60:{api:user=bob}, with --key-prefix in front",
                    )
                })?;
                (None, vec![key])
            }
            None => return Err(Status::invalid_argument("descriptor or counter_key must be set")),
        };
        let results = self.resets.reset_counters(caller, domain, keys, reset_mode(dry_run)).await?;
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
        self.resets.start_tenant_reset(caller, tenant, reset_mode(dry_run), sender, permit);
        Ok(response)
    }

    async fn get_status(
        &self,
        _request: Request<wire::GetStatusRequest>,
    ) -> Result<Response<wire::GetStatusResponse>, Status> {
        Ok(Response::new(status::status(&self.status, &self.snapshot.load(), &self.store)))
    }

    async fn top(
        &self,
        request: Request<wire::TopRequest>,
    ) -> Result<Response<wire::TopResponse>, Status> {
        let top = self.metrics.top.as_ref();
        top::top(top, &self.names, request.get_ref()).map(Response::new)
    }

    async fn get_log_level(
        &self,
        _request: Request<wire::GetLogLevelRequest>,
    ) -> Result<Response<wire::GetLogLevelResponse>, Status> {
        log_level::level().map(Response::new)
    }

    async fn set_log_level(
        &self,
        request: Request<wire::SetLogLevelRequest>,
    ) -> Result<Response<wire::SetLogLevelResponse>, Status> {
        log_level::set_level(&request).map(Response::new)
    }
}

/// The deadline for reading counters: the caller's, at most [`PEEK_TIMEOUT`] from now.
fn deadline<T>(request: &Request<T>) -> Instant {
    let within = grpc::decision_timeout(request.metadata().as_ref());
    Instant::now() + within.map_or(PEEK_TIMEOUT, |it| it.min(PEEK_TIMEOUT))
}
