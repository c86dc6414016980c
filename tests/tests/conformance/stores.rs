//! Every case with every store. A test reports all failed cases with their differences.

use futures::{StreamExt, stream};
use sluicegate_tests::{Cluster, Redis};

use crate::{
    case::{Case, Counting, Kind, cases},
    run::{Outcome, run},
};

/// Number of cases that run concurrently.
const AT_ONCE: usize = 8;

/// Maximum number of attempts of a case whose counters may have expired while it ran.
const TRIES: usize = 6;

/// A store that all cases share, each with its own prefix.
pub(crate) enum Store {
    Memory,
    Redis(Box<Redis>),
    Cluster(Cluster),
}

impl Store {
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Redis(redis) => redis.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// The keys that match a pattern, in order; `None` for the memory store.
    pub(crate) async fn keys(&self, pattern: &str) -> Option<Vec<String>> {
        match self {
            Self::Memory => None,
            Self::Redis(redis) => Some(redis.keys(pattern).await.into_iter().collect()),
            Self::Cluster(cluster) => Some(cluster.keys(pattern).await.into_iter().collect()),
        }
    }

    const fn kind(&self) -> Kind {
        match self {
            Self::Memory => Kind::Memory,
            Self::Redis(_) => Kind::Redis,
            Self::Cluster(_) => Kind::Cluster,
        }
    }
}

async fn all_cases_pass(store: Store) {
    // `CASE=N1` runs only cases whose title has this word.
    let chosen = std::env::var("CASE").ok();
    let both = [Counting::Free, Counting::Upstream];
    let of_store = |case: &Case| {
        case.stores.contains(&store.kind())
            && chosen.as_ref().is_none_or(|word| case.title.split(' ').any(|it| it == word))
    };
    let cases: Vec<Case> = both
        .into_iter()
        .flat_map(|counting| cases(counting, store.kind()))
        .filter(of_store)
        .collect();
    assert!(!cases.is_empty(), "no case");
    let mut outcomes: Vec<(usize, Outcome)> = stream::iter(cases.iter().enumerate())
        .map(|(place, case)| {
            let store = &store;
            async move { (place, run(case, store).await) }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    outcomes.sort_by_key(|(place, _)| *place);
    let mut failed = Vec::new();
    for (place, mut outcome) in outcomes {
        let mut tries = 1;
        // Keys in Redis expire by Redis' clock, which does not stop with the injected clock.
        while !outcome.passed() && outcome.too_slow() && tries < TRIES {
            outcome = run(&cases[place], &store).await;
            tries += 1;
        }
        if !outcome.passed() {
            failed.push(outcome.to_string());
        }
    }
    let report = failed.join("\n");
    assert!(failed.is_empty(), "{} of {} cases fail\n\n{report}", failed.len(), cases.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_cases_pass_in_memory() {
    all_cases_pass(Store::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_cases_pass_on_one_redis() {
    all_cases_pass(Store::Redis(Box::new(Redis::start().await))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_cases_pass_on_a_cluster() {
    all_cases_pass(Store::Cluster(Cluster::start().await)).await;
}
