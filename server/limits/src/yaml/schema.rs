//! The JSON Schema of limits files, for editors. Made from the tables of keys that the reader uses.
//!
//! The schema accepts the files that the reader accepts, except two that are unlikely: `burst: 0` beside
//! `requests_per_unit: 0`, and `unlimited` beside an unknown unit, of which the reader warns.
//!
//! It also accepts files that the reader rejects. It sees JSON, which has lost the quotes, anchors and further
//! documents of the YAML, and it cannot express how the rules of a file depend on each other or on settings of the
//! server.

use serde_json::{Map, Value, json};
use sluicegate_core::{
    Algorithm, Counting, OnFailure, ResponseBody,
    limit::Unit,
    response_body::{CONTENT_TYPE_BYTES_MAX, TEXT_BYTES_MAX},
};

use super::{
    keys::{MapKind, UPSTREAM_KEYS},
    response_body::NONE,
};

/// Prefix of references to the schema's own definitions.
const DEFINITIONS: &str = "#/definitions/";

/// The JSON Schema of limits files.
#[must_use]
pub fn json_schema() -> Value {
    let kinds = [
        MapKind::Defaults,
        MapKind::Descriptor,
        MapKind::Limit,
        MapKind::LimitOfList,
        MapKind::Replace,
        MapKind::ResponseBody,
    ];
    let definitions: Map<_, _> =
        kinds.into_iter().map(|kind| (definition_name(kind).to_owned(), map(kind))).collect();
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Limits file of Sluicegate",
    });
    if let (Some(schema), Value::Object(root)) = (schema.as_object_mut(), map(MapKind::Root)) {
        schema.extend(root);
        schema.insert("definitions".to_owned(), Value::Object(definitions));
    }
    schema
}

/// The name of a definition.
const fn definition_name(kind: MapKind) -> &'static str {
    match kind {
        MapKind::Root => "file",
        MapKind::Defaults => "defaults",
        MapKind::Descriptor => "descriptor",
        MapKind::Limit => "rate_limit",
        MapKind::LimitOfList => "limit",
        MapKind::Replace => "replace",
        MapKind::ResponseBody => "response_body",
    }
}

/// The schema of a map.
fn map(kind: MapKind) -> Value {
    let own = kind.keys().iter().map(|key| ((*key).to_owned(), described(kind, key)));
    let tolerated =
        UPSTREAM_KEYS.iter().filter(|key| kind.tolerates(key) && !kind.keys().contains(key));
    let tolerated = tolerated.map(|key| {
        let why = "Ignored here, as in envoyproxy/ratelimit";
        ((*key).to_owned(), json!({"description": why, "deprecationMessage": why}))
    });
    // A merged map may have every key.
    let merged = [("<<".to_owned(), json!({"description": "Keys of other maps (YAML merge)"}))];
    let properties: Map<_, _> = own.chain(tolerated).chain(merged).collect();
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    let rules = match kind {
        MapKind::Root => required("domain"),
        MapKind::Descriptor => {
            let both = json!({"required": ["limits", "rate_limit"], "properties": {"rate_limit": {"type": "object"}}});
            json!({"allOf": [required("key"), {"not": both}]})
        }
        MapKind::Replace => required("name"),
        MapKind::Limit | MapKind::LimitOfList => {
            let excluded = ["unit", "window", "burst"].map(|key| not_both("unlimited", key));
            let mut rules = vec![not_both("unit", "window")];
            rules.extend(excluded);
            if kind == MapKind::LimitOfList {
                let unlimited = json!({"unlimited": {"const": true}});
                rules.push(json!({"not": {"required": ["unlimited"], "properties": unlimited}}));
            }
            let any_of =
                ["unit", "window", "unlimited", "<<"].map(|key| json!({"required": [key]}));
            json!({"allOf": rules, "anyOf": any_of})
        }
        MapKind::ResponseBody => {
            json!({"allOf": [required("content_type"), required("text")]})
        }
        MapKind::Defaults => json!({}),
    };
    if let (Some(schema), Value::Object(rules)) = (schema.as_object_mut(), rules) {
        schema.extend(rules);
    }
    schema
}

/// The schema of maps that do not have both keys. A key with `null` counts as missing, and so does `unlimited` unless
/// it is true.
fn not_both(one: &str, other: &str) -> Value {
    let given = |key: &str| match key {
        "unlimited" => json!({"const": true}),
        _ => json!({"not": {"type": "null"}}),
    };
    let properties: Map<_, _> =
        [one, other].map(|key| (key.to_owned(), given(key))).into_iter().collect();
    json!({"not": {"required": [one, other], "properties": properties}})
}

/// The schema of maps that have a key, or merge another map, which may have it.
fn required(key: &str) -> Value {
    json!({"anyOf": [{"required": [key]}, {"required": ["<<"]}]})
}

/// The schema of a key's value, with a description.
fn described(kind: MapKind, key: &str) -> Value {
    let (mut schema, description) = value(kind, key).unwrap_or_default();
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("description".to_owned(), description.into());
    }
    schema
}

/// The schema of a key's value, and the description of the key; `None` for a key that the map does not have.
fn value(kind: MapKind, key: &str) -> Option<(Value, &'static str)> {
    Some(match (kind, key) {
        (_, "domain") => (required_text(), "Name that requests carry"),
        (MapKind::Root, "descriptors") => (list(MapKind::Descriptor), "The tree of rules"),
        (_, "descriptors") => (list(MapKind::Descriptor), "The next level, for the next entry"),
        (_, "tenant") => (text(), "Key of the entry that identifies the tenant"),
        (_, "counting") => {
            (one_of(Counting::ALL.map(Counting::name)), "Which requests are charged")
        }
        (_, "on_failure") => (
            one_of(OnFailure::ALL.map(OnFailure::name)),
            "What happens when the store does not answer",
        ),
        (_, "defaults") => (optional(MapKind::Defaults), "Defaults of limits that set none"),
        (_, "algorithm") => (one_of(Algorithm::ALL.map(Algorithm::name)), "How hits are counted"),
        (_, "key") => (required_text(), "Key of the entry, matched exactly"),
        (_, "value") => {
            (text(), "Value of the entry, or a pattern with *; without it any value matches")
        }
        (_, "rate_limit") => {
            (optional(MapKind::Limit), "One limit; without it every request is allowed")
        }
        (_, "limits") => {
            let mut limits = list(MapKind::LimitOfList);
            if let Some(limits) = limits.as_object_mut() {
                limits.insert("type".to_owned(), "array".into());
                limits.insert("minItems".to_owned(), 1.into());
            }
            (limits, "Several limits in place of rate_limit, decided together")
        }
        (_, "shadow_mode") => (flag(), "Counts, but refuses no request"),
        (_, "quota_mode") => {
            (flag(), "Refuses only if every quota rule of the request is over its limit")
        }
        (_, "detailed_metric") => (flag(), "Metrics carry all values of the request"),
        (_, "value_to_metric") => (flag(), "Metrics carry the value of the request at this level"),
        (_, "share_threshold") => (flag(), "All values that the pattern matches share one counter"),
        (_, "metadata") => {
            (json!({"type": ["object", "null"]}), "A free map that is returned to callers")
        }
        (_, "response_body") => (response_body(), "Body of responses to refused requests"),
        (_, "content_type") => (
            json!({"type": "string", "maxLength": CONTENT_TYPE_BYTES_MAX, "pattern": "^[!-~]+/[ -~]+$"}),
            "Content type of the body",
        ),
        (_, "text") => (
            json!({"type": ["string", "integer", "boolean"], "maxLength": TEXT_BYTES_MAX}),
            "Text of the body, with placeholders such as {retry_after}",
        ),
        (_, "unit") => (unit(), "Length of the window"),
        (_, "requests_per_unit") => (number(0), "Hits per window; 0 refuses every request"),
        (_, "unlimited") => (flag(), "Every request is allowed and nothing is counted"),
        (MapKind::Replace, "name") => (required_text(), "Name of a limit that does not apply"),
        (_, "name") => (text(), "Name that is returned to callers"),
        (_, "replaces") => (
            list(MapKind::Replace),
            "Limits that do not apply to a request that also matches this one",
        ),
        (_, "window") => {
            let window = json!({"type": ["string", "integer", "null"], "pattern": "[0-9]"});
            (window, "Length of the window in place of unit, such as 30s, 15m, 1h 30m")
        }
        (_, "unit_multiplier") => (number(1), "Units per window"),
        (_, "burst") => (number(1), "Capacity of a bucket: the most hits at once"),
        _ => return None,
    })
}

/// A text. Integers and booleans are accepted as written.
fn text() -> Value {
    json!({"type": ["string", "integer", "boolean", "null"]})
}

/// A text that must not be empty.
fn required_text() -> Value {
    json!({"type": ["string", "integer", "boolean"], "minLength": 1})
}

/// A whole number of at least `minimum`, also in notations of YAML 1.1 that JSON Schema sees as strings, such as
/// `1_000`.
fn number(minimum: u32) -> Value {
    json!({
        "type": ["integer", "string", "null"],
        "minimum": minimum,
        "maximum": u32::MAX,
        "pattern": "^[0-9+][0-9A-Za-z_.+-]*$",
    })
}

/// A boolean, also in words of YAML 1.1 that JSON Schema sees as strings, such as `yes`.
fn flag() -> Value {
    let words = ["yes", "on", "y", "true", "no", "off", "n", "false"].map(any_case);
    let words = format!("^({})$", words.join("|"));
    json!({"anyOf": [{"type": ["boolean", "null"]}, {"type": "string", "pattern": words}]})
}

/// The name of a unit, in upper or lower case.
fn unit() -> Value {
    let names = Unit::ALL.map(Unit::name).map(str::to_lowercase);
    let any = format!("^({})$", names.each_ref().map(|name| any_case(name)).join("|"));
    json!({"anyOf": [{"enum": names}, {"type": "string", "pattern": any}, {"type": "null"}]})
}

/// A pattern that matches a word in upper or lower case. JSON Schema has no flag for that.
fn any_case(word: &str) -> String {
    word.chars().map(|it| format!("[{}{it}]", it.to_ascii_uppercase())).collect()
}

/// One of these names, or null.
fn one_of<const N: usize>(names: [&str; N]) -> Value {
    let names = names.into_iter().map(Value::from).chain([Value::Null]);
    json!({"enum": names.collect::<Vec<_>>()})
}

/// The name of a preset, none, a map, or null.
fn response_body() -> Value {
    let names: Vec<_> = [NONE].into_iter().chain(ResponseBody::PRESETS).collect();
    json!({"anyOf": [{"enum": names}, reference(MapKind::ResponseBody), {"type": "null"}]})
}

/// A reference to the definition of a map.
fn reference(kind: MapKind) -> Value {
    json!({"$ref": format!("{DEFINITIONS}{}", definition_name(kind))})
}

/// A map, or null.
fn optional(kind: MapKind) -> Value {
    json!({"anyOf": [reference(kind), {"type": "null"}]})
}

/// A list of maps, or null.
fn list(kind: MapKind) -> Value {
    json!({"type": ["array", "null"], "items": reference(kind)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_reader_has_a_schema() {
        for kind in [
            MapKind::Root,
            MapKind::Defaults,
            MapKind::Descriptor,
            MapKind::Limit,
            MapKind::LimitOfList,
            MapKind::Replace,
            MapKind::ResponseBody,
        ] {
            for key in kind.keys() {
                assert!(value(kind, key).is_some(), "{kind:?}: {key}");
            }
        }
    }
}
