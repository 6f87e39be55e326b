//! Request bodies: strict JSON; errors name the field.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::response::ProblemDetails;

/// A `T` that must be written as an object; serde would accept a list of its fields as well.
pub struct JsonObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(JsonObject)
    }
}

/// Parses a whole body as one JSON value.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ProblemDetails> {
    let text =
        std::str::from_utf8(body).map_err(|_| ProblemDetails::bad_field("body", "the body is not UTF-8"))?;
    // Only an error needs its path, and tracking it takes longer than parsing.
    if let Ok(parsed) = serde_json::from_str(text) {
        return Ok(parsed);
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let message = error.into_inner().to_string();
        let field = field(&path, &message);
        ProblemDetails::bad_field(field.clone(), format!("'{field}': {message}"))
    })?;
    json.end().map_err(|error| ProblemDetails::bad_field("body", format!("after the JSON: {error}")))?;
    Ok(parsed)
}

/// The message of an unknown, repeated or missing field names it; its path ends one level above.
fn field(path: &str, message: &str) -> String {
    let named = ["unknown field `", "duplicate field `", "missing field `"];
    let named = named.iter().find_map(|start| message.strip_prefix(start)?.split('`').next());
    let field = match (named, path) {
        (Some(name), "." | "?") => name.to_owned(),
        (Some(name), path) if path.ends_with(name) => path.to_owned(),
        (Some(name), path) => format!("{path}.{name}"),
        (None, "." | "?") => "body".to_owned(),
        (None, path) => path.to_owned(),
    };
    shorten(&field)
}

/// Shortens input that is quoted in responses.
pub fn shorten(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_default).collect()
}
