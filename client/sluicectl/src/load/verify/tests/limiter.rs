//! A sequential limiter, and runs against it.

use std::{collections::HashMap, time::Duration};

use sluicegate_client::{CheckError, Verdict};
use sluicegate_core::{
    Check, CounterAccess, CounterKey, Plan, StoreError, Time, algorithm::State, respond,
    rules::RuleSet, settle,
};
use sluicegate_proto::{
    envoy::service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    },
    text::descriptor::Entries,
};

use super::super::{
    Verified, Verifier,
    bound::{Micros, RunTime},
    planned::request,
};
use crate::load::{
    history::History,
    template::{DrawnNumbers, RequestGenerator, Template, parse_template},
};

/// A limiter that answers requests one after the other.
pub(super) struct Limiter {
    rules: RuleSet,
    states: HashMap<CounterKey, State>,
    /// Microseconds by which its clock is ahead.
    pub(super) ahead: u64,
}

impl Limiter {
    fn new(limits: &str, ahead: u64) -> Self {
        Self { rules: rules(limits), states: HashMap::new(), ahead }
    }

    pub(super) fn answer(&mut self, descriptors: &[Entries], hits: u64, now: RunTime) -> Verdict {
        let now = Time::from_micros(self.ahead + u64::try_from(now).unwrap());
        let request = request("d", descriptors, hits).unwrap();
        let (plan, group) = Plan::new(&self.rules, &request);
        let answers = settle(&group, &mut Counted { states: &mut self.states, now });
        let decisions: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let verdict = respond(&plan, &decisions);
        let allowed = verdict.code == sluicegate_core::Code::Ok;
        answer(allowed, verdict.statuses.iter().map(status).collect())
    }
}

/// The counters of a limiter at a time.
struct Counted<'a> {
    states: &'a mut HashMap<CounterKey, State>,
    now: Time,
}

impl CounterAccess for Counted<'_> {
    fn now(&self, _: &Check) -> Time {
        self.now
    }

    fn with_state(
        &mut self,
        _: usize,
        check: &Check,
        access: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        let unused = || State::new(check.limit.algorithm());
        access(self.states.entry(check.key.clone()).or_insert_with(unused));
        Ok(())
    }
}

/// An answer with these statuses.
pub(super) fn answer(allowed: bool, statuses: Vec<DescriptorStatus>) -> Verdict {
    let code = if allowed { Code::Ok } else { Code::OverLimit };
    let overall_code = code.into();
    RateLimitResponse { overall_code, statuses, ..RateLimitResponse::default() }.into()
}

/// A refusal whose statuses show no limit.
pub(super) fn refusal(codes: &[Code]) -> Verdict {
    let status = |code: &Code| DescriptorStatus { code: (*code).into(), ..Default::default() };
    answer(false, codes.iter().map(status).collect())
}

fn status(status: &sluicegate_core::DescriptorStatus<'_>) -> DescriptorStatus {
    let code = match status.code {
        sluicegate_core::Code::Ok => Code::Ok,
        sluicegate_core::Code::OverLimit => Code::OverLimit,
    };
    let limit = status.current_limit.map(|current| RateLimit {
        requests_per_unit: current.displayed.requests_per_unit,
        unit: Unit::from_str_name(&current.displayed.unit.name().to_uppercase()).unwrap().into(),
        unit_multiplier: Some(current.displayed.unit_multiplier),
        name: current.name.unwrap_or_default().to_owned(),
    });
    let seconds = |it: Duration| it.as_micros().div_ceil(1_000_000).try_into().unwrap();
    DescriptorStatus {
        code: code.into(),
        current_limit: limit,
        limit_remaining: status.remaining,
        duration_until_reset: status
            .duration_until_reset
            .map(|it| prost_types::Duration { seconds: seconds(it), nanos: 0 }),
        ..Default::default()
    }
}

fn rules(limits: &str) -> RuleSet {
    sluicegate_limits::compile_text("limits.yaml", limits).unwrap()
}

fn templates(descriptors: &[&str]) -> Vec<Template> {
    descriptors.iter().map(|text| parse_template((*text).into()).unwrap()).collect()
}

/// How an answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Complete.
    Complete,
    /// Without statuses.
    WithoutStatuses,
    /// Not at all.
    Lost,
    /// Before the run.
    BeforeRun,
}

/// One run against a limiter.
pub(super) struct Run {
    pub(super) limiter: Limiter,
    pub(super) requests: RequestGenerator,
    pub(super) hits: u64,
    pub(super) history: History,
}

impl Run {
    pub(super) fn new(limits: &str, descriptors: &[&str]) -> Self {
        let requests = RequestGenerator::new(&templates(descriptors), 0.0, 1).unwrap();
        Self { limiter: Limiter::new(limits, 0), requests, hits: 1, history: History::default() }
    }

    /// Sends a request that is sent, charged and answered at these times. Returns whether it is allowed.
    pub(super) fn send(&mut self, draw: &[u32], times: [RunTime; 3]) -> bool {
        self.send_with(draw, times, Delivery::Complete)
    }

    /// Sends a request that is sent, charged and answered at these times, and whose answer arrives in this way.
    pub(super) fn send_with(
        &mut self,
        draw: &[u32],
        [sent, charged, answered]: [RunTime; 3],
        delivery: Delivery,
    ) -> bool {
        let draw = DrawnNumbers::from(draw);
        let mut verdict =
            self.limiter.answer(&self.requests.descriptors(&draw), self.hits, charged);
        let allowed = verdict.allowed;
        let answer = match delivery {
            Delivery::Complete | Delivery::BeforeRun => Ok(verdict),
            Delivery::WithoutStatuses => {
                verdict.statuses.clear();
                Ok(verdict)
            }
            Delivery::Lost => {
                Err(CheckError::DeadlineExceeded { deadline: Duration::from_millis(1) })
            }
        };
        if delivery != Delivery::BeforeRun {
            self.history.add(draw, [sent, answered], &answer);
        }
        allowed
    }

    /// The verification against these limits.
    pub(super) fn verified(&self, limits: &str) -> Verified {
        self.verified_within(limits, 0)
    }

    /// The verification against these limits, with a tolerance for clock drift.
    pub(super) fn verified_within(&self, limits: &str, tolerance: Micros) -> Verified {
        let rules = rules(limits);
        let Self { requests, hits, history, .. } = self;
        Verifier { rules: &rules, domain: "d", requests, hits: *hits, tolerance }.verify(history)
    }
}
