//! Reads `response_body`: the name of a preset, or a map with a content type and a text.

use std::sync::Arc;

use sluicegate_core::{
    ResponseBody,
    response_body::{ResponseBodyError, ResponseBodyValues},
    rules::{Located, Mistake},
};

use super::{
    keys::MapKind,
    location::FileLocation,
    node::{YamlNode, YamlNodeData},
    reader::{Fields, Reader},
    scalar::is_null,
};

/// The value of `response_body` for no body.
pub(super) const NONE: &str = "none";

impl Reader<'_> {
    /// Reads `response_body`. Returns `None` if the key is missing, or if its value has a mistake, which is reported. A
    /// located `None` stands for the value `none`: no body.
    pub(super) fn response_body(
        &mut self,
        of: &Fields<'_, '_>,
    ) -> Option<Located<Option<Arc<ResponseBody>>>> {
        let (location, node) = of.get("response_body").filter(|(_, node)| !is_null(node))?;
        if let YamlNodeData::Map(_) = &node.data {
            let value = Some(Arc::new(self.custom_body(&location, node)?));
            return Some(Located { value, location: self.source_location(&location) });
        }
        let wanted = "none, problem_json, openai, anthropic, or a map with content_type and text";
        self.enum_value(of, "response_body", wanted, |name| {
            if name == NONE {
                Some(None)
            } else {
                ResponseBody::preset(name).map(Arc::new).map(Some)
            }
        })
    }

    fn custom_body(
        &mut self,
        location: &FileLocation,
        node: &YamlNode<'_>,
    ) -> Option<ResponseBody> {
        let before = self.mistakes;
        let fields = self.map(location, node, MapKind::ResponseBody)?;
        let content_type = self.text(&fields, "content_type");
        let text = self.text(&fields, "text");
        if self.mistakes > before {
            return None;
        }
        let Some((content_type, text)) = content_type.zip(text) else {
            let missing = if fields.get("text").is_none() { "text" } else { "content_type" };
            self.mistake(location, Mistake::Missing(missing));
            return None;
        };
        let compiled = ResponseBody::compile(&content_type.value, &text.value);
        let compiled = compiled.and_then(|body| {
            if is_json_if_declared(&body) { Ok(body) } else { Err(ResponseBodyError::NotJson) }
        });
        compiled
            .map_err(|error| {
                let key =
                    if error == ResponseBodyError::ContentType { "content_type" } else { "text" };
                let location = fields.get(key).map_or_else(|| location.clone(), |(it, _)| it);
                self.mistake(&location, error.into());
            })
            .ok()
    }
}

/// Whether the body is JSON with any values of its placeholders. Also true if its content type is not JSON.
fn is_json_if_declared(body: &ResponseBody) -> bool {
    let text = "\"\\\n";
    let known = ResponseBodyValues {
        domain: text,
        rule: Some(text),
        name: Some(text),
        limit: Some(1),
        window: Some(1),
        remaining: Some(1),
        reset: Some(1),
        retry_after: Some(1),
        retry_after_ms: Some(1),
    };
    let unknown = ResponseBodyValues { domain: text, ..ResponseBodyValues::default() };
    let is_json = |values| serde_json::from_str::<serde_json::Value>(&body.render(values)).is_ok();
    !body.is_json() || (is_json(&known) && is_json(&unknown))
}
