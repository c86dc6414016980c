//! What the system knows of this process, under the names that Prometheus' own clients use.

use procfs::process::{LimitValue, Process, Stat};

use super::{
    catalogue::{self, Gauge},
    instruments::Instruments,
};

/// Registers these metrics, as far as the system provides them.
pub(super) fn register(instruments: &Instruments) {
    let show = |metric: Gauge, read: fn(&Process) -> Option<u64>| {
        instruments.gauges(metric, move |show| {
            if let Some(value) = Process::myself().ok().as_ref().and_then(read) {
                show(value, &[]);
            }
        });
    };
    show(catalogue::PROCESS_MEMORY, |it| Some(it.stat().ok()?.rss * procfs::page_size()));
    show(catalogue::PROCESS_VIRTUAL_MEMORY, |it| Some(it.stat().ok()?.vsize));
    show(catalogue::PROCESS_THREADS, |it| u64::try_from(it.stat().ok()?.num_threads).ok());
    show(catalogue::PROCESS_FDS, |it| u64::try_from(it.fd_count().ok()?).ok());
    show(catalogue::PROCESS_FDS_MAX, |it| match it.limits().ok()?.max_open_files.soft_limit {
        LimitValue::Value(max) => Some(max),
        LimitValue::Unlimited => None,
    });
    instruments.seconds_count(catalogue::PROCESS_CPU, || {
        let stat = stat()?;
        Some(seconds(stat.utime + stat.stime))
    });
    instruments.seconds(catalogue::PROCESS_START, || {
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
