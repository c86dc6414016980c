//! One script call: its arguments, and the decoding of its reply. The format is described at the top of
//! `lua/settle.lua`.

mod arguments;
mod keys;
mod reply;

use bytes::Bytes;
use sluicegate_core::{Answers, Check, Time};
use smallvec::SmallVec;

use super::{
    Script,
    command::{self, CommandWriter},
    reply::{Reply, ReplyBounds},
};
use arguments::ScriptArguments;
use keys::Keys;
use reply::SentCheck;

pub use reply::UnexpectedReply;

const EVALSHA: &[u8] = b"EVALSHA";

/// Arguments before the keys: the command, the script's digest and the number of keys.
const ARGUMENTS_BEFORE_KEYS: usize = 3;

/// Numbers of a long answer to a check.
const LONG_ANSWER_LEN: usize = 6;

/// A script call, which settles any number of groups on the counters of one slot.
#[derive(Clone, Debug)]
pub struct Call {
    /// The script to run.
    pub script: &'static Script,
    /// The encoded command.
    command: Bytes,
    /// Number of keys.
    keys: usize,
    sent: Vec<SentCheck>,
}

/// The decoded reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedReply<'a> {
    /// The answers to all checks, in order.
    pub answers: Answers,
    /// Keys whose value is not a valid state. Their counters are treated as unused, and the values are replaced when
    /// the counters are charged.
    pub unusable: Vec<&'a [u8]>,
}

impl Call {
    /// The most counters of one call.
    pub const COUNTERS_MAX: usize = 65_535;

    /// A call that settles the groups in order, each atomically. Each key gets the prefix. Redis' own time applies if
    /// `now` is `None`.
    ///
    /// The groups may have [`COUNTERS_MAX`](Self::COUNTERS_MAX) counters at most.
    #[must_use]
    pub fn new<'a, G>(prefix: &[u8], groups: impl IntoIterator<Item = G>, now: Option<Time>) -> Self
    where
        G: IntoIterator<Item = &'a Check>,
    {
        let mut keys = Keys::default();
        let mut sent = Vec::new();
        let mut checks = SmallVec::<[(&Check, usize); 4]>::new();
        let mut ends = SmallVec::<[usize; 4]>::new();
        for group in groups {
            for check in group {
                sent.push(SentCheck::of(check));
                checks.push((check, keys.add(&check.key)));
            }
            ends.push(checks.len());
        }

        let mut arguments = ScriptArguments::default();
        let mut first = 0;
        for end in ends {
            arguments.add(checks.get(first..end).unwrap_or_default(), &keys);
            first = end;
        }
        let arguments = arguments.finish();

        let script = Script::for_checks(checks.iter().map(|&(check, _)| check));
        let texts = EVALSHA.len() + script.sha1.len() + keys.text_len(prefix);
        let count = ARGUMENTS_BEFORE_KEYS + keys.len() + arguments.len();
        let mut command = CommandWriter::new(count, texts, 1 + arguments.len());
        command.argument([EVALSHA]);
        command.argument([script.sha1.as_bytes()]);
        command.number(keys.len() as u64);
        keys.write(prefix, &mut command);
        arguments.write(now, &mut command);
        Self { script, command: command.finish(), keys: keys.len(), sent }
    }

    /// The encoded command.
    #[must_use]
    pub fn command(&self) -> Bytes {
        self.command.clone()
    }

    /// Bounds of the reply.
    pub(super) fn reply_bounds(&self) -> ReplyBounds {
        // The time, the answers, and the positions of unusable keys.
        ReplyBounds::integers(1 + LONG_ANSWER_LEN * self.sent.len() + self.keys)
    }

    /// Decodes the reply.
    ///
    /// # Errors
    /// The script of this call cannot have sent the reply.
    pub fn decode(&self, reply: &Reply) -> Result<DecodedReply<'_>, UnexpectedReply> {
        let mut positions = Vec::new();
        let answers = reply::decode(&self.sent, self.keys, reply, &mut positions)?;
        let name = |position| {
            command::parse_arguments(&self.command).nth(ARGUMENTS_BEFORE_KEYS + position - 1)
        };
        let unusable = positions.into_iter().filter_map(name).collect();
        Ok(DecodedReply { answers, unusable })
    }
}
