//! Windows that do not end during a test.

use std::{sync::LazyLock, time::SystemTime};

use sluicegate_core::{Window, limit::Unit};

const DAY: u64 = 86_400;

static LONG: LazyLock<Window> = LazyLock::new(|| long_at(now()));

/// An aligned window that ends in more than a day: 365 days, or 366 days if the window of 365 days ends sooner. The
/// same for the whole process.
#[must_use]
pub fn long_window() -> Window {
    *LONG
}

/// Seconds until [`long_window`] ends.
#[must_use]
pub fn until_long_window_ends() -> u64 {
    left(long_window(), now())
}

/// Replaces each window of a day by [`long_window`], in limits files and in output.
#[must_use]
pub fn long_windows(text: &str) -> String {
    let (window, seconds) = (long_window(), long_window().seconds());
    let rate = match window.in_units() {
        (unit, 1) => format!(" per {}", unit.name()),
        (unit, multiplier) => format!(" per {multiplier} {}s", unit.name()),
    };
    let text = text.replace("unit: day", &format!("window: {seconds}s")).replace(" per day", &rate);
    let numbers = text.split_inclusive(|it: char| !it.is_ascii_digit());
    let replaced = numbers.map(|number| match number.strip_prefix("86400") {
        Some(rest) if !rest.starts_with(|it: char| it.is_ascii_digit()) => {
            format!("{seconds}{rest}")
        }
        _ => number.to_owned(),
    });
    replaced.collect()
}

fn long_at(now: u64) -> Window {
    let year = Window::from_unit(Unit::Year, 1).unwrap();
    if left(year, now) > DAY { year } else { Window::MAX }
}

fn left(window: Window, now: u64) -> u64 {
    let seconds = u64::from(window.seconds());
    seconds - now % seconds
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_windows_end_in_more_than_a_day() {
        // From 2024 to 2133.
        for day in 20_000..60_000 {
            for now in [day * DAY, day * DAY + DAY - 1] {
                assert!(left(long_at(now), now) > DAY, "{now}");
            }
        }
        assert_eq!(long_at(57 * 365 * DAY - 1), Window::MAX);
        assert_eq!(long_at(57 * 365 * DAY).in_units(), (Unit::Year, 1));
    }

    #[test]
    fn long_windows_replace_days_only() {
        let seconds = long_window().seconds();
        let text = long_windows("s1:fw:86400:a, w=86400, 864000, 186400, {unit: day, n: 1}");
        let expected =
            format!("s1:fw:{seconds}:a, w={seconds}, 864000, 186400, {{window: {seconds}s, n: 1}}");
        assert_eq!(text, expected);
    }
}
