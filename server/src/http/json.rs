//! The JSON mapping of protobuf, for callers without gRPC.
//!
//! It uses file descriptors in which entries are strings. In the generated types they are bytes, which JSON would show
//! as base64. Both have the same wire format, so messages are converted by encoding and decoding them.

mod check;
mod error;

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use sluicegate_proto::{
    TEXT_FILE_DESCRIPTOR_SET,
    envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};

use self::error::JsonError;
use crate::grpc::DecodeError;

const REQUEST: &str = "envoy.service.ratelimit.v3.RateLimitRequest";
const RESPONSE: &str = "envoy.service.ratelimit.v3.RateLimitResponse";

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(TEXT_FILE_DESCRIPTOR_SET).unwrap_or_default());

fn describe(name: &'static str) -> Result<MessageDescriptor, JsonError> {
    POOL.get_message_by_name(name).ok_or(JsonError::Undescribed(name))
}

/// Decodes a request. Rejects unknown fields, because a misspelt one would disable a limit, and duplicate keys, because
/// readers differ in which value they use.
pub(super) fn decode(body: &[u8]) -> Result<RateLimitRequest, DecodeError> {
    read(body).map_err(|error| match error {
        JsonError::TooLarge(bound) => DecodeError::TooLarge(bound),
        error => DecodeError::Undecodable(error.to_string()),
    })
}

fn read(body: &[u8]) -> Result<RateLimitRequest, JsonError> {
    check::check(body)?;
    let mut json = serde_json::Deserializer::from_slice(body);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message =
        DynamicMessage::deserialize_with_options(describe(REQUEST)?, &mut json, &options)?;
    json.end()?;
    Ok(RateLimitRequest::decode(message.encode_to_vec().as_slice())?)
}

/// Encodes a response. Fields that are unset or 0 are omitted.
pub(super) fn encode(response: &RateLimitResponse) -> Result<String, JsonError> {
    let message = DynamicMessage::decode(describe(RESPONSE)?, response.encode_to_vec().as_slice())?;
    let mut json = serde_json::to_string(&message)?;
    json.push('\n');
    Ok(json)
}
