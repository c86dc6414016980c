//! Compares the admitted hits with the limits and with the counters.

use std::{collections::BTreeMap, fmt, time::Duration};

use fastrand::Rng;
use tonic::Code;

use crate::{
    record::{Asked, Entries, Killed, Life, Outcome},
    traffic::{Counter, Request, hot_counter},
};

/// Maximum number of counters whose history a failed run prints.
const HISTORIES_MAX: usize = 3;

/// The sums of one counter, in hits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    /// Hits of requests with the answer OK.
    pub(crate) admitted: u64,
    /// Charged hits, read from the counter after the run.
    pub(crate) charged: u64,
    /// Hits of other requests that a killed replica was settling.
    settling: u64,
    /// Hits of other requests that may have been admitted after their callers disconnected.
    left: u64,
}

impl Sum {
    /// Hits that are charged without the answer OK.
    const fn missing(&self) -> u64 {
        self.charged.saturating_sub(self.admitted)
    }

    /// Missing hits that neither killed replicas nor disconnected callers explain.
    const fn unexplained(&self) -> u64 {
        self.missing().saturating_sub(self.settling).saturating_sub(self.left)
    }
}

/// A violated property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// More was admitted than the limit allows.
    PastLimit(Counter),
    /// Less is charged than was admitted.
    Lost(Counter),
    /// More hits are missing than the replicas count as unknown.
    Missing { unexplained: u64, unknown: u64 },
    /// A call failed although its replica was running.
    CallFailed(String),
}

/// For each counter, its admitted hits by the time of their answers.
struct Spent<'a>(BTreeMap<&'a Counter, Vec<(Duration, u64)>>);

impl<'a> Spent<'a> {
    fn new(entries: &'a Entries) -> Self {
        let mut admitted = BTreeMap::<_, Vec<_>>::new();
        for asked in entries.asked.iter().filter(|it| it.outcome == Outcome::Admitted) {
            for counter in &asked.request.counters {
                admitted.entry(counter).or_default().push((asked.ended, asked.request.hits));
            }
        }
        Self(admitted)
    }

    /// Whether a limit had no room for a request when it was sent. Such a request must not be charged, even if its
    /// caller disconnected.
    fn refuses(&self, asked: &Asked) -> bool {
        asked.request.counters.iter().any(|counter| {
            let admitted = self.0.get(counter).into_iter().flatten();
            let before = admitted.filter(|(ended, _)| *ended <= asked.sent);
            before.map(|(_, hits)| hits).sum::<u64>() + asked.request.hits > counter.limit()
        })
    }
}

/// The sums of a run.
#[derive(Debug)]
pub(crate) struct Verdict {
    sums: BTreeMap<Counter, Sum>,
    unknown: u64,
    failed: Vec<String>,
}

impl Verdict {
    /// Adds up the requests. `charged`: the charged hits of each counter. `unknown`: the hits that the replicas count
    /// as unknown.
    pub(crate) fn new(entries: &Entries, charged: &BTreeMap<Counter, u64>, unknown: u64) -> Self {
        let killed: BTreeMap<_, _> = entries.killed.iter().copied().collect();
        let with = |charged: &u64| Sum { charged: *charged, ..Sum::default() };
        let mut sums: BTreeMap<_, _> =
            charged.iter().map(|(counter, charged)| (counter.clone(), with(charged))).collect();
        let mut failed = Vec::new();
        let spent = Spent::new(entries);
        for asked in &entries.asked {
            let killed = killed.get(&asked.life).copied();
            let settling = killed.is_some_and(|killed| asked.ended >= killed.settled);
            if matches!(asked.outcome, Outcome::Failed(_))
                && killed.is_none_or(|killed| asked.ended < killed.at)
            {
                failed.push(asked.to_string());
            }
            for counter in &asked.request.counters {
                let sum = sums.entry(counter.clone()).or_default();
                let kind = match asked.outcome {
                    Outcome::Admitted => &mut sum.admitted,
                    _ if settling => &mut sum.settling,
                    Outcome::Left if !spent.refuses(asked) => &mut sum.left,
                    Outcome::Left | Outcome::Refused | Outcome::Failed(_) => continue,
                };
                *kind += asked.request.hits;
            }
        }
        Self { sums, unknown, failed }
    }

    /// The sums of each counter.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&Counter, &Sum)> {
        self.sums.iter()
    }

    fn unexplained(&self) -> u64 {
        self.sums.values().map(Sum::unexplained).sum()
    }

    /// All violations.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let past = self.sums().filter(|(counter, sum)| sum.admitted > counter.limit());
        let past = past.map(|(counter, _)| Finding::PastLimit(counter.clone()));
        let lost = self.sums().filter(|(_, sum)| sum.charged < sum.admitted);
        let lost = lost.map(|(counter, _)| Finding::Lost(counter.clone()));
        let failed = self.failed.iter().cloned().map(Finding::CallFailed);
        let (unexplained, unknown) = (self.unexplained(), self.unknown);
        let missing = (unexplained > unknown).then_some(Finding::Missing { unexplained, unknown });
        past.chain(lost).chain(failed).chain(missing).collect()
    }

    /// The counters with violations or missing hits, and all requests of some of them.
    pub(crate) fn histories(&self, entries: &Entries) -> String {
        let wrong = |(counter, sum): &(&Counter, &Sum)| {
            sum.admitted > counter.limit() || sum.charged < sum.admitted || sum.unexplained() > 0
        };
        let wrong: Vec<_> = self.sums().filter(wrong).collect();
        let mut text = String::new();
        for (counter, sum) in &wrong {
            text += &format!("[{counter}] limit {}: {sum:?}\n", counter.limit());
        }
        for (began, ended, happened) in &entries.events {
            text +=
                &format!("{:9.4} {:9.4} {happened}\n", began.as_secs_f64(), ended.as_secs_f64());
        }
        for (counter, _) in wrong.into_iter().take(HISTORIES_MAX) {
            text += &format!("all that was asked of [{counter}]:\n");
            let asked = entries.asked.iter().filter(|it| it.hits_on(counter) > 0);
            asked.for_each(|asked| text += &format!("{asked}\n"));
        }
        text
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = |hits: fn(&Sum) -> u64| self.sums.values().map(hits).sum::<u64>();
        let spent = self.sums().filter(|(counter, sum)| sum.charged >= counter.limit()).count();
        write!(
            f,
            "{} counters, {spent} of them spent; hits: {} admitted, {} charged, {} missing; killed replicas were settling \
             {}, and {} may have been admitted after their callers left; {} are explained by neither, {} are unknown \
             to the replicas",
            self.sums.len(),
            total(|sum| sum.admitted),
            total(|sum| sum.charged),
            total(Sum::missing),
            total(|sum| sum.settling),
            total(|sum| sum.left),
            self.unexplained(),
            self.unknown,
        )
    }
}

fn asked(ended: u64, hits: u64, outcome: Outcome) -> Asked {
    let request = Request { counters: vec![counter()], hits, disconnects_after: None };
    let sent = Duration::from_millis(ended - 1);
    Asked { life: LIFE, request, sent, ended: Duration::from_millis(ended), outcome }
}

const LIFE: Life = Life { replica: 0, number: 0 };

fn counter() -> Counter {
    hot_counter(&mut Rng::with_seed(0), Duration::ZERO)
}

/// The violations with these charged and unknown hits.
fn findings(asked: Vec<Asked>, charged: u64, unknown: u64) -> Vec<Finding> {
    let [settled, at] = [SETTLED, KILLED].map(Duration::from_millis);
    let killed = vec![(LIFE, Killed { settled, at })];
    let entries = Entries { asked, killed, ..Entries::default() };
    Verdict::new(&entries, &BTreeMap::from([(counter(), charged)]), unknown).findings()
}

/// Times of the run in milliseconds.
const SETTLED: u64 = 9_000;
const KILLED: u64 = 10_000;

#[test]
fn hits_over_the_limit_are_found() {
    let limit = counter().limit();
    assert_eq!(findings(vec![asked(1, limit, Outcome::Admitted)], limit, 0), []);
    let one_more = vec![asked(1, limit, Outcome::Admitted), asked(2, 1, Outcome::Admitted)];
    assert_eq!(
        findings(one_more, limit, 0),
        [Finding::PastLimit(counter()), Finding::Lost(counter())]
    );
}

#[test]
fn lost_hits_are_found() {
    assert_eq!(findings(vec![asked(1, 2, Outcome::Admitted)], 1, 9), [Finding::Lost(counter())]);
}

#[test]
fn missing_hits_are_found_unless_counted_as_unknown() {
    let all = || vec![asked(1, 2, Outcome::Admitted), asked(2, 3, Outcome::Refused)];
    assert_eq!(findings(all(), 5, 3), []);
    assert_eq!(findings(all(), 5, 2), [Finding::Missing { unexplained: 3, unknown: 2 }]);
}

#[test]
fn a_killed_replica_explains_only_unsettled_hits() {
    assert_eq!(findings(vec![asked(SETTLED, 3, Outcome::Refused)], 3, 0), []);
    let before = vec![asked(SETTLED - 1, 3, Outcome::Refused)];
    assert_eq!(findings(before, 3, 0), [Finding::Missing { unexplained: 3, unknown: 0 }]);
    let failed = |at| vec![asked(at, 1, Outcome::Failed(Code::Unavailable))];
    assert_eq!(findings(failed(KILLED), 1, 0), []);
    assert!(matches!(findings(failed(KILLED - 1), 1, 0)[..], [Finding::CallFailed(_)]));
}

#[test]
fn a_disconnected_caller_explains_possible_charges() {
    let limit = counter().limit();
    let left = |admitted| vec![asked(1, admitted, Outcome::Admitted), asked(3, 1, Outcome::Left)];
    assert_eq!(findings(left(1), 2, 0), []);
    // The limit had no room for the request.
    assert_eq!(
        findings(left(limit), limit + 1, 0),
        [Finding::Missing { unexplained: 1, unknown: 0 }]
    );
}
