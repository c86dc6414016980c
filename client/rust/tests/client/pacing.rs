//! Waiting, pacing and refunds.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use sluicegate_client::{AcquireError, Check, CheckError, Client, GrpcCode, InvalidWeights, Pacer};
use sluicegate_client_testkit::service::{Answer, Service, client_of, free_address};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tonic::Status;

fn mail() -> Check {
    Check::new("shop").descriptor([("provider", "mail")])
}

fn allowed() -> RateLimitResponse {
    RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() }
}

/// A refusal that reports this time.
fn refusal(reset: Option<Duration>) -> RateLimitResponse {
    let status = DescriptorStatus {
        code: Code::OverLimit.into(),
        duration_until_reset: reset.map(|reset| reset.try_into().unwrap()),
        ..DescriptorStatus::default()
    };
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![status],
        ..RateLimitResponse::default()
    }
}

/// Charged hits of a request; negative for a refund.
fn hits(request: &RateLimitRequest) -> i64 {
    let descriptor = &request.descriptors[0];
    let on_request = u64::from(request.hits_addend.max(1));
    let hits = i64::try_from(descriptor.hits_addend.unwrap_or(on_request)).unwrap();
    if descriptor.is_negative_hits { -hits } else { hits }
}

async fn scripted<F>(script: impl Fn(RateLimitRequest) -> F + Send + Sync + 'static) -> Client
where
    F: Future<Output = Result<RateLimitResponse, Status>> + Send + 'static,
{
    client_of(Service::new(Answer::script(script)).start().await)
}

/// A client of a service that takes this time for each check, allows it, and counts the hits.
async fn counting(time: Duration) -> (Client, Arc<AtomicI64>) {
    let charged = Arc::new(AtomicI64::new(0));
    let sum = Arc::clone(&charged);
    let client = scripted(move |request| {
        let sum = Arc::clone(&sum);
        async move {
            // As the real one, it decides before it answers.
            sum.fetch_add(hits(&request), SeqCst);
            sleep(time).await;
            Ok(allowed())
        }
    });
    (client.await, charged)
}

async fn until(condition: impl Fn() -> bool) {
    timeout(Duration::from_secs(30), async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("the condition never held");
}

#[tokio::test]
async fn one_waiter_of_a_key_asks_and_they_are_served_in_order() {
    let (asking, most, asked) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (a, b, c) = (Arc::clone(&asking), Arc::clone(&most), Arc::clone(&asked));
    let client = scripted(move |_| {
        let (asking, most, asked) = (Arc::clone(&a), Arc::clone(&b), Arc::clone(&c));
        async move {
            most.fetch_max(asking.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(Duration::from_millis(1)).await;
            asking.fetch_sub(1, SeqCst);
            let is_refused = asked.fetch_add(1, SeqCst) % 2 == 0;
            Ok(if is_refused { refusal(Some(Duration::from_millis(5))) } else { allowed() })
        }
    })
    .await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for waiter in 0..8 {
        let (client, order) = (client.clone(), Arc::clone(&order));
        waiters.spawn(async move {
            client.acquire(mail(), Duration::from_secs(60)).await.unwrap();
            order.lock().unwrap().push(waiter);
        });
        // Let it enter the queue.
        tokio::task::yield_now().await;
    }
    waiters.join_all().await;
    assert_eq!(*order.lock().unwrap(), Vec::from_iter(0..8));
    assert_eq!((most.load(SeqCst), asked.load(SeqCst)), (1, 16));
}

#[tokio::test]
async fn waiters_never_check_before_the_reported_time() {
    let reset = Duration::from_millis(50);
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&times);
    let client = scripted(move |_| {
        let mut seen = seen.lock().unwrap();
        seen.push(Instant::now());
        let answer = if seen.len() < 4 { refusal(Some(reset)) } else { allowed() };
        async { Ok(answer) }
    })
    .await;
    client.acquire(mail(), Duration::MAX).await.unwrap();
    let times = times.lock().unwrap();
    let gaps: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps.len(), 3);
    assert!(gaps.iter().all(|gap| *gap > reset), "{gaps:?}");
}

#[tokio::test]
async fn refusal_without_a_time_is_asked_again_later() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let client = scripted(move |_| {
        let is_refused = count.fetch_add(1, SeqCst) < 2;
        async move { Ok(if is_refused { refusal(None) } else { allowed() }) }
    })
    .await;
    client.acquire(mail(), Duration::from_secs(60)).await.unwrap();
    assert_eq!(asked.load(SeqCst), 3);
}

#[tokio::test]
async fn maximum_wait_ends_the_wait() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let client = scripted(move |_| {
        count.fetch_add(1, SeqCst);
        async { Ok(refusal(Some(Duration::from_secs(3_600)))) }
    })
    .await;
    // Without a wait, and at once because an hour is too long.
    for max_wait in [Duration::ZERO, Duration::from_secs(60)] {
        let result = client.acquire(mail(), max_wait).await;
        assert_eq!(result, Err(AcquireError::WaitExceeded));
    }
    assert_eq!(asked.load(SeqCst), 2);
    // Behind another waiter, who asked.
    let mut first = std::pin::pin!(client.acquire(mail(), Duration::MAX));
    assert!(timeout(Duration::from_millis(50), &mut first).await.is_err());
    for max_wait in [Duration::ZERO, Duration::from_millis(20)] {
        let result = client.acquire(mail(), max_wait).await;
        assert_eq!(result, Err(AcquireError::WaitExceeded));
    }
    // Another key is independent.
    let other = Check::new("shop").descriptor([("provider", "sms")]);
    assert_eq!(client.acquire(other, Duration::ZERO).await, Err(AcquireError::WaitExceeded));
}

#[tokio::test]
async fn failed_check_ends_the_wait_of_its_caller() {
    let client = client_of(format!("http://{}", free_address().await).parse().unwrap());
    let result = client.acquire(mail(), Duration::MAX).await;
    assert!(
        matches!(result, Err(AcquireError::Check(CheckError::Unavailable { .. }))),
        "{result:?}"
    );
}

#[tokio::test]
async fn waiter_dropped_during_its_check_is_refunded() {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let charged = Arc::new(AtomicI64::new(0));
    let (a, b, c) = (Arc::clone(&asked), Arc::clone(&answer), Arc::clone(&charged));
    let is_first = AtomicUsize::new(0);
    let client = scripted(move |request| {
        let (asked, answer, charged) = (Arc::clone(&a), Arc::clone(&b), Arc::clone(&c));
        let is_first = is_first.fetch_add(1, SeqCst) == 0;
        async move {
            charged.fetch_add(hits(&request), SeqCst);
            if is_first {
                asked.notify_one();
                answer.notified().await;
            }
            Ok(allowed())
        }
    })
    .await;
    let waiter = tokio::spawn({
        let client = client.clone();
        async move { client.acquire(mail().hits(3), Duration::MAX).await }
    });
    asked.notified().await;
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    assert_eq!(charged.load(SeqCst), 3);

    // The next waiter asks when that is settled.
    let mut next = std::pin::pin!(client.acquire(mail(), Duration::MAX));
    assert!(timeout(Duration::from_millis(50), &mut next).await.is_err());
    answer.notify_one();
    next.await.unwrap();
    assert_eq!(charged.load(SeqCst), 1);
}

/// Futures that are dropped at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_waiters_charge_nothing() {
    let (client, charged) = counting(Duration::from_micros(300)).await;
    let acquired = Arc::new(AtomicI64::new(0));
    let mut waiters = JoinSet::new();
    for number in 0..300 {
        let (client, acquired) = (client.clone(), Arc::clone(&acquired));
        waiters.spawn(async move {
            let acquire = client.acquire(mail(), Duration::MAX);
            if timeout(Duration::from_micros(number * 400), acquire).await.is_ok() {
                acquired.fetch_add(1, SeqCst);
            }
        });
    }
    waiters.join_all().await;
    assert!(acquired.load(SeqCst) > 0);
    // Awaits the refunds.
    client.close().await;
    assert_eq!(charged.load(SeqCst), acquired.load(SeqCst));
}

#[tokio::test]
async fn close_ends_waits() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let client = scripted(move |_| {
        count.fetch_add(1, SeqCst);
        async { Ok(refusal(Some(Duration::from_secs(3_600)))) }
    })
    .await;
    let mut waiters = JoinSet::new();
    for _ in 0..2 {
        let client = client.clone();
        waiters.spawn(async move { client.acquire(mail(), Duration::MAX).await });
    }
    let pacer = Pacer::builder(&client, mail()).build().unwrap();
    let job = tokio::spawn({
        let pacer = pacer.clone();
        async move { pacer.run(0, async {}).await }
    });
    until(|| asked.load(SeqCst) == 1).await;
    client.close().await;
    for result in waiters.join_all().await {
        assert_eq!(result, Err(AcquireError::Closed));
    }
    assert_eq!(job.await.unwrap(), Err(AcquireError::Closed));
    assert_eq!(client.acquire(mail(), Duration::ZERO).await, Err(AcquireError::Closed));
    assert_eq!(pacer.run(0, async {}).await, Err(AcquireError::Closed));
    assert!(client.check(mail()).await.is_ok());
}

/// Runs that many jobs of each of two priorities. Returns the priorities in the order in which the jobs started.
async fn run_both_priorities(pacer: &Pacer, jobs_each: usize) -> Vec<usize> {
    let started = Arc::new(Mutex::new(Vec::new()));
    let mut jobs = JoinSet::new();
    for _ in 0..jobs_each {
        for priority in 0..2 {
            let (pacer, started) = (pacer.clone(), Arc::clone(&started));
            jobs.spawn(async move {
                let job = async { started.lock().unwrap().push(priority) };
                pacer.run(priority, job).await.unwrap();
            });
        }
    }
    jobs.join_all().await;
    started.lock().unwrap().clone()
}

#[tokio::test]
async fn pacer_shares_by_weight() {
    let (client, charged) = counting(Duration::from_millis(1)).await;
    let pacer = Pacer::builder(&client, mail()).weights([3, 1]).build().unwrap();
    let started = run_both_priorities(&pacer, 40).await;
    // The first jobs start before others have come.
    let low = started[..40].iter().filter(|priority| **priority == 1).count();
    assert!((8..=12).contains(&low), "{started:?}");
    assert_eq!((started.len(), charged.load(SeqCst)), (80, 80));
}

#[tokio::test]
async fn idle_priority_saves_nothing_up() {
    let (client, _) = counting(Duration::from_millis(1)).await;
    let pacer = Pacer::builder(&client, mail()).weights([1, 1]).build().unwrap();
    for _ in 0..20 {
        pacer.run(0, async {}).await.unwrap();
    }
    let started = run_both_priorities(&pacer, 10).await;
    let first: usize = started[..10].iter().sum();
    assert!((4..=6).contains(&first), "{started:?}");
}

#[tokio::test]
async fn pacer_returns_the_output_of_the_job() {
    let (client, _) = counting(Duration::ZERO).await;
    let pacer = Pacer::builder(&client, mail()).build().unwrap();
    let output: Result<Result<(), &str>, AcquireError> =
        pacer.run(0, async { Err("failed") }).await;
    assert_eq!(output, Ok(Err("failed")));
    assert_eq!(pacer.run(1, async {}).await, Err(AcquireError::UnknownPriority(1)));
    for weights in [&[][..], &[0], &[3, 0]] {
        let pacer = Pacer::builder(&client, mail()).weights(weights.iter().copied()).build();
        assert_eq!(pacer.unwrap_err(), InvalidWeights);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_jobs_do_not_run_and_charge_nothing() {
    let (client, charged) = counting(Duration::from_micros(100)).await;
    let pacer = Pacer::builder(&client, mail()).build().unwrap();
    let ran = Arc::new(AtomicI64::new(0));
    let mut jobs = JoinSet::new();
    for number in 0..300 {
        let (pacer, ran) = (pacer.clone(), Arc::clone(&ran));
        jobs.spawn(async move {
            let job = async { ran.fetch_add(1, SeqCst) };
            let _ = timeout(Duration::from_micros(number * 200), pacer.run(0, job)).await;
        });
    }
    jobs.join_all().await;
    assert!(ran.load(SeqCst) > 0);
    client.close().await;
    assert_eq!(charged.load(SeqCst), ran.load(SeqCst));
}

#[tokio::test]
async fn pacer_waits_while_the_service_does_not_answer() {
    let asked = AtomicUsize::new(0);
    let client = scripted(move |_| {
        let number = asked.fetch_add(1, SeqCst);
        async move {
            match number {
                0 | 1 => Err(Status::unavailable("why")),
                3 => Err(Status::invalid_argument("why")),
                4 => Err(Status::internal("why")),
                _ => Ok(allowed()),
            }
        }
    })
    .await;
    let reported = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reported);
    let pacer = Pacer::builder(&client, mail())
        .on_error(move |_| {
            count.fetch_add(1, SeqCst);
        })
        .build()
        .unwrap();
    assert_eq!(pacer.run(0, async { 7 }).await, Ok(7));
    assert_eq!(reported.load(SeqCst), 2);
    // Waiting would not help.
    let result = pacer.run(0, pending::<()>()).await;
    assert!(
        matches!(result, Err(AcquireError::Check(CheckError::InvalidRequest { .. }))),
        "{result:?}"
    );
    let result = pacer.run(0, pending::<()>()).await;
    let code = GrpcCode::Internal;
    assert!(
        matches!(&result, Err(AcquireError::Check(CheckError::Other { code: it, .. })) if *it == code),
        "{result:?}"
    );
}
