//! Failures of Redis under load: no call fails, no limit is exceeded, and afterwards limits are exact again.

use std::{fs, time::Duration};

use sluicegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use sluicegate_tests::{
    Asked, Cluster, Fleet, Load, Mode, Proxy, Redis, Sentinels, Setup, chain, hit, until,
};

/// So high that it lasts longer than the fault.
const LIMIT: usize = 3_000;

/// Rules whose admitted hits the test counts have `on_failure: deny`.
const LIMITS: &str = "
domain: api
tenant: tenant
on_failure: deny
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3000}
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 3000}
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1000000}
";

const CALLERS: usize = 16;
const REST: Duration = Duration::from_millis(20);

/// Callers of two servers that compete for the same hits.
struct Scene {
    fleet: Fleet,
    load: Load,
    /// Hits that were charged in a store that has lost them.
    forgotten: Before,
}

/// Counts at the start of a phase.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    admitted: usize,
    hits_unknown: f64,
}

impl Scene {
    async fn start(store: &str) -> Self {
        Self::with(store, &[], vec![hit("user", "hot")]).await
    }

    /// Starts when some hits have been admitted.
    async fn with(store: &str, flags: &[&str], requests: Vec<RateLimitRequest>) -> Self {
        let fleet = fleet(store, flags).await;
        let load = fleet.load(CALLERS, REST, requests).await;
        load.admits(200).await;
        Self { fleet, load, forgotten: Before::default() }
    }

    /// Waits until the failure policy has answered more requests.
    async fn policy_answers(&self) {
        let answered = || async {
            self.fleet.sum("sluicegate_decisions_total", &[("source", "policy")]).await
        };
        let before = answered().await;
        until("the policy to answer", || async {
            (answered().await > before + 50.0).then_some(())
        })
        .await;
    }

    /// Marks that the store has lost its counters. Called while nothing is admitted.
    async fn forget(&mut self) {
        let hits_unknown = self.fleet.hits_unknown().await;
        self.forgotten = Before { admitted: self.load.admitted(), hits_unknown };
        assert!(self.forgotten.admitted <= LIMIT, "{:?}", self.forgotten);
    }

    /// Asserts, after the fault, that hits are admitted again up to the limit and no further.
    async fn end(self) {
        let Self { fleet, load, forgotten } = self;
        fleet.until_available().await;
        load.admits(50).await;
        used_up(&fleet, &load, forgotten, LIMIT).await;
        assert_sound(&fleet, &load.stop().await).await;
        assert_exact(&fleet).await;
    }
}

async fn fleet(store: &str, flags: &[&str]) -> Fleet {
    let own = ["--store", store, "--decision-timeout", "50ms"];
    Fleet::start(2, LIMITS, &[&own, flags].concat()).await
}

/// Waits until the limit is used up, and asserts that no more hits were admitted. Unknown hits count as used.
async fn used_up(fleet: &Fleet, load: &Load, before: Before, there_is: usize) {
    let admitted = || load.admitted() - before.admitted;
    until("all that there is to be admitted", || async {
        let missing = u32::try_from(there_is.saturating_sub(admitted())).unwrap();
        (f64::from(missing) <= fleet.hits_unknown().await - before.hits_unknown).then_some(())
    })
    .await;
    load.refuses(200).await;
    assert!(admitted() <= there_is, "{} of {there_is}", admitted());
}

/// Asserts that no call has failed, no answer was late, and no server has panicked.
async fn assert_sound(fleet: &Fleet, asked: &[Asked]) {
    let failed: Vec<_> = asked.iter().filter(|asked| asked.answer.is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    for server in &fleet.servers {
        let late = server.metric("sluicegate_decisions_late_total").await;
        let delay = server.metric("sluicegate_scheduling_delay_max_seconds").await;
        println!("the machine kept the server waiting for {delay} s");
        assert_eq!(late, 0.0);
        let log = server.process.output();
        assert!(!log.contains("panicked"), "{log}");
    }
    println!("{} hits may be charged although no answer admitted them", fleet.hits_unknown().await);
}

/// Asserts that a new limit is admitted exactly.
async fn assert_exact(fleet: &Fleet) {
    let before = Before { admitted: 0, hits_unknown: fleet.hits_unknown().await };
    let load = fleet.load(CALLERS, Duration::ZERO, vec![hit("user", "new")]).await;
    used_up(fleet, &load, before, LIMIT).await;
}

// === One Redis ===

/// Number of connections that it has received since its start.
async fn connections(redis: &Redis) -> u64 {
    let received = redis.info("stats", "total_connections_received").await.unwrap();
    received.unwrap().parse().unwrap()
}

#[tokio::test]
async fn redis_hangs_for_five_seconds() {
    let mut redis = Redis::start().await;
    let scene = Scene::start(&redis.url()).await;
    let before = connections(&redis).await;
    redis.pause();
    scene.policy_answers().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    redis.resume();
    scene.fleet.until_available().await;
    // Reconnects are limited: two servers with two connections each try about once per second.
    let after = connections(&redis).await;
    assert!(after - before <= 50, "{}", after - before);
    scene.end().await;
}

#[tokio::test]
async fn redis_dies_and_comes_back_empty() {
    let mut redis = Redis::start().await;
    let mut scene = Scene::start(&redis.url()).await;
    redis.kill().await;
    scene.policy_answers().await;
    scene.forget().await;
    redis.restart().await;
    scene.end().await;
}

#[tokio::test]
async fn scripts_are_flushed() {
    let redis = Redis::start().await;
    let scene = Scene::start(&redis.url()).await;
    for _ in 0..20 {
        redis.query(&["SCRIPT", "FLUSH"]).await;
        scene.load.admits(10).await;
    }
    scene.end().await;
}

#[tokio::test]
async fn redis_becomes_read_only() {
    let redis = Redis::start().await;
    let scene = Scene::start(&redis.url()).await;
    // A replica of an unreachable server keeps its keys.
    redis.query(&["REPLICAOF", "127.0.0.1", "1"]).await;
    scene.policy_answers().await;
    redis.query(&["REPLICAOF", "NO", "ONE"]).await;
    scene.end().await;
}

#[tokio::test]
async fn redis_is_out_of_memory() {
    let redis = Redis::start().await;
    let scene = Scene::start(&redis.url()).await;
    redis.query(&["CONFIG", "SET", "maxmemory", "1"]).await;
    scene.policy_answers().await;
    redis.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    scene.end().await;
}

#[tokio::test]
async fn the_password_is_rotated() {
    let redis = Setup::new().user("admin", "admin").start().await;
    let everything = ["~*", "&*", "+@all"];
    let user = ["ACL", "SETUSER", "limiter", "on", ">one"];
    redis.query(&[&user[..], &everything].concat()).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "one\n").unwrap();
    let path = file.path().to_str().unwrap();
    let flags = ["--redis-username", "limiter", "--redis-password-file", path];
    let scene = Scene::with(&redis.url(), &flags, vec![hit("user", "hot")]).await;
    redis.query(&["ACL", "SETUSER", "limiter", "<one", ">two"]).await;
    // Open connections stay authenticated.
    redis.query(&["CLIENT", "KILL", "USER", "limiter"]).await;
    scene.policy_answers().await;
    fs::write(&file, "two\n").unwrap();
    scene.end().await;
}

// === The network ===

/// The network behaves like this until the failure policy has answered.
async fn network(mode: Mode) {
    let redis = Redis::start().await;
    let proxy = Proxy::start(&redis.address()).await;
    let scene = Scene::start(&format!("redis://{}", proxy.address())).await;
    proxy.set(mode);
    scene.policy_answers().await;
    proxy.set(Mode::Pass);
    scene.end().await;
}

#[tokio::test]
async fn connections_are_refused() {
    network(Mode::Refuse).await;
}

#[tokio::test]
async fn the_network_drops_everything() {
    network(Mode::Swallow).await;
}

#[tokio::test]
async fn replies_are_too_late() {
    network(Mode::Delay(Duration::from_millis(200))).await;
}

#[tokio::test]
async fn connections_break_in_the_middle_of_a_reply() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(&redis.address()).await;
    let scene = Scene::start(&format!("redis://{}", proxy.address())).await;
    for bytes in 1..=20 {
        proxy.set(Mode::Cut(bytes));
        until("a connection to be cut", || async { (proxy.mode() == Mode::Pass).then_some(()) })
            .await;
        scene.load.admits(10).await;
    }
    scene.end().await;
}

// === A cluster ===

#[tokio::test]
async fn a_slot_moves_under_load() {
    let cluster = Cluster::start().await;
    let entries = [("tenant", "acme"), ("user", "bob")];
    let scene = Scene::with(&cluster.url(), &[], vec![chain(&entries)]).await;
    let slot = cluster.slot("{acme}").await;
    let to = (cluster.primary_of(slot).await.unwrap() + 1) % 3;
    let migration = cluster.migrate_start(slot, to).await;
    scene.load.admits(50).await;
    // The keys of the chain are on two nodes, so neither can settle it.
    assert_eq!(cluster.migrate_keys(migration, 1).await, 1);
    scene.policy_answers().await;
    assert_eq!(cluster.migrate_keys(migration, 100).await, 1);
    // The new owner answers redirected calls.
    scene.load.admits(50).await;
    cluster.migrate_end(migration).await;
    scene.load.admits(50).await;
    scene.end().await;
}

#[tokio::test]
async fn a_scale_out_under_load_affects_no_decision() {
    let mut cluster = Cluster::start().await;
    let users: Vec<_> = (0..8).map(|user| format!("user{user}")).collect();
    // So high that no limit is used up.
    let limits = LIMITS.replace("3000}", "1000000}");
    // Every answer must be the store's.
    let flags = ["--store", &cluster.url(), "--decision-timeout", "5s"];
    let fleet = Fleet::start(2, &limits, &flags).await;
    let requests = users.iter().map(|user| hit("user", user)).collect();
    let load = fleet.load(CALLERS, REST, requests).await;
    load.admits(200).await;
    let added = cluster.add_primary().await;
    for user in &users {
        let slot = cluster.slot(&format!("{{api:user={user}}}")).await;
        let migration = cluster.migrate_start(slot, added).await;
        load.admits(20).await;
        cluster.migrate_end(migration).await;
        load.admits(20).await;
    }
    assert!(cluster.nodes[added].calls("evalsha").await > 0);
    let asked = load.stop().await;
    let refused: Vec<_> = asked.iter().filter(|asked| !asked.is_admitted()).collect();
    let log = || fleet.servers.iter().map(|it| it.process.output()).collect::<String>();
    assert!(refused.is_empty(), "{refused:?}\n{}", log());
    for source in ["policy", "local"] {
        let answered = fleet.sum("sluicegate_decisions_total", &[("source", source)]).await;
        assert_eq!(answered, 0.0, "{source}");
    }
    // No hit was lost during the move: the counters have exactly the admitted hits.
    let mut counted = 0;
    for user in &users {
        counted += 1_000_000 - fleet.remaining(&[("user", user)]).await;
    }
    assert_eq!(counted, asked.len());
}

/// Callers of a hot counter, which stop when its primary fails, and callers of other counters, which continue.
struct FailOver {
    scene: Scene,
    hot: Load,
}

impl FailOver {
    async fn start(store: &str) -> Self {
        let others = (0..32).map(|user| hit("user", &format!("user{user}")));
        let scene = Scene::with(store, &[], others.collect()).await;
        let hot = scene.fleet.load(CALLERS, REST, vec![hit("user", "hot")]).await;
        hot.admits(200).await;
        Self { scene, hot }
    }

    /// Called when the primary has failed: no request uses the hot counter until another primary has taken over.
    async fn failed(self) -> (Scene, usize) {
        let asked = self.hot.stop().await;
        assert_sound(&self.scene.fleet, &asked).await;
        let admitted = asked.iter().filter(|asked| asked.is_admitted()).count();
        self.scene.policy_answers().await;
        (self.scene, admitted)
    }
}

/// Asserts, after another primary has taken over, that exactly the rest of the limit is admitted according to its
/// counters. So the excess is what the former primary had admitted and not replicated.
async fn assert_rest_is_exact(scene: Scene, admitted: usize, resume: impl FnOnce()) {
    let Scene { fleet, load, .. } = scene;
    fleet.until_available().await;
    load.admits(50).await;
    // Not the answer of a failure policy, if the machine pauses Redis.
    let rest = until("the new primary's answer", || async {
        Some(fleet.remaining(&[("user", "hot")]).await).filter(|rest| *rest > 0)
    })
    .await;
    println!("{admitted} hits were admitted, the new primary knows of {}", LIMIT - rest);
    let before = Before { admitted: 0, hits_unknown: fleet.hits_unknown().await };
    let hot = fleet.load(CALLERS, REST, vec![hit("user", "hot")]).await;
    hot.admits(50).await;
    resume();
    used_up(&fleet, &hot, before, rest).await;
    for load in [load, hot] {
        assert_sound(&fleet, &load.stop().await).await;
    }
    assert_exact(&fleet).await;
}

#[tokio::test]
async fn a_cluster_primary_dies() {
    let mut cluster = Cluster::start().await;
    let slot = cluster.slot("{api:user=hot}").await;
    let scene = FailOver::start(&cluster.url()).await;
    let primary = cluster.primary_of(slot).await.unwrap();
    cluster.nodes[primary].kill().await;
    let (scene, admitted) = scene.failed().await;
    cluster.until_taken_over(slot, primary).await;
    assert_rest_is_exact(scene, admitted, || {}).await;
}

#[tokio::test]
async fn a_replaced_cluster_primary_admits_nothing_when_resumed() {
    let mut cluster = Cluster::start().await;
    let slot = cluster.slot("{api:user=hot}").await;
    let scene = FailOver::start(&cluster.url()).await;
    let primary = cluster.primary_of(slot).await.unwrap();
    cluster.nodes[primary].pause();
    let (scene, admitted) = scene.failed().await;
    cluster.until_taken_over(slot, primary).await;
    assert_rest_is_exact(scene, admitted, || cluster.nodes[primary].resume()).await;
}

#[tokio::test]
async fn sentinels_promote_another_primary() {
    let mut sentinels = Sentinels::start().await;
    let scene = FailOver::start(&sentinels.url()).await;
    let primary = sentinels.primary().await.unwrap();
    sentinels.servers[primary].kill().await;
    let (scene, admitted) = scene.failed().await;
    sentinels.until_taken_over(primary).await;
    assert_rest_is_exact(scene, admitted, || {}).await;
}

#[tokio::test]
async fn a_replaced_sentinel_primary_admits_nothing_when_resumed() {
    let mut sentinels = Sentinels::start().await;
    let scene = FailOver::start(&sentinels.url()).await;
    let primary = sentinels.primary().await.unwrap();
    sentinels.servers[primary].pause();
    let (scene, admitted) = scene.failed().await;
    sentinels.until_taken_over(primary).await;
    assert_rest_is_exact(scene, admitted, || sentinels.servers[primary].resume()).await;
}

#[tokio::test]
async fn the_only_configured_cluster_node_dies() {
    let mut cluster = Cluster::start().await;
    let slot = cluster.slot("{api:user=hot}").await;
    let primary = cluster.primary_of(slot).await.unwrap();
    let url = format!("redis-cluster://{}", cluster.nodes[primary].address());
    let scene = FailOver::start(&url).await;
    cluster.nodes[primary].kill().await;
    let (scene, admitted) = scene.failed().await;
    cluster.until_taken_over(slot, primary).await;
    assert_rest_is_exact(scene, admitted, || {}).await;
}

#[tokio::test]
async fn only_the_counters_of_the_dead_primary_fail() {
    let config = "cluster-require-full-coverage no";
    let mut cluster = Cluster::of(Setup::new().config(config)).await;
    let fleet = fleet(&cluster.url(), &[]).await;
    let users: Vec<_> = (0..32).map(|user| format!("user{user}")).collect();
    let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
    for user in &users {
        let slot = cluster.slot(&format!("{{api:user={user}}}")).await;
        let of_first = cluster.primary_of(slot).await == Some(0);
        (if of_first { &mut here } else { &mut elsewhere }).push(hit("user", user));
    }
    let dead = fleet.load(4, REST, here).await;
    let alive = fleet.load(4, REST, elsewhere).await;
    dead.admits(50).await;
    cluster.nodes[0].kill().await;
    dead.refuses(50).await;
    alive.admits(50).await;
    assert_eq!(alive.refused(), 0);
    assert_sound(&fleet, &dead.stop().await).await;
    assert_sound(&fleet, &alive.stop().await).await;
}
