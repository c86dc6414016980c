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
        charge: Charge::IfAllowed(1),
        descriptor: 0,
        refusal_scope: RefusalScope::Request,
        on_failure: OnFailure::Local,
    }
}

const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();

fn add(pending: &PendingDebits, name: &str, hits: u64, now: Instant) {
    let _started = pending.add((&check(name), FOUR), hits, now, now + MINUTE);
}

fn due(pending: &PendingDebits, now: Instant) -> Vec<DueDebit> {
    pending.due(now, |_| true)
}

#[test]
fn hits_of_an_ended_window_are_not_debited_in_the_next() {
    let (pending, now, bob) = (PendingDebits::new(10), clock::now(), check("bob"));
    assert!(pending.add((&bob, FOUR), 25, now, now + MINUTE));
    let [of_bob] = &due(&pending, now)[..] else { panic!("bob is due") };
    // The store answers in the next window.
    assert_eq!(pending.take(of_bob, now + MINUTE), 0);
    assert_eq!((pending.undebited(), pending.debited()), (0, 0));
    assert!(due(&pending, now + MINUTE).is_empty());
    assert!(pending.is_empty());
    // The outage continues in the next window: only hits of that window are to be debited.
    add(&pending, "bob", 25, now);
    add(&pending, "bob", 3, now + MINUTE);
    let [of_bob] = &due(&pending, now + MINUTE)[..] else { panic!("bob is due") };
    assert_eq!((pending.undebited(), pending.take(of_bob, now + MINUTE)), (3, 3));
}

#[test]
fn number_of_replicas_is_kept_until_the_hits_expire() {
    let (pending, now, bob) = (PendingDebits::new(10), clock::now(), check("bob"));
    add(&pending, "bob", 1, now);
    let _started = pending.add((&bob, NonZeroU32::MIN), 1, now, now + MINUTE);
    assert_eq!(pending.replicas(&bob.key, now), Some(FOUR));
    assert_eq!(due(&pending, now)[0].replicas, FOUR);
    assert_eq!(pending.replicas(&bob.key, now + MINUTE), None);
    let later = now + MINUTE;
    let _started = pending.add((&bob, NonZeroU32::MIN), 1, later, later + MINUTE);
    assert_eq!(pending.replicas(&bob.key, later), Some(NonZeroU32::MIN));
}

/// Many counters of an unavailable server do not delay the others.
#[test]
fn counters_of_available_servers_are_found_among_many_others() {
    const OTHERS: usize = 20 * DEBITS_MAX;
    let (pending, now) = (PendingDebits::new(100_000), clock::now());
    (0..OTHERS).for_each(|number| add(&pending, &format!("away{number}"), 1, now));
    let living: Vec<String> = (0..10).map(|number| format!("here{number}")).collect();
    living.iter().for_each(|name| add(&pending, name, 1, now));
    let keys: Vec<_> = living.iter().map(|name| check(name).key).collect();
    let due = pending.due(now, |key| keys.contains(key));
    assert_eq!(due.len(), keys.len());
    assert!(keys.iter().all(|key| due.iter().any(|it| it.key == *key)));
    // Another server did not answer, so an outage is assumed.
    due.iter().for_each(|due| pending.complete(due, pending.take(due, now), 1));
    assert!(pending.due(now, |key| keys.contains(key)).is_empty());
    assert!(keys.iter().all(|key| pending.contains(key)));
    let suffices = now + LOCAL_SHARE_AFTER_OUTAGE;
    assert!(pending.due(suffices, |key| keys.contains(key)).is_empty());
    assert!(!keys.iter().any(|key| pending.contains(key)));
    assert_eq!(pending.undebited(), OTHERS as u64);
}

#[test]
fn every_counter_is_due_in_turn_and_once() {
    let (pending, now) = (PendingDebits::new(100_000), clock::now());
    let names: Vec<String> = (0..2 * EXAMINED_MAX).map(|number| number.to_string()).collect();
    names.iter().for_each(|name| add(&pending, name, 1, now));
    let mut found = Vec::new();
    for _ in 0..names.len() / DEBITS_MAX {
        let due = due(&pending, now);
        due.iter().for_each(|due| pending.complete(due, pending.take(due, now), 1));
        found.extend(due.into_iter().map(|due| due.key));
    }
    assert_eq!(found.len(), names.len());
    assert_eq!((pending.undebited(), pending.debited()), (0, names.len() as u64));
    found.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    found.dedup();
    assert_eq!(found.len(), names.len());
}

#[test]
fn debit_from_before_a_reset_is_not_listed_again() {
    let (pending, now, bob) = (PendingDebits::new(10), clock::now(), check("bob"));
    add(&pending, "bob", 5, now);
    let before = due(&pending, now).remove(0);
    assert_eq!(pending.take(&before, now), 5);
    pending.forget(&bob.key);
    add(&pending, "bob", 2, now);
    pending.put_back(&before, 5);
    assert_eq!(pending.undebited(), 2);
    assert_eq!(pending.take(&before, now), 0);
    let after = due(&pending, now).remove(0);
    assert_eq!(pending.take(&after, now), 2);
}

#[test]
fn counters_that_are_being_reset_are_not_debited() {
    let (pending, now, bob) = (PendingDebits::new(10), clock::now(), check("bob"));
    add(&pending, "bob", 5, now);
    let before = due(&pending, now).remove(0);
    let keys = [bob.key];
    pending.suspend(&keys, Some(now + MINUTE / 2));
    assert!(due(&pending, now).is_empty());
    assert_eq!(pending.take(&before, now), 0);
    assert!(!pending.any_in_progress(&keys));
    pending.suspend(&keys, None);
    assert_eq!(pending.take(&due(&pending, now)[0], now), 5);
    assert!(pending.any_in_progress(&keys));
}

#[test]
fn a_debit_in_progress_keeps_its_counter_listed() {
    let (pending, now) = (PendingDebits::new(10), clock::now());
    add(&pending, "bob", 5, now);
    let of_bob = due(&pending, now).remove(0);
    assert_eq!(pending.take(&of_bob, now), 5);
    assert!(due(&pending, now).is_empty() && !pending.is_empty());
    pending.put_back(&of_bob, 5);
    assert_eq!((due(&pending, now).len(), pending.undebited()), (1, 5));
    assert_eq!(pending.take(&of_bob, now), 5);
    pending.complete(&of_bob, 5, 5);
    assert!(due(&pending, now).is_empty() && pending.is_empty());
}

#[test]
fn refunds_are_subtracted_from_hits_to_be_debited() {
    let (pending, now, bob) = (PendingDebits::new(10), clock::now(), check("bob"));
    assert_eq!(pending.refund(&bob.key, 3, now), 0);
    add(&pending, "bob", 5, now);
    assert_eq!(pending.refund(&bob.key, 3, now), 3);
    assert_eq!(pending.refund(&bob.key, 3, now), 2);
    assert_eq!((pending.undebited(), pending.debited()), (0, 0));
}

#[test]
fn counters_of_ended_windows_make_room() {
    let (pending, now) = (PendingDebits::new(2), clock::now());
    for name in ["ann", "bob", "carol"] {
        add(&pending, name, 1, now);
    }
    assert_eq!((pending.undebited(), pending.dropped()), (2, 1));
    add(&pending, "carol", 1, now + MINUTE);
    assert_eq!((pending.undebited(), pending.dropped()), (2, 1));
    assert!(pending.contains(&check("carol").key));
}
