//! The requests of a run and their answers.

use std::collections::HashMap;

use super::template::DrawnNumbers;
use sluicegate_client::{CheckError, Code, Limit, Verdict};

/// Maximum number of stored requests, of a few hundred bytes each.
pub(super) const HISTORY_MAX: usize = 2_000_000;

/// The requests of a run and their answers. Equal draws and equal limits are stored once.
#[derive(Debug, Default)]
pub(super) struct History {
    records: Vec<Record>,
    draws: Vec<DrawnNumbers>,
    by_draw: HashMap<DrawnNumbers, usize>,
    limits: Vec<Limit>,
    by_limit: HashMap<Limit, usize>,
}

/// A request and its answer. Times are in microseconds since the run began.
#[derive(Debug)]
pub(super) struct Record {
    /// Index into the draws.
    pub(super) draw: usize,
    pub(super) sent: i64,
    pub(super) answered: i64,
    pub(super) outcome: Outcome,
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// An error: the request may have been charged.
    Failed,
    /// An answer.
    Answered { allowed: bool, statuses: Box<[DescriptorAnswer]> },
}

/// The answer about one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorAnswer {
    pub(super) over: bool,
    pub(super) remaining: u32,
    /// In seconds.
    pub(super) until_reset: Option<u32>,
    /// Index into the limits.
    pub(super) limit: Option<usize>,
}

impl History {
    /// Adds a request.
    pub(super) fn add(
        &mut self,
        draw: DrawnNumbers,
        [sent, answered]: [i64; 2],
        answer: &Result<Verdict, CheckError>,
    ) {
        let Self { draws, by_draw, limits, by_limit, .. } = self;
        let draw = *by_draw.entry(draw).or_insert_with_key(|draw| {
            draws.push(draw.clone());
            draws.len() - 1
        });
        let outcome = match answer {
            Err(_) => Outcome::Failed,
            Ok(verdict) => {
                let mut descriptor_answer = |status: &sluicegate_client::Status| DescriptorAnswer {
                    over: status.code == Code::OverLimit,
                    remaining: status.remaining,
                    until_reset: status.until_reset.and_then(|it| it.as_secs().try_into().ok()),
                    limit: status.limit.clone().map(|limit| {
                        *by_limit.entry(limit).or_insert_with_key(|limit| {
                            limits.push(limit.clone());
                            limits.len() - 1
                        })
                    }),
                };
                let statuses = verdict.statuses.iter().map(&mut descriptor_answer).collect();
                Outcome::Answered { allowed: verdict.allowed, statuses }
            }
        };
        self.records.push(Record { draw, sent, answered, outcome });
    }

    /// Whether the history has [`HISTORY_MAX`] requests.
    pub(super) const fn is_full(&self) -> bool {
        self.records.len() >= HISTORY_MAX
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(super) fn draws(&self) -> impl Iterator<Item = &DrawnNumbers> {
        self.draws.iter()
    }

    pub(super) fn limit(&self, position: usize) -> Option<&Limit> {
        self.limits.get(position)
    }
}
