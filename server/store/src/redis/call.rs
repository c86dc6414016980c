//! One call of a script: what is sent, and what the reply means. The format is described at the top of
//! `lua/settle.lua`.

mod keys;
mod questions;
mod reply;
mod text;

use fred::types::Value;
use sluicegate_core::{Answers, Check, Time};
use smallvec::SmallVec;

use super::Script;
use keys::Keys;
use questions::Questions;
use reply::Asked;
use text::Text;

pub use reply::UnexpectedReply;

/// Values in front of the keys: the script's digest and the number of keys.
const HEAD: usize = 2;

/// One call of a script, which settles any number of groups on the counters of one slot.
#[derive(Clone, Debug)]
pub struct Call {
    /// The script to run.
    pub script: &'static Script,
    /// What stands behind `EVALSHA`.
    arguments: Vec<Value>,
    keys: usize,
    asked: Vec<Asked>,
}

impl Call {
    /// The most counters of one call.
    pub const COUNTERS_MAX: usize = 65_535;

    /// The call that settles each group, all or nothing, in order. The name of each counter gets the
    /// prefix. Redis tells the time where `now` is `None`.
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

        let script = Script::of(checks.iter().map(|&(check, _)| check));
        let mut arguments = Vec::with_capacity(HEAD + keys.len() + questions.len());
        let mut text = Text::with_capacity(keys.text_len(prefix), 1 + questions.len());
        arguments.push(Value::from_static_str(&script.sha1));
        arguments.push(text.number(keys.len() as u64));
        keys.name(prefix, &mut text, &mut arguments);
        questions.write(now, &mut text, &mut arguments);
        Self { script, arguments, keys: keys.len(), asked }
    }

    /// What stands behind `EVALSHA`. Text is shared, not copied.
    #[must_use]
    pub fn arguments(&self) -> Vec<Value> {
        self.arguments.clone()
    }

    /// The names of the counters, each once.
    #[must_use]
    pub fn keys(&self) -> &[Value] {
        self.arguments.get(HEAD..HEAD + self.keys).unwrap_or_default()
    }

    /// What stands behind the keys.
    #[must_use]
    pub fn args(&self) -> &[Value] {
        self.arguments.get(HEAD + self.keys..).unwrap_or_default()
    }

    /// The answers to all checks, in order.
    ///
    /// # Errors
    /// The reply has another shape.
    pub fn decode(&self, reply: &Value) -> Result<Answers, UnexpectedReply> {
        reply::decode(&self.asked, reply)
    }
}
