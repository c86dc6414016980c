//! The measured operations: the steps of one request with a chain of three limits (tenant; tenant and user; tenant,
//! user and route), for many tenants in turn.

use std::{
    hint::black_box,
    iter,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use sluicegate_core::{
    Algorithm, Answers, Batch, Check, CounterAccess, CounterKey, Decision, Plan, Request, Store,
    StoreError, Time,
    algorithm::State,
    key::KeyBuilder,
    request::{Descriptor, Entry},
    respond,
    response_body::{ResponseBody, ResponseBodyValues},
    rules::{Domain, RuleSet},
    settle,
    store::Group,
};
use sluicegate_store::{
    Clock, ClockTimes, Coalesce, CounterLocation, DenyCache, FailurePolicy, LiveReplicas,
    LocalFallback, Memory, MemorySettings, QueuedStore, redis,
};

/// Number of tenants.
pub(crate) const TENANTS: usize = 10_000;

/// Requests in one call to Redis.
const CALLED: usize = 32;

/// An operation that is measured.
pub(crate) struct Measured {
    /// Name in reports.
    pub(crate) name: &'static str,
    /// Prepares the operation. The returned function runs it once, for the tenant with the given number.
    pub(crate) prepare: fn() -> Operation,
}

/// One operation, on behalf of a tenant.
pub(crate) type Operation = Box<dyn FnMut(usize)>;

/// All measured operations.
pub(crate) const ALL: [Measured; 10] = [
    // The rules of the three descriptors.
    Measured { name: "match", prepare: find },
    // The key of one counter, of a descriptor with three entries.
    Measured { name: "key", prepare: key },
    // The checks of the request, including the keys of their counters.
    Measured { name: "plan", prepare: plan },
    // The three checks on their states.
    Measured { name: "settle", prepare: settled },
    // The request in the memory store, whose counters all exist.
    Measured { name: "memory_decide", prepare: memory_decide },
    // The request through all layers around Redis, with a store instead of Redis that allows everything at once.
    Measured { name: "layers", prepare: layers },
    // The verdict of three decisions.
    Measured { name: "respond", prepare: responded },
    // The body of a refusal, of a template.
    Measured { name: "response_body", prepare: response_body },
    // The arguments of a call to Redis for several requests.
    Measured { name: "redis_call", prepare: redis_call },
    // The answers in the reply of Redis.
    Measured { name: "redis_reply", prepare: redis_reply },
];

/// Limits that are never reached.
const LIMITS: &str = "
domain: public_api
tenant: tenant
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 4000000000}
        descriptors:
          - key: route
            rate_limit: {unit: hour, requests_per_unit: 4000000000}
";

/// The requests of all tenants, and the rules that they match. They live as long as the process.
struct Asked {
    rules: &'static RuleSet,
    requests: Vec<Request<'static>>,
}

impl Asked {
    fn new() -> Self {
        let rules =
            Box::leak(Box::new(sluicegate_limits::compile_text("limits.yaml", LIMITS).unwrap()));
        Self { rules, requests: (0..TENANTS).map(request).collect() }
    }

    fn domain(&self) -> &'static Domain {
        self.rules.domain("public_api").unwrap()
    }

    fn plans(&self) -> impl Iterator<Item = (Plan<'static>, Group)> {
        self.requests.iter().map(|request| Plan::new(self.rules, request))
    }

    fn groups(&self) -> Vec<Group> {
        self.plans().map(|(_, group)| group).collect()
    }
}

/// The hit of a tenant on its chain.
fn request(tenant: usize) -> Request<'static> {
    let entries = [
        ("tenant", format!("tenant-{tenant:06}")),
        ("user", format!("u-{:08}", 7 * tenant)),
        ("route", "/api/v1/items".to_owned()),
    ];
    let entries: &'static [_] = Box::leak(Box::new(entries));
    let chain: Vec<_> = (1..=entries.len()).map(|length| &entries[..length]).collect();
    let entry = |(key, value): &'static (&str, String)| Entry {
        key: key.as_bytes(),
        value: value.as_bytes(),
    };
    let describe = |entries: &&'static [_]| Descriptor {
        entries: entries.iter().map(entry).collect(),
        ..Descriptor::default()
    };
    Request::new("public_api", chain.leak(), usize::MAX, |entries| entries.len(), describe).unwrap()
}

fn now() -> Time {
    Time::from_micros(1_800_000_000_000_000)
}

fn find() -> Operation {
    let asked = Asked::new();
    let domain = asked.domain();
    Box::new(move |tenant| {
        for descriptor in asked.requests[tenant].descriptors() {
            black_box(domain.find(black_box(&descriptor.entries)));
        }
    })
}

fn key() -> Operation {
    let asked = Asked::new();
    let (domain, (_, group)) = (asked.domain(), asked.plans().next().unwrap());
    let limit = group[2].limit;
    Box::new(move |tenant| {
        let entries = &asked.requests[tenant].descriptors()[2].entries;
        let mut identity =
            KeyBuilder::new(&domain.name, domain.tenant.as_deref(), black_box(entries), &[]);
        black_box(identity.key_for(&limit));
    })
}

fn plan() -> Operation {
    let asked = Asked::new();
    Box::new(move |tenant| {
        black_box(Plan::new(asked.rules, black_box(&asked.requests[tenant])));
    })
}

fn settled() -> Operation {
    let groups = Asked::new().groups();
    let mut states = States([0; 3].map(|_| State::new(Algorithm::FixedWindow)));
    Box::new(move |tenant| {
        black_box(settle(&groups[tenant], &mut states));
    })
}

/// The states of the counters of one request.
struct States([State; 3]);

impl CounterAccess for States {
    fn now(&self, _: &Check) -> Time {
        now()
    }

    fn with_state(
        &mut self,
        position: usize,
        _: &Check,
        access: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        access(&mut self.0[position]);
        Ok(())
    }
}

/// A clock that does not advance.
#[derive(Debug)]
struct FixedClock(ClockTimes);

impl Clock for FixedClock {
    fn read(&self) -> ClockTimes {
        self.0
    }
}

impl FixedClock {
    fn new() -> Self {
        Self(ClockTimes { wall: now(), steady: now() })
    }
}

/// The groups of all tenants, and a store that has their counters.
fn remembered() -> (Vec<Group>, Memory<FixedClock>) {
    let settings = MemorySettings { counters_max: 1_000_000 };
    let memory = Memory::new(settings, FixedClock::new());
    let groups = Asked::new().groups();
    for group in &groups {
        decide(&memory, group);
    }
    (groups, memory)
}

fn decide(memory: &Memory<FixedClock>, group: &Group) -> Answers {
    memory.decide(Batch::single(Arc::clone(group), None)).now_or_never().unwrap()
}

fn memory_decide() -> Operation {
    let (groups, memory) = remembered();
    Box::new(move |tenant| {
        black_box(decide(&memory, &groups[tenant]));
    })
}

/// A store that allows everything at once.
struct Ready(Decision);

impl Store for Ready {
    async fn decide(&self, batch: Batch) -> Answers {
        batch.groups.iter().flat_map(|group| group.iter()).map(|_| Ok(self.0)).collect()
    }
}

impl QueuedStore for Ready {
    fn location(&self, _: &CounterKey) -> CounterLocation {
        CounterLocation { queue: 0, slot: 0 }
    }
}

fn layers() -> Operation {
    let (groups, memory) = remembered();
    let ready = Ready(decide(&memory, &groups[0])[0].unwrap());
    let coalesced = Coalesce::new(ready, NonZeroUsize::MIN);
    let clock: Arc<dyn Clock> = Arc::new(FixedClock::new());
    let store = Memory::new(MemorySettings { counters_max: 1_000_000 }, clock);
    let local = LocalFallback { store, replicas: LiveReplicas::default(), counters_max: 100_000 };
    let policy = FailurePolicy::new(DenyCache::new(coalesced, 100_000), Some(local));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let deadline = || Some(Instant::now() + Duration::from_secs(10));
    // Fills the table of known counters.
    for group in &groups {
        runtime.block_on(policy.decide(Arc::clone(group), deadline())).unwrap();
    }
    Box::new(move |tenant| {
        let decided = policy.decide(Arc::clone(&groups[tenant]), deadline());
        black_box(runtime.block_on(decided).unwrap());
    })
}

fn responded() -> Operation {
    let (groups, memory) = remembered();
    let decisions: Vec<Vec<Decision>> = groups
        .iter()
        .map(|group| decide(&memory, group).into_iter().map(Result::unwrap).collect())
        .collect();
    let plans: Vec<_> = Asked::new().plans().map(|(plan, _)| plan).collect();
    Box::new(move |tenant| {
        black_box(respond(&plans[tenant], black_box(&decisions[tenant])));
    })
}

fn response_body() -> Operation {
    let text =
        "{\"error\": {\"rule\": \"{rule}\", \"limit\": {limit}, \"wait\": {retry_after_ms}}}";
    let body = ResponseBody::compile("application/json", text).unwrap();
    Box::new(move |tenant| {
        let values = ResponseBodyValues {
            domain: "public_api",
            rule: Some("tenant.user.route"),
            limit: Some(100),
            retry_after_ms: u64::try_from(tenant).ok(),
            ..ResponseBodyValues::default()
        };
        black_box(body.render(black_box(&values)));
    })
}

/// The call for the requests of a tenant and of those after it.
fn call(groups: &[Group], tenant: usize) -> redis::Call {
    let called = groups[tenant..].iter().chain(groups).take(CALLED);
    redis::Call::new(b"", called.map(|group| group.iter()), None)
}

fn redis_call() -> Operation {
    let groups = Asked::new().groups();
    Box::new(move |tenant| {
        black_box(call(&groups, tenant));
    })
}

fn redis_reply() -> Operation {
    let call = call(&Asked::new().groups(), 0);
    // The time, and one hit used, charged and allowed for each check: see lua/settle.lua.
    let (time, answer) = (1_800_000_000_000_000, 1 << 2 | 2 | 1);
    let answers = iter::repeat_n(answer, 3 * CALLED);
    let reply =
        redis::Reply::Array(iter::once(time).chain(answers).map(redis::Reply::Integer).collect());
    Box::new(move |_| {
        black_box(call.decode(black_box(&reply)).unwrap());
    })
}
