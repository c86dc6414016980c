//! Times of the steps of a request:
//!
//! ```sh
//! cargo bench -p sluicegate-instructions
//! ```

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a program for people")]

#[path = "../src/measured.rs"]
mod measured;

use criterion::{Criterion, criterion_group, criterion_main};

fn times(criterion: &mut Criterion) {
    for measured in measured::ALL {
        let mut operation = (measured.prepare)();
        let mut tenants = (0..measured::TENANTS).cycle();
        criterion.bench_function(measured.name, |bencher| {
            bencher.iter(|| tenants.next().map(&mut operation));
        });
    }
}

criterion_group!(benches, times);
criterion_main!(benches);
