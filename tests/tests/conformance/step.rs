//! The steps of a case. Each is a map; the first key that names a kind selects it.

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
    /// The answer; `left 9..0` counts over the times.
    pub(crate) gives: String,
    /// `name=value`.
    #[serde(default)]
    pub(crate) headers: Vec<String>,
    /// Upstream's part of the dynamic metadata.
    #[serde(default)]
    pub(crate) metadata: Option<Value>,
    /// By how much `/stats` grows over all the times; everything that is not named stays.
    pub(crate) stats: Option<BTreeMap<String, Value>>,
    /// Source of the decision: `store`, `deny_cache`, none.
    pub(crate) decided_by: Option<String>,
}

const fn once() -> u32 {
    1
}

/// A text, or several.
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

/// Charges a counter with so many hits; with `free`, with no more than it has room for.
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

/// Puts other limits files in the place of those there are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reload {
    pub(crate) reload: LimitsText,
    /// Whether they have a mistake, so that the old limits stay.
    #[serde(default)]
    pub(crate) rejected: bool,
}

/// Gets a page, until it is as it should be.
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

/// Asks for health over gRPC, until it is as it should be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Health {
    /// Name of the service.
    pub(crate) health: String,
    /// `SERVING`, `NOT_SERVING`, or the code of an error.
    pub(crate) gives: String,
}

/// Looks at the keys in Redis; in memory there are none to see.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keys {
    /// All of them, in order, without what sets this case apart from others.
    pub(crate) keys: Vec<String>,
}
