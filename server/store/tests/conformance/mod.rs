//! What every store must do, whatever it keeps its counters in.

use std::{sync::Arc, thread};

use sluicegate_core::{
    Algorithm, Batch, Check, Decision, Limit, Store, Take, Window,
    algorithm::Receipt,
    key::Identity,
    request::Entry,
    store::{Group, Veto},
};

/// A limit of `requests` a day.
pub(crate) fn per_day(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests, Window::from_seconds(86_400).unwrap(), None).unwrap()
}

/// A check of the counter of that name.
pub(crate) fn check(name: &str, limit: Limit, descriptor: usize, take: Take) -> Check {
    let entries = [Entry { key: b"name", value: name.as_bytes() }];
    let key = Identity::new("conformance", None, &entries, &[]).counter(&limit);
    Check { key, limit, take, descriptor, veto: Veto::Alone }
}

/// Asks one group.
pub(crate) fn ask<S: Store>(store: &S, group: Group) -> Vec<Decision> {
    let answers = block_on(store.decide(Batch::of(group)));
    answers.into_iter().map(Result::unwrap).collect()
}

/// Runs a future to its end.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Runs every case for every algorithm on stores that `new` makes.
pub(crate) fn suite<S: Store>(new: impl Fn() -> S) {
    for algorithm in Algorithm::ALL {
        admits_up_to_the_limit(&new(), algorithm);
        a_refusal_is_free_on_every_counter(&new(), algorithm);
        a_peek_changes_nothing(&new(), algorithm);
        a_receipt_undoes_its_take(&new(), algorithm);
        groups_of_a_batch_are_settled_each_for_itself(&new(), algorithm);
        many_callers_admit_exactly_the_limit(&Arc::new(new()), algorithm);
        mixed_chains_never_admit_more_than_the_outer_limit(&Arc::new(new()), algorithm);
    }
}

fn admits_up_to_the_limit(store: &impl Store, algorithm: Algorithm) {
    let limit = per_day(algorithm, 3);
    let asked = |take| ask(store, vec![check("a", limit, 0, take)])[0];
    let remaining: Vec<_> = (0..3).map(|_| asked(Take::Exactly(1)).remaining).collect();
    assert_eq!(remaining, [2, 1, 0]);
    let refused = asked(Take::Exactly(1));
    assert!(!refused.allowed && refused.retry_after.is_some_and(|wait| !wait.is_zero()));
    let more_than_ever_fits = asked(Take::Exactly(u64::MAX));
    assert!(!more_than_ever_fits.allowed && more_than_ever_fits.retry_after.is_none());
}

fn a_refusal_is_free_on_every_counter(store: &impl Store, algorithm: Algorithm) {
    let (wide, narrow) = (per_day(algorithm, 10), per_day(algorithm, 1));
    let chain = || {
        vec![check("wide", wide, 0, Take::Exactly(1)), check("narrow", narrow, 1, Take::Exactly(1))]
    };
    assert!(ask(store, chain()).iter().all(|it| it.allowed));
    for _ in 0..5 {
        let refused = ask(store, chain());
        assert_eq!((refused[0].remaining, refused[0].granted), (9, 0));
        assert!(!refused[1].allowed);
    }
}

fn a_peek_changes_nothing(store: &impl Store, algorithm: Algorithm) {
    let limit = per_day(algorithm, 1);
    let asked = |take| ask(store, vec![check("p", limit, 0, take)])[0];
    for _ in 0..3 {
        let peek = asked(Take::Exactly(0));
        assert!(peek.allowed && peek.remaining == 1);
    }
    assert!(asked(Take::Exactly(1)).allowed);
    assert!(!asked(Take::Exactly(0)).allowed, "nothing is left for one more hit");
}

fn a_receipt_undoes_its_take(store: &impl Store, algorithm: Algorithm) {
    let limit = per_day(algorithm, 5);
    let asked = |take| ask(store, vec![check("r", limit, 0, take)])[0];
    asked(Take::Exactly(2));
    let taken = asked(Take::Exactly(3));
    let receipt: Option<Receipt> = taken.receipt;
    assert!(receipt.is_some());
    asked(Take::GiveBack { hits: 3, receipt });
    assert_eq!(asked(Take::Exactly(0)).remaining, 3);
}

fn groups_of_a_batch_are_settled_each_for_itself(store: &impl Store, algorithm: Algorithm) {
    let limit = per_day(algorithm, 1);
    let group =
        || vec![check("g", limit, 0, Take::Exactly(1)), check("h", limit, 1, Take::Exactly(1))];
    let batch = Batch {
        groups: [group(), group(), vec![check("i", limit, 0, Take::Exactly(1))]]
            .into_iter()
            .collect(),
    };
    let answers = block_on(store.decide(batch));
    let allowed: Vec<_> = answers.iter().map(|answer| answer.unwrap().allowed).collect();
    assert_eq!(allowed, [true, true, false, false, true]);
}

/// Callers in each concurrency case, and how often each asks.
const CALLERS: usize = 8;
const ASKS: usize = 500;

fn many_callers_admit_exactly_the_limit<S: Store>(store: &Arc<S>, algorithm: Algorithm) {
    let limit = per_day(algorithm, 1_000);
    let admitted = concurrently(store, move |store, _| {
        usize::from(ask(store, vec![check("hot", limit, 0, Take::Exactly(1))])[0].allowed)
    });
    assert_eq!(admitted, 1_000, "{algorithm:?}");
}

/// Chains that share the outer counter and lock their inner ones in different orders.
fn mixed_chains_never_admit_more_than_the_outer_limit<S: Store>(
    store: &Arc<S>,
    algorithm: Algorithm,
) {
    let (outer, inner) = (per_day(algorithm, 700), per_day(algorithm, 200));
    let admitted = concurrently(store, move |store, caller| {
        let mut names = [format!("inner {}", caller % 4), format!("inner {}", (caller + 1) % 4)];
        if caller % 2 == 0 {
            names.reverse();
        }
        let mut group = vec![check("outer", outer, 0, Take::Exactly(1))];
        group.extend(
            names.iter().enumerate().map(|(at, name)| check(name, inner, at + 1, Take::Exactly(1))),
        );
        usize::from(ask(store, group).iter().all(|it| it.allowed))
    });
    // Each request charges two of four inner counters of 200: at most 400 pass, and with all-or-nothing
    // no hit is lost, so what is left says how many did.
    assert!(admitted <= 400, "{admitted}");
    let left = |name: &str, limit| {
        ask(store.as_ref(), vec![check(name, limit, 0, Take::Exactly(0))])[0].remaining
    };
    let used: u64 = (0..4).map(|n| 200 - left(&format!("inner {n}"), inner)).sum();
    assert_eq!(used, 2 * admitted as u64);
    assert_eq!(700 - left("outer", outer), admitted as u64);
}

/// Runs `ask` many times on many threads and adds up what it returns.
fn concurrently<S: Store>(
    store: &Arc<S>,
    ask: impl Fn(&S, usize) -> usize + Send + Sync + Copy + 'static,
) -> usize {
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = Arc::clone(store);
            thread::spawn(move || (0..ASKS).map(|_| ask(&store, caller)).sum::<usize>())
        })
        .collect();
    callers.into_iter().map(|caller| caller.join().unwrap()).sum()
}
