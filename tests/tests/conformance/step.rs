//! The steps of a case. Each is a map, whose first known key selects the kind.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::case::LimitsText;

/// One step.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) enum Step {
    Ask(Ask),
    Preset(Preset),
    Clock(Clock),
    Advance(Advance),
    Reload(Reload),
    Get(Get),
    Post(Post),
    Health(Health),
    Keys(Keys),
}

impl TryFrom<Value> for Step {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let has = |key| value.get(key).is_some();
        match () {
            () if has("ask") => read(&value).map(Self::Ask),
            () if has("preset") => read(&value).map(Self::Preset),
            () if has("clock") => read(&value).map(Self::Clock),
            () if has("advance") => read(&value).map(Self::Advance),
            () if has("reload") => read(&value).map(Self::Reload),
            () if has("get") => read(&value).map(Self::Get),
            () if has("post") => read(&value).map(Self::Post),
            () if has("health") => read(&value).map(Self::Health),
            () if has("keys") => read(&value).map(Self::Keys),
            () => Err(format!("a step of no kind: {value}")),
        }
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| format!("{error} in {value}"))
}

/// A request over gRPC, once or several times.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    /// The descriptors.
    pub(crate) ask: OneOrMany,
    pub(crate) domain: Option<String>,
    /// Hits of the request.
    #[serde(default)]
    pub(crate) hits: u32,
    #[serde(default = "once")]
    pub(crate) times: u32,
    /// The expected answer. `left 9..0` counts over the repetitions.
    pub(crate) gives: String,
    /// Expected headers, `name=value`.
    #[serde(default)]
    pub(crate) headers: Vec<String>,
    /// Expected fields of the dynamic metadata that upstream has too.
    #[serde(default)]
    pub(crate) metadata: Option<Value>,
    /// Expected growth of `/stats` over all repetitions. Other values must not change.
    pub(crate) stats: Option<BTreeMap<String, Value>>,
    /// Expected source of the decision: `store`, `deny_cache`, or none.
    pub(crate) decided_by: Option<String>,
}

const fn once() -> u32 {
    1
}

/// One text, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// Charges hits to a counter; with `free`, not more than it has room for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Preset {
    /// A descriptor.
    pub(crate) preset: String,
    /// Hits.
    pub(crate) to: u64,
}

/// Sets the clock.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Clock {
    /// Seconds since 1970.
    pub(crate) clock: u64,
}

/// Moves the clock.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Advance {
    /// Seconds.
    pub(crate) advance: u64,
}

/// Replaces the limits files.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reload {
    pub(crate) reload: LimitsText,
    /// Whether they must be rejected, so that the old limits stay in force.
    #[serde(default)]
    pub(crate) rejected: bool,
}

/// Gets a page until it is as expected.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Get {
    /// Path.
    pub(crate) get: String,
    /// `200 | body`.
    pub(crate) gives: String,
}

/// Posts a body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Post {
    /// Path.
    pub(crate) post: String,
    pub(crate) body: String,
    /// `200 | body`.
    pub(crate) gives: String,
}

/// Queries health over gRPC until it is as expected.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Health {
    /// Name of the service.
    pub(crate) health: String,
    /// `SERVING`, `NOT_SERVING`, or the code of an error.
    pub(crate) gives: String,
}

/// Compares the keys in Redis. Ignored with the memory store.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keys {
    /// All keys in order, without the prefix of the case.
    pub(crate) keys: Vec<String>,
}
