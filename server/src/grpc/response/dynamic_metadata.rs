//! Dynamic metadata for Envoy's logs and filters: the request, the decision, and the metadata of the rules
//! that allowed it.
//!
//! `domain`, `descriptors[].entries`, `.limit` and `.hitsAddend`, `hitsAddend` and `metadata` are as
//! envoyproxy/ratelimit has them. Beside them a descriptor has, where a limit applies, `code`, `shadowed`,
//! `source`, `rule`, and its `limits` with the exact seconds.

use std::collections::BTreeMap;

use prost_types::{ListValue, Struct, Value, value::Kind};
use sluicegate_core::{
    Code, CurrentLimit, Decision, Status, key::DigestCache, metadata, plan::PlannedDescriptor,
};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    service::ratelimit::v3::RateLimitRequest,
    r#type::v3::RateLimitUnit,
};

use crate::decision::DecisionRecord;

/// The metadata of one answer.
pub(super) fn of(message: &RateLimitRequest, decided: &DecisionRecord<'_, '_>) -> Struct {
    let mut decisions = decided.decisions.iter();
    let mut digests = DigestCache::new();
    let answers = decided.plan.descriptors.iter().zip(&decided.verdict.statuses);
    let descriptors = message.descriptors.iter().zip(answers).map(|(asked, (planned, status))| {
        let mut fields = Fields::default();
        describe_question(&mut fields, asked, &mut digests);
        let decided: Vec<_> = planned.limits().iter().zip(decisions.by_ref()).collect();
        describe_answer(&mut fields, status, &decided);
        fields.into_value()
    });
    let mut fields = Fields::default();
    fields.set("domain", text(&message.domain));
    fields.set("descriptors", list(descriptors.collect()));
    if message.hits_addend != 0 {
        fields.set("hitsAddend", number(f64::from(message.hits_addend)));
    }
    let metadata = of_rules(decided);
    if !metadata.is_empty() {
        fields.set("metadata", map(&metadata));
    }
    Struct { fields: fields.0 }
}

/// A digest replaces each long key or value, as in counter keys.
fn describe_question<'v>(
    fields: &mut Fields,
    asked: &'v RateLimitDescriptor,
    digests: &mut DigestCache<'v>,
) {
    let mut part = |bytes: &'v [u8]| match digests.for_long_value(bytes) {
        Some(digest) => digest.as_str().to_owned(),
        None => String::from_utf8_lossy(bytes).into_owned(),
    };
    let entries = asked.entries.iter().map(|entry| {
        let (key, value) = (part(&entry.key), part(&entry.value));
        text(&format!("{key}={value}"))
    });
    fields.set("entries", list(entries.collect()));
    if let Some(limit) = &asked.limit {
        fields.set("limit", text(&describe_override(limit)));
    }
    if let Some(hits) = asked.hits_addend {
        fields.set("hitsAddend", number(rounded(hits)));
    }
}

fn describe_answer(
    fields: &mut Fields,
    status: &Status<'_>,
    decided: &[(&CurrentLimit<'_>, &Decision)],
) {
    let Some(source) = status.source else { return };
    let code = if status.code == Code::OverLimit { "OVER_LIMIT" } else { "OK" };
    fields.set("code", text(code));
    fields.set("shadowed", Value { kind: Some(Kind::BoolValue(status.shadowed)) });
    fields.set("source", text(source.name()));
    if let Some(rule) = status.rule {
        fields.set("rule", text(&rule.path));
    }
    if status.current_limit.is_some() {
        fields.set("limits", list(decided.iter().map(|(limit, it)| decision(limit, it)).collect()));
    }
}

fn decision(limit: &CurrentLimit<'_>, decision: &Decision) -> Value {
    let mut fields = Fields::default();
    if let Some(name) = limit.name {
        fields.set("name", text(name));
    }
    fields.set("limit", text(&limit.displayed.to_string()));
    fields.set("remaining", number(rounded(decision.remaining)));
    fields.set("resetAfter", number(decision.reset_after.as_secs_f64()));
    if let (false, Some(wait)) = (decision.allowed, decision.retry_after) {
        fields.set("retryAfter", number(wait.as_secs_f64()));
    }
    fields.into_value()
}

/// The metadata of the rules that let the request pass; on a conflict that of the first descriptor.
fn of_rules(decided: &DecisionRecord<'_, '_>) -> metadata::Map {
    let mut merged = metadata::Map::new();
    for (planned, status) in decided.plan.descriptors.iter().zip(&decided.verdict.statuses) {
        let applies = match planned {
            PlannedDescriptor::Unlimited(_) => true,
            // An override takes the rule's place. What was not asked has not been passed.
            PlannedDescriptor::Limited { overridden, .. } => {
                !overridden && status.current_limit.is_some()
            }
            PlannedDescriptor::Unmatched => false,
        };
        let rule = status.rule.filter(|_| applies && status.code == Code::Ok);
        if let Some(metadata) = rule.and_then(|rule| rule.metadata.as_ref()) {
            metadata::merge(&mut merged, metadata);
        }
    }
    merged
}

/// An override as protobuf's text format has it: without what is zero, and a number that is no unit as it is.
fn describe_override(limit: &RateLimitOverride) -> String {
    let mut fields = Vec::new();
    if limit.requests_per_unit > 0 {
        fields.push(format!("requests_per_unit:{}", limit.requests_per_unit));
    }
    match RateLimitUnit::try_from(limit.unit) {
        Ok(RateLimitUnit::Unknown) => {}
        Ok(unit) => fields.push(format!("unit:{}", unit.as_str_name())),
        Err(_) => fields.push(format!("unit:{}", limit.unit)),
    }
    if let Some(multiplier) = limit.unit_multiplier {
        fields.push(format!("unit_multiplier:{{value:{multiplier}}}"));
    }
    fields.join(" ")
}

#[derive(Default)]
struct Fields(BTreeMap<String, Value>);

impl Fields {
    fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    fn into_value(self) -> Value {
        Value { kind: Some(Kind::StructValue(Struct { fields: self.0 })) }
    }
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

const fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

const fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}

fn map(map: &metadata::Map) -> Value {
    let fields = map.iter().map(|(name, value)| (name.to_string(), value_of(value)));
    Value { kind: Some(Kind::StructValue(Struct { fields: fields.collect() })) }
}

fn value_of(value: &metadata::Value) -> Value {
    match value {
        metadata::Value::Null => Value { kind: Some(Kind::NullValue(0)) },
        metadata::Value::Bool(it) => Value { kind: Some(Kind::BoolValue(*it)) },
        metadata::Value::Number(it) => number(*it),
        metadata::Value::Text(it) => text(it),
        metadata::Value::List(it) => list(it.iter().map(value_of).collect()),
        metadata::Value::Map(it) => map(it),
    }
}

/// A `Struct` knows doubles only.
#[expect(clippy::cast_precision_loss, reason = "a number for logs, of which 16 digits are enough")]
const fn rounded(number: u64) -> f64 {
    number as f64
}
