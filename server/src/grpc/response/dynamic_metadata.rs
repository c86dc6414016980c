//! Dynamic metadata for Envoy's logs and filters: the request, the decision, and the metadata of the rules that allowed
//! it.
//!
//! `domain`, `hitsAddend`, `metadata`, `descriptors[].entries`, `descriptors[].limit` and `descriptors[].hitsAddend`
//! have the format of envoyproxy/ratelimit. If a limit applies to a descriptor, this server adds `code`, `shadowed`,
//! `source`, `rule`, and its `limits` with exact seconds.

use std::collections::BTreeMap;

use prost_types::{ListValue, Struct, Value, value::Kind};
use sluicegate_core::{
    Code, CurrentLimit, Decision, DescriptorStatus, key::DigestCache, metadata,
    plan::PlannedDescriptor,
};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    service::ratelimit::v3::RateLimitRequest,
    r#type::v3::RateLimitUnit,
};

use crate::decision::DecisionRecord;

/// The metadata of one response.
pub(super) fn dynamic_metadata(
    message: &RateLimitRequest,
    record: &DecisionRecord<'_, '_>,
) -> Struct {
    let mut decisions = record.decisions.iter();
    let mut digests = DigestCache::new();
    let answers = record.plan.descriptors.iter().zip(&record.verdict.statuses);
    let descriptors = message.descriptors.iter().zip(answers);
    let descriptors = descriptors.map(|(requested, (planned, status))| {
        let mut fields = Fields::default();
        add_requested(&mut fields, requested, &mut digests);
        let decided: Vec<_> = planned.limits().iter().zip(decisions.by_ref()).collect();
        add_decided(&mut fields, status, &decided);
        fields.into_value()
    });
    let mut fields = Fields::default();
    fields.set("domain", text(&message.domain));
    fields.set("descriptors", list(descriptors.collect()));
    if message.hits_addend != 0 {
        fields.set("hitsAddend", number(f64::from(message.hits_addend)));
    }
    let metadata = rule_metadata(record);
    if !metadata.is_empty() {
        fields.set("metadata", map(&metadata));
    }
    Struct { fields: fields.0 }
}

/// Adds the content of a descriptor. A digest replaces each long key or value, as in counter keys.
fn add_requested<'v>(
    fields: &mut Fields,
    requested: &'v RateLimitDescriptor,
    digests: &mut DigestCache<'v>,
) {
    let mut short_text = |bytes: &'v [u8]| match digests.for_long_value(bytes) {
        Some(digest) => digest.as_str().to_owned(),
        None => String::from_utf8_lossy(bytes).into_owned(),
    };
    let entries = requested.entries.iter().map(|entry| {
        let (key, value) = (short_text(&entry.key), short_text(&entry.value));
        text(&format!("{key}={value}"))
    });
    fields.set("entries", list(entries.collect()));
    if let Some(limit) = &requested.limit {
        fields.set("limit", text(&describe_override(limit)));
    }
    if let Some(hits) = requested.hits_addend {
        fields.set("hitsAddend", number(rounded(hits)));
    }
}

/// Adds the decisions on a descriptor.
fn add_decided(
    fields: &mut Fields,
    status: &DescriptorStatus<'_>,
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

/// The merged metadata of the rules that allow their descriptors. On a conflict the first descriptor wins.
fn rule_metadata(record: &DecisionRecord<'_, '_>) -> metadata::Map {
    let mut merged = metadata::Map::new();
    for (planned, status) in record.plan.descriptors.iter().zip(&record.verdict.statuses) {
        let applies = match planned {
            PlannedDescriptor::Unlimited(_) => true,
            // An override replaces the rule. Without a current limit, the rule's checks were not made.
            PlannedDescriptor::Limited { overridden, .. } => {
                !overridden && status.current_limit.is_some()
            }
            PlannedDescriptor::NoLimitApplies => false,
        };
        let rule = status.rule.filter(|_| applies && status.code == Code::Ok);
        if let Some(metadata) = rule.and_then(|rule| rule.metadata.as_ref()) {
            metadata::add_missing(&mut merged, metadata);
        }
    }
    merged
}

/// An override in protobuf's text format: fields that are 0 are omitted, and an unknown unit is shown as its number.
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

/// An integer as a double, the only type of number in a `Struct`.
#[expect(clippy::cast_precision_loss, reason = "16 digits suffice for logs")]
const fn rounded(number: u64) -> f64 {
    number as f64
}
