//! The servers of the benchmark with an allocator that counts allocations. A separate program, because counting costs
//! time.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a program for people: what cannot be measured ends it"
)]

mod empty_server;

use std::{alloc::System, env, io::Write, net::TcpListener, thread};

use clap::Parser;
use sluicegate::{
    app::App,
    settings::{Cli, Command},
};
use sluicegate_core::Algorithm;
use sluicegate_store::{Clocks, Memory, MemorySettings, SystemClock};
use sluicegate_tests::counter_costs;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["empty-server"] => {
            report_allocations();
            empty_server::serve();
        }
        ["memory-store", algorithm, counters] => {
            let algorithm = Algorithm::ALL.into_iter().find(|it| it.name() == algorithm);
            memory_store(algorithm.expect("no such algorithm"), counters.parse().unwrap());
        }
        _ => {
            report_allocations();
            serve();
        }
    }
}

/// Reports the number of allocations so far on each connection.
fn report_allocations() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("counting at {}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for caller in listener.incoming() {
            let stats = ALLOCATOR.stats();
            // A block that grows may be moved to a new allocation.
            writeln!(caller.unwrap(), "{}", stats.allocations + stats.reallocations).unwrap();
        }
    });
}

/// Serves as `sluicegate serve` does, without end.
#[tokio::main]
async fn serve() {
    let Command::Serve(settings) = Cli::parse().command else {
        panic!("only serves");
    };
    let app = App::start(&settings, Clocks::system()).await.unwrap();
    let admin = app.admin_address().expect("the admin listener is on");
    println!("serving grpc={} http={} admin={admin}", app.grpc_address(), app.http_address());
    std::future::pending::<()>().await;
}

/// Prints the bytes per counter of a memory store with this number of counters.
#[tokio::main(flavor = "current_thread")]
async fn memory_store(algorithm: Algorithm, counters: usize) {
    let allocated = || {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    };
    let before = allocated();
    let store = Memory::new(MemorySettings { counters_max: 1_000_000 }, SystemClock::new());
    counter_costs::charge(&store, algorithm, 0..counters).await;
    assert_eq!(store.len(), counters);
    println!("{}", (allocated() - before) / counters);
}
