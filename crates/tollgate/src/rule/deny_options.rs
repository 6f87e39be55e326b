//! The options of a rule for the requests that it denies:
//! `deny: {message: …, body: …, content_type: …, retry_after_max: 1h}`.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::document::MapReader;
use crate::rule::parse::read_duration;

/// The response to clients that a rule denies. Empty options are not stored.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DenyOptions {
    /// In place of the message that names the rule and its limit.
    pub message: Option<Box<str>>,
    /// In place of problem details.
    pub body: Option<OwnBody>,
    retry_after_max_secs: Option<NonZeroU32>,
}

/// A body of a response, as the rule states it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OwnBody {
    /// A media type with its parameters; visible ASCII and spaces.
    pub content_type: Box<str>,
    pub text: Box<str>,
}

impl OwnBody {
    /// Whether it is for clients that prefer HTML.
    pub fn is_html(&self) -> bool {
        let media_type = self.content_type.split(';').next().unwrap_or_default().trim_ascii_end();
        ["text/html", "application/xhtml+xml"].iter().any(|html| media_type.eq_ignore_ascii_case(html))
    }
}

impl DenyOptions {
    pub const MAX_MESSAGE_BYTES: usize = 1_000;
    pub const MAX_BODY_BYTES: usize = 16 << 10;
    pub const MAX_CONTENT_TYPE_BYTES: usize = 128;
    pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(365 * 86_400);

    /// The longest wait that a response states.
    pub fn retry_after_max(&self) -> Option<Duration> {
        self.retry_after_max_secs.map(|secs| Duration::from_secs(secs.get().into()))
    }

    /// Reads `deny`; `None` if it is missing or sets nothing.
    pub(super) fn read(map: &mut MapReader<'_, '_>) -> Option<Box<DenyOptions>> {
        let mut map = map.optional_map("deny")?;
        let message = message(&mut map);
        let body = body(&mut map);
        let retry_after_max_secs = retry_after_max(&mut map);
        map.finish();
        let is_empty = message.is_none() && body.is_none() && retry_after_max_secs.is_none();
        (!is_empty).then(|| Box::new(DenyOptions { message, body, retry_after_max_secs }))
    }
}

fn message(map: &mut MapReader<'_, '_>) -> Option<Box<str>> {
    let node = map.optional("message")?;
    let fits = |text: &&str| {
        (1..=DenyOptions::MAX_MESSAGE_BYTES).contains(&text.len()) && !text.contains(char::is_control)
    };
    let text = node.as_str().filter(fits);
    if text.is_none() {
        let max = DenyOptions::MAX_MESSAGE_BYTES;
        map.reject("message", node, format!("expected one line of text, 1 to {max} bytes"));
    }
    text.map(Into::into)
}

fn body(map: &mut MapReader<'_, '_>) -> Option<OwnBody> {
    let body = map.optional("body");
    let content_type = map.optional("content_type");
    let text = body.and_then(|node| {
        let text = node.as_str().filter(|text| text.len() <= DenyOptions::MAX_BODY_BYTES);
        if text.is_none() {
            let max = DenyOptions::MAX_BODY_BYTES;
            map.reject("body", node, format!("expected text of at most {max} bytes; quote JSON"));
        }
        text
    });
    let media_type = content_type.and_then(|node| {
        let media_type = node.as_str().filter(|text| is_media_type(text));
        if media_type.is_none() {
            let max = DenyOptions::MAX_CONTENT_TYPE_BYTES;
            let message = format!("expected a media type such as application/json, at most {max} bytes");
            map.reject("content_type", node, message);
        }
        media_type
    });
    match (body, content_type) {
        (Some(node), None) => {
            map.reject("body", node, "'body' needs 'content_type' as well, such as application/json");
        }
        (None, Some(node)) => map.reject("content_type", node, "'content_type' is that of 'body': add it"),
        _ => {}
    }
    Some(OwnBody { content_type: media_type?.into(), text: text?.into() })
}

/// `type/subtype`, and parameters that fit a header.
fn is_media_type(text: &str) -> bool {
    let token = |text: &str| {
        let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte);
        !text.is_empty() && text.bytes().all(is_token_byte)
    };
    let (media_type, parameters) = text.split_once(';').unwrap_or((text, ""));
    let (kind, subtype) = media_type.trim_ascii_end().split_once('/').unwrap_or_default();
    text.len() <= DenyOptions::MAX_CONTENT_TYPE_BYTES
        && token(kind)
        && token(subtype)
        && parameters.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

fn retry_after_max(map: &mut MapReader<'_, '_>) -> Option<NonZeroU32> {
    let node = map.optional("retry_after_max")?;
    let longest = read_duration(map, "retry_after_max")?;
    let fits = longest.subsec_nanos() == 0 && longest <= DenyOptions::MAX_RETRY_AFTER;
    let secs = u32::try_from(longest.as_secs()).ok().filter(|_| fits).and_then(NonZeroU32::new);
    if secs.is_none() {
        map.reject("retry_after_max", node, "expected whole seconds, from 1s to 365d");
    }
    secs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{self, Problems};
    use crate::rule::{Rule, parse};

    fn read(deny: &str) -> Result<Rule, String> {
        let yaml = format!("{{id: r, limit: 5/m, deny: {deny}}}");
        let mut problems = Problems::new();
        let root = document::read(&yaml).expect("YAML");
        parse::rule(&root, "", &mut problems).ok_or_else(|| problems.to_string())
    }

    #[test]
    fn options_are_read_and_empty_ones_are_not_stored() {
        let rule = read(
            "{message: slow down, body: '{\"e\":1}', content_type: application/json, retry_after_max: 1h}",
        );
        let rule = rule.expect("valid options");
        let deny = rule.deny.as_deref().expect("options");
        assert_eq!(deny.message.as_deref(), Some("slow down"));
        let body = deny.body.as_ref().expect("a body");
        assert_eq!((&*body.content_type, &*body.text), ("application/json", "{\"e\":1}"));
        assert!(!body.is_html());
        assert_eq!(deny.retry_after_max(), Some(Duration::from_secs(3_600)));
        for empty in ["{}", "{message: ~}", "~"] {
            assert_eq!(read(empty).expect("valid").deny, None, "{empty}");
        }
    }

    #[test]
    fn html_is_recognised_by_its_media_type() {
        for (content_type, is_html) in
            [("text/html; charset=utf-8", true), ("Text/HTML", true), ("text/plain", false)]
        {
            let rule = read(&format!("{{body: x, content_type: '{content_type}'}}")).expect("valid");
            let body = rule.deny.as_ref().and_then(|deny| deny.body.clone());
            assert_eq!(body.map(|body| body.is_html()), Some(is_html), "{content_type}");
        }
    }

    #[test]
    fn values_out_of_bounds_are_rejected() {
        let long_message = format!("{{message: {}}}", "m".repeat(DenyOptions::MAX_MESSAGE_BYTES + 1));
        let long_body = "b".repeat(DenyOptions::MAX_BODY_BYTES + 1);
        let long_body = format!("{{body: {long_body}, content_type: text/plain}}");
        for (deny, message) in [
            ("{message: ''}", "deny.message: expected one line of text, 1 to 1000 bytes"),
            ("{message: \"a\\nb\"}", "deny.message: expected one line of text"),
            (&long_message, "deny.message: expected one line of text, 1 to 1000 bytes"),
            (
                "{body: {e: 1}, content_type: application/json}",
                "deny.body: expected text of at most 16384 bytes; quote JSON",
            ),
            (&long_body, "deny.body: expected text of at most 16384 bytes"),
            ("{body: x}", "deny.body: 'body' needs 'content_type' as well"),
            ("{content_type: text/plain}", "deny.content_type: 'content_type' is that of 'body'"),
            (
                "{body: x, content_type: json}",
                "deny.content_type: expected a media type such as application/json",
            ),
            (
                "{body: x, content_type: \"text/plain; a=\\r\\nb\"}",
                "deny.content_type: expected a media type",
            ),
            ("{retry_after_max: 0s}", "deny.retry_after_max: '0s' is zero"),
            ("{retry_after_max: 1500ms}", "deny.retry_after_max: expected whole seconds, from 1s to 365d"),
            ("{retry_after_max: 366d}", "deny.retry_after_max: expected whole seconds, from 1s to 365d"),
            ("{status: 418}", "deny: unknown key 'status'"),
            ("5", "deny: expected a map"),
        ] {
            let problems = read(deny).expect_err(deny);
            assert!(problems.contains(message), "{deny:.60}: {problems}");
        }
    }
}
