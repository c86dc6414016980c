//! Clients that request large pages and do not read them.

use std::{fmt::Write as _, future::pending, time::Duration};

use sluicegate_tests::{HealthyClient, Sluicegate, request, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::sleep,
};

/// Maximum growth of memory with unread pages: one page of each kind per second for the longest time of a response, in
/// addition to what readers may hold, and what the allocator keeps.
const GROWTH_MAX: u64 = 128 << 20;

/// Maximum growth that remains afterwards: memory that the allocator keeps.
const REMAINS_MAX: u64 = 32 << 20;

const PAGES: [&str; 3] = ["/rlconfig", "/metrics", "/stats"];

/// Readers of each page.
const READERS: usize = 60;

fn tenant(number: usize) -> String {
    format!("a_tenant_with_a_long_name_{number}_{}", "x".repeat(100))
}

/// A rule for the healthy client, and enough rules for pages of megabytes.
fn limits() -> String {
    let mut limits = "\
domain: api
descriptors:
  - {key: healthy, rate_limit: {unit: second, requests_per_unit: 1000000}}
"
    .to_owned();
    for number in 0..20_000 {
        let name = tenant(number);
        let rule = "rate_limit: {unit: day, requests_per_unit: 1}";
        writeln!(limits, "  - {{key: tenant, value: {name}, {rule}}}").unwrap();
    }
    limits
}

/// Requests a page, and reads its beginning. The kernel's buffers are small.
async fn begin_to_read(address: &str, page: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let request = format!("GET {page} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

#[tokio::test]
async fn unread_pages_take_little_memory_and_time_out() {
    let server = Sluicegate::start(&limits(), &[]).await;
    // Metrics have series only of rules that were used.
    for first in (0..4_000).step_by(200) {
        let tenants: Vec<_> =
            (first..first + 200).map(|number| [("tenant", tenant(number))]).collect();
        let descriptors: Vec<_> = tenants.iter().map(<[_; 1]>::as_slice).collect();
        server.should_rate_limit(request(&descriptors)).await.unwrap();
    }
    let healthy = HealthyClient::start(&server).await;
    for page in PAGES {
        let length = server.get(page).await.1.len();
        println!("{page}: {length} bytes");
        assert!(length > 1 << 20, "{page} has {length} bytes");
    }
    let before = server.process.resident_bytes();
    let grown = || server.process.resident_bytes().saturating_sub(before);
    let mut readers = Vec::new();
    let mut most = 0;
    for number in 0..READERS {
        for page in PAGES {
            let mut reader = begin_to_read(&server.http, page).await;
            // Clients that read nothing, a byte from time to time, or too few bytes per second.
            let mut taken = [vec![], vec![0; 1], vec![0; 4096]][number % 3].clone();
            readers.push(tokio::spawn(async move {
                while !taken.is_empty() && reader.read_exact(&mut taken).await.is_ok() {
                    sleep(Duration::from_millis(250)).await;
                }
                pending::<()>().await;
            }));
            most = most.max(grown());
        }
    }
    let series =
        "sluicegate_request_bounds_met_total{listener=\"http\",request_bound=\"answer_time\"}";
    until("all answers to be cut off", || async {
        let cut_off = server.metric(series).await;
        (cut_off >= (PAGES.len() * READERS) as f64).then_some(())
    })
    .await;
    most = most.max(grown());
    println!("unread pages: memory grew by {} KiB", most / 1024);
    assert!(most < GROWTH_MAX, "memory grew by {most} bytes");
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    until("memory to be given back", || async { (grown() < REMAINS_MAX).then_some(()) }).await;
    healthy.stop().await.assert_all_decided("unread pages");
    assert!(server.stop().await.success());
}
