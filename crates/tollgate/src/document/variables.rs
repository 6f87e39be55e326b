//! `${NAME}` in the values of a document, replaced by variables that the caller knows.
//!
//! Values are replaced after the text was parsed, so a variable cannot change the structure of the document. `$${` is a
//! literal `${`. Keys are not replaced.

use super::{Node, Problem, Problems};

/// A value that becomes longer is rejected.
const MAX_BYTES: usize = 64 << 10;

/// Replaces the variables of all values; each one that `lookup` does not know is a problem at its position, with the
/// message that `lookup` returns.
pub fn expand_variables(root: &mut Node<'_>, lookup: impl Fn(&str) -> Result<String, String>) -> Problems {
    let mut problems = Problems::new();
    root.map_texts(&mut |text, position| {
        if !text.contains("${") {
            return None;
        }
        match expand(text, &lookup) {
            Ok(expanded) => Some(expanded),
            Err(message) => {
                problems.push(Problem::new(Some(position), "", message));
                None
            }
        }
    });
    problems
}

fn expand(text: &str, lookup: &impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let before = &rest[..at];
        let after = &rest[at + 2..];
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = after;
            continue;
        }
        expanded.push_str(before);
        let (name, after) =
            after.split_once('}').ok_or("'${' has no closing '}': write $${ for the text itself")?;
        if !is_name(name) {
            return Err(format!(
                "'${{{name}}}' is not the name of a variable: write $${{ for the text itself"
            ));
        }
        expanded.push_str(&lookup(name)?);
        rest = after;
    }
    expanded.push_str(rest);
    if expanded.len() > MAX_BYTES {
        Err(format!("is longer than {MAX_BYTES} bytes with its variables"))
    } else {
        Ok(expanded)
    }
}

fn is_name(text: &str) -> bool {
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_word && text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::read;

    fn expanded(text: &str) -> Result<String, String> {
        let mut root = read(text).expect("valid YAML");
        let lookup = |name: &str| match name {
            "PORT" => Ok("8080".to_owned()),
            "HOST" => Ok("a: [b]\n# c".to_owned()),
            _ => Err(format!("the variable {name} is not set")),
        };
        let problems = expand_variables(&mut root, lookup);
        if !problems.is_empty() {
            return Err(problems.to_string());
        }
        let value = root.as_map().and_then(|map| map.first().map(|entry| entry.value().clone()));
        let value = value.expect("one value");
        Ok(value
            .as_u64()
            .map_or_else(|| value.as_str().unwrap_or_default().to_owned(), |n| format!("number {n}")))
    }

    #[test]
    fn variables_are_replaced_in_values_and_cannot_change_the_structure() {
        for (text, value) in [
            ("a: ${PORT}", "number 8080"),
            ("a: '${PORT}'", "8080"),
            ("a: x:${PORT}/${PORT}", "x:8080/8080"),
            ("a: ${HOST}", "a: [b]\n# c"),
            ("a: $${PORT} $5", "${PORT} $5"),
            ("${PORT}: b", "b"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(value), "{text}");
        }
    }

    #[test]
    fn a_missing_variable_is_named_with_its_line() {
        assert_eq!(expanded("a:\n  - ${NONE}"), Err("2:5: the variable NONE is not set".to_owned()));
        for text in ["a: ${", "a: ${}", "a: ${1}", "a: ${A B}", "a: ${A:-b}"] {
            assert!(expanded(text).is_err(), "{text}");
        }
    }
}
