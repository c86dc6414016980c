//! One call of a script: what is sent, and what the reply means. The format is described at the top of
//! `lua/settle.lua`.

mod keys;
mod questions;
mod reply;

use bytes::Bytes;
use sluicegate_core::{Answers, Check, Time};
use smallvec::SmallVec;

use super::{
    Script,
    command::{self, CommandWriter},
    reply::{Reply, ReplyBounds},
};
use keys::Keys;
use questions::Questions;
use reply::Asked;

pub use reply::UnexpectedReply;

const EVALSHA: &[u8] = b"EVALSHA";

/// Arguments in front of the keys: the command, the script's digest and the number of keys.
const HEAD: usize = 3;

/// Numbers in the longest answer to a check.
const ANSWER_MAX: usize = 6;

/// One call of a script, which settles any number of groups on the counters of one slot.
#[derive(Clone, Debug)]
pub struct Call {
    /// The script to run.
    pub script: &'static Script,
    /// As it is sent.
    command: Bytes,
    keys: usize,
    asked: Vec<Asked>,
}

/// What the reply to a call says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replied<'a> {
    /// The answers to all checks, in order.
    pub answers: Answers,
    /// Keys of counters whose stored value is not a valid state. They counted as
    /// unused, and are replaced when they are charged.
    pub unusable: Vec<&'a [u8]>,
}

impl Call {
    /// The most counters of one call.
    pub const COUNTERS_MAX: usize = 65_535;

    /// The call that settles each group, all or nothing, in order. The name of each counter gets the
    /// prefix. Redis' own time applies if `now` is `None`.
    ///
    /// The groups are about [`COUNTERS_MAX`](Self::COUNTERS_MAX) counters at most.
    #[must_use]
    pub fn new<'a, G>(prefix: &[u8], groups: impl IntoIterator<Item = G>, now: Option<Time>) -> Self
    where
        G: IntoIterator<Item = &'a Check>,
    {
        let mut keys = Keys::default();
        let mut asked = Vec::new();
        let mut checks = SmallVec::<[(&Check, usize); 4]>::new();
        let mut ends = SmallVec::<[usize; 4]>::new();
        for group in groups {
            for check in group {
                asked.push(Asked::of(check));
                checks.push((check, keys.position(&check.key)));
            }
            ends.push(checks.len());
        }

        let mut questions = Questions::default();
        let mut first = 0;
        for end in ends {
            questions.ask(checks.get(first..end).unwrap_or_default(), &keys);
            first = end;
        }
        let questions = questions.finish();

        let script = Script::of(checks.iter().map(|&(check, _)| check));
        let texts = EVALSHA.len() + script.sha1.len() + keys.text_len(prefix);
        let count = HEAD + keys.len() + questions.len();
        let mut command = CommandWriter::new(count, texts, 1 + questions.len());
        command.argument([EVALSHA]);
        command.argument([script.sha1.as_bytes()]);
        command.number(keys.len() as u64);
        keys.write(prefix, &mut command);
        questions.write(now, &mut command);
        Self { script, command: command.finish(), keys: keys.len(), asked }
    }

    /// The command that runs the script, as it is sent.
    #[must_use]
    pub fn command(&self) -> Bytes {
        self.command.clone()
    }

    /// The largest reply that there can be.
    pub(super) fn reply_bounds(&self) -> ReplyBounds {
        // The time, the answers, and the keys whose values are unusable.
        ReplyBounds::integers(1 + ANSWER_MAX * self.asked.len() + self.keys)
    }

    /// What the reply says.
    ///
    /// # Errors
    /// The reply has another shape.
    pub fn decode(&self, reply: &Reply) -> Result<Replied<'_>, UnexpectedReply> {
        let mut positions = Vec::new();
        let answers = reply::decode(&self.asked, self.keys, reply, &mut positions)?;
        let name = |position| command::arguments(&self.command).nth(HEAD + position - 1);
        let unusable = positions.into_iter().filter_map(name).collect();
        Ok(Replied { answers, unusable })
    }
}
