use sluicegate_core::{Algorithm, Charge, OnFailure, Window, store::RefusalScope};

use super::*;
use crate::clock;

const MINUTE: Duration = Duration::from_secs(60);

fn check(name: &str) -> Check {
    let key = CounterKey::from_text(format!("s1:fw:60:{{api:user={name}}}").as_bytes());
    let window = Window::from_seconds(60).unwrap();
    Check {
        key: key.unwrap(),
        limit: Limit::new(Algorithm::FixedWindow, 100, window, None).unwrap(),
        charge: Charge::Exactly(1),
        descriptor: 0,
        refusal_scope: RefusalScope::Request,
        on_failure: OnFailure::Local,
    }
}

const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();

fn add(debts: &Debts, name: &str, hits: u64, now: Instant) {
    let _started = debts.add((&check(name), FOUR), hits, now, now + MINUTE);
}

fn due(debts: &Debts, now: Instant) -> Vec<Due> {
    debts.due(now, |_| true)
}

#[test]
fn hits_of_an_ended_window_are_not_debited_into_the_next() {
    let (debts, now, bob) = (Debts::new(10), clock::now(), check("bob"));
    assert!(debts.add((&bob, FOUR), 25, now, now + MINUTE));
    let [of_bob] = &due(&debts, now)[..] else { panic!("bob is due") };
    // The store answers in the next window.
    assert_eq!(debts.take(of_bob, now + MINUTE), 0);
    assert_eq!((debts.owed(), debts.debited()), (0, 0));
    assert!(due(&debts, now + MINUTE).is_empty());
    assert!(debts.is_empty());
    // The same, and the outage goes on: only hits of the next window are to be debited.
    add(&debts, "bob", 25, now);
    add(&debts, "bob", 3, now + MINUTE);
    let [of_bob] = &due(&debts, now + MINUTE)[..] else { panic!("bob is due") };
    assert_eq!((debts.owed(), debts.take(of_bob, now + MINUTE)), (3, 3));
}

#[test]
fn number_of_replicas_is_kept_until_the_hits_expire() {
    let (debts, now, bob) = (Debts::new(10), clock::now(), check("bob"));
    add(&debts, "bob", 1, now);
    let _started = debts.add((&bob, NonZeroU32::MIN), 1, now, now + MINUTE);
    assert_eq!(debts.replicas(&bob.key, now), Some(FOUR));
    assert_eq!(due(&debts, now)[0].replicas, FOUR);
    assert_eq!(debts.replicas(&bob.key, now + MINUTE), None);
    let later = now + MINUTE;
    let _started = debts.add((&bob, NonZeroU32::MIN), 1, later, later + MINUTE);
    assert_eq!(debts.replicas(&bob.key, later), Some(NonZeroU32::MIN));
}

/// Many counters of a server that is away do not hold up the others.
#[test]
fn counters_of_available_servers_are_found_among_many_others() {
    const OTHERS: usize = 20 * DEBITS_MAX;
    let (debts, now) = (Debts::new(100_000), clock::now());
    (0..OTHERS).for_each(|number| add(&debts, &format!("away{number}"), 1, now));
    let living: Vec<String> = (0..10).map(|number| format!("here{number}")).collect();
    living.iter().for_each(|name| add(&debts, name, 1, now));
    let keys: Vec<_> = living.iter().map(|name| check(name).key).collect();
    let due = debts.due(now, |key| keys.contains(key));
    assert_eq!(due.len(), keys.len());
    assert!(keys.iter().all(|key| due.iter().any(|it| it.key == *key)));
    // Their server did not answer a moment ago, so that this was an outage.
    due.iter().for_each(|due| debts.settle(due, debts.take(due, now), 1));
    assert!(debts.due(now, |key| keys.contains(key)).is_empty());
    assert!(keys.iter().all(|key| debts.contain(key)));
    let settled = now + SETTLING;
    assert!(debts.due(settled, |key| keys.contains(key)).is_empty());
    assert!(!keys.iter().any(|key| debts.contain(key)));
    assert_eq!(debts.owed(), OTHERS as u64);
}

#[test]
fn every_counter_is_due_in_turn_and_once() {
    let (debts, now) = (Debts::new(100_000), clock::now());
    let names: Vec<String> = (0..2 * LOOKED_AT_MAX).map(|number| number.to_string()).collect();
    names.iter().for_each(|name| add(&debts, name, 1, now));
    let mut found = Vec::new();
    for _ in 0..names.len() / DEBITS_MAX {
        let due = due(&debts, now);
        due.iter().for_each(|due| debts.settle(due, debts.take(due, now), 1));
        found.extend(due.into_iter().map(|due| due.key));
    }
    assert_eq!(found.len(), names.len());
    assert_eq!((debts.owed(), debts.debited()), (0, names.len() as u64));
    found.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    found.dedup();
    assert_eq!(found.len(), names.len());
}

#[test]
fn debit_from_before_a_reset_is_not_listed_again() {
    let (debts, now, bob) = (Debts::new(10), clock::now(), check("bob"));
    add(&debts, "bob", 5, now);
    let before = due(&debts, now).remove(0);
    assert_eq!(debts.take(&before, now), 5);
    debts.forget(&bob.key);
    add(&debts, "bob", 2, now);
    debts.put_back(&before, 5);
    assert_eq!(debts.owed(), 2);
    assert_eq!(debts.take(&before, now), 0);
    let after = due(&debts, now).remove(0);
    assert_eq!(debts.take(&after, now), 2);
}

#[test]
fn counters_that_are_being_reset_are_not_debited() {
    let (debts, now, bob) = (Debts::new(10), clock::now(), check("bob"));
    add(&debts, "bob", 5, now);
    let before = due(&debts, now).remove(0);
    let keys = [bob.key];
    debts.hold(&keys, Some(now + MINUTE / 2));
    assert!(due(&debts, now).is_empty());
    assert_eq!(debts.take(&before, now), 0);
    assert!(!debts.are_sent(&keys));
    debts.hold(&keys, None);
    assert_eq!(debts.take(&due(&debts, now)[0], now), 5);
    assert!(debts.are_sent(&keys));
}

#[test]
fn a_debit_in_progress_keeps_its_counter_listed() {
    let (debts, now) = (Debts::new(10), clock::now());
    add(&debts, "bob", 5, now);
    let of_bob = due(&debts, now).remove(0);
    assert_eq!(debts.take(&of_bob, now), 5);
    assert!(due(&debts, now).is_empty() && !debts.is_empty());
    debts.put_back(&of_bob, 5);
    assert_eq!((due(&debts, now).len(), debts.owed()), (1, 5));
    assert_eq!(debts.take(&of_bob, now), 5);
    debts.settle(&of_bob, 5, 5);
    assert!(due(&debts, now).is_empty() && debts.is_empty());
}

#[test]
fn refunds_are_taken_off_what_is_owed() {
    let (debts, now, bob) = (Debts::new(10), clock::now(), check("bob"));
    assert_eq!(debts.refund(&bob.key, 3, now), 0);
    add(&debts, "bob", 5, now);
    assert_eq!(debts.refund(&bob.key, 3, now), 3);
    assert_eq!(debts.refund(&bob.key, 3, now), 2);
    assert_eq!((debts.owed(), debts.debited()), (0, 0));
}

#[test]
fn counters_of_ended_windows_make_room() {
    let (debts, now) = (Debts::new(2), clock::now());
    for name in ["ann", "bob", "carol"] {
        add(&debts, name, 1, now);
    }
    assert_eq!((debts.owed(), debts.dropped()), (2, 1));
    add(&debts, "carol", 1, now + MINUTE);
    assert_eq!((debts.owed(), debts.dropped()), (2, 1));
    assert!(debts.contain(&check("carol").key));
}
