use std::collections::HashMap as Exact;

use proptest::{collection::vec, prelude::*};

use super::*;

fn key(number: u16) -> CounterKey {
    CounterKey::from_text(format!("s1:fw:60:{{api:user={number}}}").as_bytes()).unwrap()
}

fn label() -> Arc<RuleLabel> {
    Arc::new(RuleLabel { domain: "api".into(), rule: "user".into() })
}

/// A time since the start, in seconds.
const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn add(counted: &ShardedSketch, seconds: u64, number: u16) {
    counted.add(at(seconds), &key(number), &label(), FULL);
}

fn listed(counted: &ShardedSketch, seconds: u64, number: u16) -> Option<TopEntry> {
    let text = key(number).as_bytes().to_vec();
    counted.list(at(seconds)).into_iter().find(|it| it.key == text)
}

/// Keys with a typical distribution: few are frequent.
fn stream() -> impl Strategy<Value = Vec<u16>> {
    vec(prop_oneof![3 => 0_u16..4, 2 => 0_u16..40, 1 => 0_u16..4000], 1..2000)
}

proptest! {
    #[test]
    fn counts_are_within_their_errors_and_frequent_keys_are_kept(
        stream in stream(), keys_max in 1_usize..64,
    ) {
        let mut sketch = Sketch::new(keys_max);
        let mut exact: Exact<u16, u64> = Exact::new();
        let label = label();
        for &number in &stream {
            sketch.add(&key(number), |entry, is_new| {
                if is_new {
                    entry.label = Some(Arc::clone(&label));
                }
            });
            *exact.entry(number).or_default() += 1;
        }
        prop_assert!(sketch.entries().count() <= keys_max);
        let min_count = sketch.min_count();
        prop_assert!(min_count * keys_max as u64 <= stream.len() as u64);
        let counts: Vec<u64> = sketch.entries().map(|entry| entry.count).collect();
        prop_assert!(counts.is_sorted());
        for (&number, &count) in &exact {
            let key = key(number);
            match sketch.get(key.hash64(), key.as_bytes()) {
                Some(entry) => {
                    prop_assert!(entry.count - entry.error <= count && count <= entry.count);
                    prop_assert!(entry.error <= min_count);
                }
                None => prop_assert!(count <= min_count),
            }
            if count > stream.len() as u64 / keys_max as u64 {
                prop_assert!(sketch.get(key.hash64(), key.as_bytes()).is_some());
            }
        }
        prop_assert_eq!(counts.iter().sum::<u64>(), stream.len() as u64);
    }

    #[test]
    fn counts_of_several_shards_and_windows_are_within_their_errors(
        stream in vec((stream(), 0_u64..30), 1..4), keys in 1_usize..300,
    ) {
        let counted = ShardedSketch::new(keys);
        let mut now = 0;
        let mut exact: Exact<Vec<u8>, Vec<u64>> = Exact::new();
        for (numbers, pause) in stream {
            now += pause;
            for number in numbers {
                add(&counted, now, number);
                exact.entry(key(number).as_bytes().to_vec()).or_default().push(now);
            }
        }
        let from = (now / WINDOW.as_secs()).saturating_sub(1) * WINDOW.as_secs();
        let list = counted.list(at(now));
        prop_assert!(list.len() <= 2 * (keys + SHARDS_MAX));
        for it in list {
            let seconds = &exact[&it.key];
            let all = seconds.len() as u64;
            let count = seconds.iter().filter(|second| **second >= from).count() as u64;
            prop_assert!(it.count - it.error <= count && count <= it.count);
            prop_assert!(it.total <= all);
        }
    }
}

#[test]
fn rates_cover_the_last_ten_seconds_and_old_counters_disappear() {
    let counted = ShardedSketch::new(100);
    for second in 0..20 {
        for _ in 0..5 {
            add(&counted, second, 1);
        }
    }
    let now = listed(&counted, 19, 1).unwrap();
    assert_eq!((now.total, now.age, now.error), (100, Duration::ZERO, 0));
    // 50 in the current window, and a tenth of the 50 in the previous one.
    assert!((now.rate - 5.5).abs() < 1e-9, "{now:?}");
    assert_eq!(now.count, 100);
    let half = listed(&counted, 25, 1).unwrap();
    assert!((half.rate - 2.5).abs() < 1e-9, "{half:?}");
    assert_eq!((half.count, half.age), (50, at(6)));
    assert!(listed(&counted, 30, 1).is_none());
    // A key that returns starts from zero.
    add(&counted, 30, 1);
    assert_eq!(listed(&counted, 30, 1).unwrap().total, 1);
}

#[test]
fn a_rate_is_right_before_ten_seconds_have_passed() {
    let counted = ShardedSketch::new(100);
    for second in 0..4 {
        for _ in 0..3 {
            add(&counted, second, 1);
        }
    }
    assert!((listed(&counted, 4, 1).unwrap().rate - 3.0).abs() < 1e-9);
}

#[test]
fn a_locked_shard_is_skipped() {
    let counted = ShardedSketch::new(1);
    {
        let _held = counted.shards[0].lock();
        add(&counted, 0, 1);
    }
    add(&counted, 0, 1);
    assert_eq!((counted.missed.get(), listed(&counted, 0, 1).unwrap().count), (1, 1));
}

#[test]
fn the_number_of_keys_is_bounded() {
    for keys in [1, 63, 64, 1000] {
        let counted = ShardedSketch::new(keys);
        for number in 0..8000 {
            add(&counted, 0, number);
        }
        assert_eq!(counted.list(at(0)).len(), keys, "{keys}");
    }
}
