//! The suite that every store must pass.

use std::sync::Arc;

use sluicegate_core::{
    Algorithm, Batch, Charge, Check, Decision, Limit, OnFailure, Store, Window,
    algorithm::Receipt,
    key::KeyBuilder,
    request::Entry,
    store::{DecisionSource, Group, RefusalScope},
};

/// A limit of `requests` a day.
pub(crate) fn per_day(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests, Window::from_seconds(86_400).unwrap(), None).unwrap()
}

/// A check of the counter with this name. All counters belong to one tenant, so they are on one slot of a cluster.
pub(crate) fn check(name: &str, limit: Limit, descriptor: usize, take: Charge) -> Check {
    let tenant = Entry { key: b"tenant", value: b"acme" };
    let entries = [tenant, Entry { key: b"name", value: name.as_bytes() }];
    let key = KeyBuilder::new("conformance", Some(tenant.key), &entries, &[]).key_for(&limit);
    Check {
        key,
        limit,
        charge: take,
        descriptor,
        refusal_scope: RefusalScope::Request,
        on_failure: OnFailure::default(),
    }
}

/// Sends one group. Returns its decisions.
pub(crate) async fn ask(store: &impl Store, checks: Vec<Check>) -> Vec<Decision> {
    let answers = store.decide(Batch::single(checks.into(), None)).await;
    answers.into_iter().map(Result::unwrap).collect()
}

/// Runs every case for every algorithm on stores from `new`.
pub(crate) async fn suite<S: Store>(new: impl AsyncFn() -> S) {
    for algorithm in Algorithm::ALL {
        admits_up_to_the_limit(&new().await, algorithm).await;
        a_refusal_is_free_on_every_counter(&new().await, algorithm).await;
        a_peek_changes_nothing(&new().await, algorithm).await;
        a_receipt_undoes_its_charge(&new().await, algorithm).await;
        groups_of_a_batch_are_settled_separately(&new().await, algorithm).await;
        many_callers_admit_exactly_the_limit(Arc::new(new().await), algorithm).await;
        mixed_chains_never_admit_more_than_the_outer_limit(Arc::new(new().await), algorithm).await;
    }
}

async fn admits_up_to_the_limit(store: &impl Store, algorithm: Algorithm) {
    let limit = per_day(algorithm, 3);
    let asked = async |take| ask(store, vec![check("a", limit, 0, take)]).await[0];
    for remaining in [2, 1, 0] {
        assert_eq!(asked(Charge::IfAllowed(1)).await.remaining, remaining);
    }
    let refused = asked(Charge::IfAllowed(1)).await;
    assert!(!refused.allowed && refused.retry_after.is_some_and(|wait| !wait.is_zero()));
    let more_than_ever_fits = asked(Charge::IfAllowed(u64::MAX)).await;
    assert!(!more_than_ever_fits.allowed && more_than_ever_fits.retry_after.is_none());
}

async fn a_refusal_is_free_on_every_counter(store: &impl Store, algorithm: Algorithm) {
    let (wide, narrow) = (per_day(algorithm, 10), per_day(algorithm, 1));
    let chain = || {
        vec![
            check("wide", wide, 0, Charge::IfAllowed(1)),
            check("narrow", narrow, 1, Charge::IfAllowed(1)),
        ]
    };
    assert!(ask(store, chain()).await.iter().all(|it| it.allowed));
    for _ in 0..5 {
        let refused = ask(store, chain()).await;
        // The deny cache does not check the other counters of a refused request.
        if refused[0].source != DecisionSource::NotAsked {
            assert_eq!((refused[0].remaining, refused[0].charged), (9, 0));
        }
        assert!(!refused[1].allowed);
    }
}

async fn a_peek_changes_nothing(store: &impl Store, algorithm: Algorithm) {
    let limit = per_day(algorithm, 1);
    let asked = async |take| ask(store, vec![check("p", limit, 0, take)]).await[0];
    for _ in 0..3 {
        let peek = asked(Charge::IfAllowed(0)).await;
        assert!(peek.allowed && peek.remaining == 1);
    }
    assert!(asked(Charge::IfAllowed(1)).await.allowed);
    assert!(!asked(Charge::IfAllowed(0)).await.allowed, "no hits remain");
}

async fn a_receipt_undoes_its_charge(store: &impl Store, algorithm: Algorithm) {
    let limit = per_day(algorithm, 5);
    let asked = async |take| ask(store, vec![check("r", limit, 0, take)]).await[0];
    asked(Charge::IfAllowed(2)).await;
    let taken = asked(Charge::IfAllowed(3)).await;
    let receipt: Option<Receipt> = taken.receipt;
    assert!(receipt.is_some());
    asked(Charge::Refund { hits: 3, receipt }).await;
    assert_eq!(asked(Charge::IfAllowed(0)).await.remaining, 3);
}

async fn groups_of_a_batch_are_settled_separately(store: &impl Store, algorithm: Algorithm) {
    let limit = per_day(algorithm, 1);
    let group = || {
        vec![check("g", limit, 0, Charge::IfAllowed(1)), check("h", limit, 1, Charge::IfAllowed(1))]
    };
    let groups = [group(), group(), vec![check("i", limit, 0, Charge::IfAllowed(1))]];
    let groups = groups.into_iter().map(Group::from).collect();
    let answers = store.decide(Batch { groups, deadline: None }).await;
    let allowed: Vec<_> = answers.iter().map(|answer| answer.unwrap().allowed).collect();
    // Any of the equal groups may pass: each may be sent in its own call.
    let (equal, other) = allowed.split_at(4);
    let passed = [[true, true, false, false], [false, false, true, true]];
    assert!(passed.iter().any(|it| it == equal), "{allowed:?}");
    assert_eq!(other, [true]);
}

/// Number of callers in each concurrency case, and of requests of each caller.
const CALLERS: usize = 8;
const ASKS: usize = 250;

async fn many_callers_admit_exactly_the_limit<S: Store>(store: Arc<S>, algorithm: Algorithm) {
    let limit = per_day(algorithm, 1_000);
    let admitted =
        concurrently(&store, move |_| vec![check("hot", limit, 0, Charge::IfAllowed(1))]);
    assert_eq!(admitted.await, 1_000, "{algorithm:?}");
}

/// Chains that share the outer counter, with their inner counters in different orders.
async fn mixed_chains_never_admit_more_than_the_outer_limit<S: Store>(
    store: Arc<S>,
    algorithm: Algorithm,
) {
    let (outer, inner) = (per_day(algorithm, 350), per_day(algorithm, 100));
    let admitted = concurrently(&store, move |caller| {
        let mut names = [format!("inner {}", caller % 4), format!("inner {}", (caller + 1) % 4)];
        if caller % 2 == 0 {
            names.reverse();
        }
        let inner = |(at, name): (usize, &String)| check(name, inner, at + 1, Charge::IfAllowed(1));
        let mut group = vec![check("outer", outer, 0, Charge::IfAllowed(1))];
        group.extend(names.iter().enumerate().map(inner));
        group
    });
    let admitted = admitted.await;
    // Each request charges two of four inner counters of 100: at most 200 pass, and with all-or-nothing
    // no hit is lost, so the remaining hits show how many passed.
    assert!(admitted <= 200, "{admitted}");
    let left = async |name: &str, limit| {
        ask(store.as_ref(), vec![check(name, limit, 0, Charge::IfAllowed(0))]).await[0].remaining
    };
    let mut used = 0;
    for n in 0..4 {
        used += 100 - left(&format!("inner {n}"), inner).await;
    }
    assert_eq!(used, 2 * admitted);
    assert_eq!(350 - left("outer", outer).await, admitted);
}

/// Sends the groups of many concurrent callers. Returns how many groups passed.
async fn concurrently<S: Store>(
    store: &Arc<S>,
    group: impl Fn(usize) -> Vec<Check> + Send + Sync + Copy + 'static,
) -> u64 {
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let mut passed = 0;
                for _ in 0..ASKS {
                    let decisions = ask(store.as_ref(), group(caller)).await;
                    passed += u64::from(decisions.iter().all(|it| it.allowed));
                }
                passed
            })
        })
        .collect();
    let mut passed = 0;
    for caller in callers {
        passed += caller.await.unwrap();
    }
    passed
}
