//! A worker that calls a provider no faster than the provider allows. Each line of its input is a job: `interactive NUMBER` or
//! `batch NUMBER`. While both kinds wait, three of four calls are interactive.

use std::{env, error::Error, time::Duration};

use reqwest::{Response, StatusCode};
use sluicegate_client::{AcquireError, Check, Client, Pacer, backoff, parse_retry_after};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, stdin},
    task::JoinSet,
    time::sleep,
};

const ATTEMPTS_MAX: u32 = 10;

#[derive(Clone)]
struct Worker {
    pacer: Pacer,
    http: reqwest::Client,
    provider: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let option = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let endpoint = option("SLUICEGATE_URL", "http://localhost:8081");
    // No caller waits for an answer here, so a late verdict is better than none.
    let client =
        Client::builder(endpoint.parse()?).deadline(Duration::from_secs(1)).connect_lazy()?;
    let check = Check::new("tokio_worker").descriptor([("provider", "mail")]);
    let pacer = Pacer::builder(&client, check)
        .weights([3, 1])
        .on_error(|error| eprintln!("{error}"))
        .build()?;
    let provider = option("PROVIDER", "http://localhost:9000");
    let worker = Worker { pacer, http: reqwest::Client::new(), provider };

    let mut jobs = JoinSet::new();
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(job) = lines.next_line().await? {
        let worker = worker.clone();
        jobs.spawn(async move {
            let result = worker.send(&job).await;
            match result {
                Ok(status) => println!("{job}: {status}"),
                Err(error) => eprintln!("{job}: {error}"),
            }
        });
    }
    jobs.join_all().await;
    // Nothing that was charged for an abandoned job stays charged.
    client.close().await;
    Ok(())
}

impl Worker {
    async fn send(&self, job: &str) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
        let priority = usize::from(!job.starts_with("interactive"));
        for attempt in 0..ATTEMPTS_MAX {
            let response = self.pacer.run(priority, self.call(job)).await??;
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return Ok(response.status());
            }
            // The provider refuses only if other programs use its limit too.
            sleep(backoff(parse_retry_after(response.headers()), attempt)).await;
        }
        Err(AcquireError::WaitExceeded.into())
    }

    async fn call(&self, job: &str) -> reqwest::Result<Response> {
        self.http.post(&self.provider).body(job.to_owned()).send().await
    }
}
