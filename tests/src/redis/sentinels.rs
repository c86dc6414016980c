//! Starts Redis servers with sentinels.

use futures::future::join_all;

use super::{Redis, Setup};
use crate::until;

/// The sentinels' name for the primary.
const NAME: &str = "limits";

/// A primary, two Redis replicas, and three sentinels. Two sentinels must agree that the primary is down.
#[derive(Debug)]
pub struct Sentinels {
    /// The servers; the first one began as primary.
    pub servers: Vec<Redis>,
    sentinels: Vec<Redis>,
}

impl Sentinels {
    /// Starts all servers, and waits until each sentinel knows the others and the replicas are in sync: earlier, no
    /// replica could take over.
    pub async fn start() -> Self {
        Self::of(Setup::new(), "").await
    }

    /// The same with a password for the servers, and none for the sentinels.
    pub async fn with_password(password: &str) -> Self {
        let server = Setup::new().user("default", password);
        let known = format!("sentinel auth-pass {NAME} {password}");
        Self::of(server.config(&format!("masterauth {password}")), &known).await
    }

    async fn of(server: Setup, known: &str) -> Self {
        let primary = server.clone().start().await;
        let replica = server.config(&format!("replicaof 127.0.0.1 {}", primary.port));
        let watch = format!("sentinel monitor {NAME} 127.0.0.1 {} 2", primary.port);
        let mut servers = vec![primary];
        servers.extend(join_all([replica.clone().start(), replica.start()]).await);
        for server in &servers {
            server.until_synced().await;
        }
        let sentinel = Setup::sentinel()
            .config(&watch)
            .config(known)
            .config(&format!("sentinel down-after-milliseconds {NAME} 500"))
            .config(&format!("sentinel failover-timeout {NAME} 3000"));
        let sentinels = join_all((0..3).map(|_| sentinel.clone().start())).await;
        for sentinel in &sentinels {
            until("the sentinel to know the others", || async {
                let seen = sentinel.info("sentinel", "master0").await.ok()??;
                let others = ["status=ok", "slaves=2", "sentinels=3"];
                others.iter().all(|other| seen.contains(other)).then_some(())
            })
            .await;
        }
        Self { servers, sentinels }
    }

    /// The URL for `--store`.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(Redis::address).collect();
        format!("redis-sentinel://{}/{NAME}", addresses.join(","))
    }

    /// Position of the server that most sentinels report as the primary.
    pub async fn primary(&self) -> Option<usize> {
        let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
        let named = join_all(self.sentinels.iter().map(|it| it.query(&address))).await;
        let agreed = |server: &Redis| {
            let address = server.address().replace(':', "\n");
            named.iter().filter(|named| **named == address).count() >= 2
        };
        self.servers.iter().position(agreed)
    }

    /// Waits until the sentinels report another primary than `former`, and that server accepts writes.
    pub async fn until_taken_over(&self, former: usize) -> usize {
        until("another primary", || async {
            let successor = self.primary().await.filter(|place| *place != former)?;
            (!self.servers[successor].is_replica().await).then_some(successor)
        })
        .await
    }
}
