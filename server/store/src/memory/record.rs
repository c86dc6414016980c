//! A counter as stored in a shard: expiry, numbers of the state, and key, in one allocation, because there may be
//! millions:
//!
//! ```text
//! position of the key │ expiry  │ numbers of the state │ key
//! 1 byte              │ 7 bytes │ 8 bytes each         │ the rest
//! ```

use sluicegate_core::{Limit, Time, algorithm::State};

use crate::ClockTimes;

/// One counter.
#[derive(Debug)]
pub(super) enum Record {
    /// In the layout above.
    Packed(Box<[u8]>),
    /// A log, whose numbers are too many to be packed.
    Log(Box<Log>),
}

/// Two words keep the table of a shard small.
const _: () = assert!(size_of::<Record>() == 16);

/// A counter whose state is a log.
#[derive(Debug)]
pub(super) struct Log {
    key: Box<[u8]>,
    expires: Time,
    state: State,
}

/// Bytes of one number.
const WORD: usize = size_of::<u64>();

impl Record {
    pub(super) fn new(key: &[u8], state: State, expires: Time) -> Self {
        if matches!(state, State::SlidingWindowLog(_)) {
            return Self::Log(Box::new(Log { key: key.into(), expires, state }));
        }
        let numbers = state.numbers();
        let key_at = WORD + numbers.len() * WORD;
        let mut bytes = Vec::with_capacity(key_at + key.len());
        bytes.extend_from_slice(&head(key_at, expires));
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend_from_slice(key);
        Self::Packed(bytes.into_boxed_slice())
    }

    /// The key of the counter.
    pub(super) fn key(&self) -> &[u8] {
        match self {
            Self::Packed(bytes) => bytes.get(key_at(bytes)..).unwrap_or_default(),
            Self::Log(log) => &log.key,
        }
    }

    /// Time by the steady clock from which the state is unused.
    pub(super) fn expires(&self) -> Time {
        match self {
            Self::Packed(bytes) => {
                let head = bytes.first_chunk().copied().unwrap_or_default();
                Time::from_micros(0).after_micros(u64::from_le_bytes(head) >> 8)
            }
            Self::Log(log) => log.expires,
        }
    }

    /// Calls `change` with the state. `change` returns the time of the state. Returns the new expiry.
    pub(super) fn with_state(
        &mut self,
        limit: &Limit,
        now: ClockTimes,
        change: impl FnOnce(&mut State) -> Time,
    ) -> Time {
        match self {
            Self::Packed(bytes) => {
                let mut state = unpacked(bytes, limit);
                if let State::FixedWindow(counter) = &mut state {
                    counter.move_to_present(limit, now.wall);
                }
                let time = change(&mut state);
                let expires = expires(&state, limit, time, now);
                pack(bytes, &state, expires);
                expires
            }
            Self::Log(log) => {
                let time = change(&mut log.state);
                log.expires = expires(&log.state, limit, time, now);
                log.expires
            }
        }
    }
}

/// Expiry of a state by the steady clock. `time` is the time of the state, which may be ahead of `now`.
pub(super) fn expires(state: &State, limit: &Limit, time: Time, now: ClockTimes) -> Time {
    let ahead = time.as_micros().saturating_sub(now.for_algorithm(limit.algorithm()).as_micros());
    now.steady.after_micros(ahead).after_micros(state.expires_after(limit, time))
}

/// The state of a packed counter.
fn unpacked(bytes: &[u8], limit: &Limit) -> State {
    let algorithm = limit.algorithm();
    let (words, _) = bytes.as_chunks();
    let number = |at: usize| words.get(at).map_or(0, |&word| u64::from_le_bytes(word));
    let state = match key_at(bytes) / WORD {
        2 => State::from_numbers(algorithm, &[number(1)]),
        3 => State::from_numbers(algorithm, &[number(1), number(2)]),
        _ => State::from_numbers(algorithm, &[number(1), number(2), number(3)]),
    };
    state.unwrap_or_else(|| State::new(algorithm))
}

/// Overwrites the state of a packed counter. The number of numbers must not change.
fn pack(bytes: &mut [u8], state: &State, expires: Time) {
    let head = head(key_at(bytes), expires);
    let (words, _) = bytes.as_chunks_mut();
    let mut put = |at: usize, word| {
        if let Some(old) = words.get_mut(at) {
            *old = word;
        }
    };
    put(0, head);
    // Unrolled, because a loop over so few numbers costs more than the writes.
    match *state.numbers() {
        [one] => put(1, one.to_le_bytes()),
        [one, two] => {
            put(1, one.to_le_bytes());
            put(2, two.to_le_bytes());
        }
        ref numbers => {
            for (at, number) in (1..).zip(numbers) {
                put(at, number.to_le_bytes());
            }
        }
    }
}

/// The first word: position of the key, and expiry.
fn head(key_at: usize, expires: Time) -> [u8; WORD] {
    (expires.as_micros() << 8 | key_at as u64).to_le_bytes()
}

/// Position of the key in a packed counter.
fn key_at(bytes: &[u8]) -> usize {
    bytes.first().map_or(0, |&at| usize::from(at))
}
