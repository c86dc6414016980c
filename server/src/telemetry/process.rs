//! Metrics that the system provides about the process, under the names of Prometheus' client libraries.

use procfs::process::{LimitValue, Process, Stat};

use super::{
    catalogue::{self, Gauge},
    instruments::Instruments,
};

/// Registers the metrics. Those that the system does not provide have no series.
pub(super) fn register(instruments: &Instruments) {
    let gauge = |metric: Gauge, read: fn(&Process) -> Option<u64>| {
        instruments.register_gauge(metric, move |observe| {
            if let Some(value) = Process::myself().ok().as_ref().and_then(read) {
                observe(value, &[]);
            }
        });
    };
    gauge(catalogue::PROCESS_RESIDENT_MEMORY_BYTES, |it| {
        Some(it.stat().ok()?.rss * procfs::page_size())
    });
    gauge(catalogue::PROCESS_VIRTUAL_MEMORY_BYTES, |it| Some(it.stat().ok()?.vsize));
    gauge(catalogue::PROCESS_THREADS, |it| u64::try_from(it.stat().ok()?.num_threads).ok());
    gauge(catalogue::PROCESS_OPEN_FDS, |it| u64::try_from(it.fd_count().ok()?).ok());
    gauge(catalogue::PROCESS_MAX_FDS, |it| match it.limits().ok()?.max_open_files.soft_limit {
        LimitValue::Value(max) => Some(max),
        LimitValue::Unlimited => None,
    });
    instruments.register_seconds_counter(catalogue::PROCESS_CPU_SECONDS, || {
        let stat = stat()?;
        Some(seconds(stat.utime + stat.stime))
    });
    instruments.register_seconds_gauge(catalogue::PROCESS_START_TIME_SECONDS, || {
        let boot = f64::from(u32::try_from(procfs::boot_time_secs().ok()?).ok()?);
        Some(boot + seconds(stat()?.starttime))
    });
}

fn stat() -> Option<Stat> {
    Process::myself().ok()?.stat().ok()
}

#[expect(clippy::cast_precision_loss, reason = "exact for 2^53 ticks")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}
