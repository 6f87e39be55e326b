//! Reads a YAML document into a tree. JSON is a subset of YAML and is read the same way.
//!
//! The result of [`read`] is finite and plain: one document, no tags, no merge keys, aliases expanded, keys unique in
//! their map, at most [`MAX_DEPTH`] levels. Must not know the schema; the caller bounds the length of the text.

mod builder;
mod fast_reader;
pub mod json;
mod node;
mod problem;
mod reader;
mod variables;

use builder::Builder;
pub use builder::{MAX_ALIAS_BYTES, MAX_DEPTH};
pub use node::{MapEntry, Node, Scalar, Value};
pub use problem::{MAX_PROBLEMS, Problem, Problems, TextPosition, did_you_mean};
pub use reader::{MapReader, expected, suggestion};
pub use variables::expand_variables;

/// Reads one document; an empty text is [`Value::Null`]. A byte order mark is skipped.
pub fn read(text: &str) -> Result<Node<'_>, Problems> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(root) = fast_reader::read(text) {
        return Ok(root);
    }
    let nothing = Node::new(TextPosition { line: 1, column: 1 }, Value::Null);
    Builder::build(text).map(|root| root.unwrap_or(nothing))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem(text: &str) -> String {
        read(text).expect_err("the text is faulty").to_string()
    }

    fn value<'a>(node: &'a Node<'a>, key: &str) -> &'a Node<'a> {
        let entries = node.as_map().expect("a map");
        entries.iter().find(|entry| entry.key() == key).expect("the key").value()
    }

    #[test]
    fn a_value_knows_its_line_and_column_in_characters() {
        let root = read("é: [ü, {ö: x}]\nlist:\n  - 'y'\n").unwrap();
        let items = value(&root, "é").as_list().unwrap();
        assert_eq!(items[1].position(), TextPosition { line: 1, column: 8 });
        assert_eq!(value(&items[1], "ö").position(), TextPosition { line: 1, column: 12 });
        let quoted = &value(&root, "list").as_list().unwrap()[0];
        assert_eq!(quoted.position(), TextPosition { line: 3, column: 5 });
        assert_eq!(quoted.as_str(), Some("y"));
    }

    #[test]
    fn json_is_read_like_yaml() {
        let json = read("{\n\t\"a\": [1, \"2\", true, null],\n\t\"b\": {}\n}").unwrap();
        let items = value(&json, "a").as_list().unwrap();
        assert_eq!((items[0].as_u64(), items[1].as_u64()), (Some(1), None));
        assert_eq!(items[2].as_bool(), Some(true));
        assert!(items[3].is_null());
        assert_eq!(value(&json, "b").as_map(), Some(&[][..]));
    }

    #[test]
    fn plain_emptiness_is_null_and_quoted_emptiness_is_text() {
        let root = read("\u{feff}a:\nb: ~\nc: null\nd: ''\ne: \"null\"\n").unwrap();
        assert_eq!(root.position(), TextPosition { line: 1, column: 1 });
        for key in ["a", "b", "c"] {
            assert!(value(&root, key).is_null(), "{key}");
        }
        assert_eq!(value(&root, "d").as_str(), Some(""));
        assert_eq!(value(&root, "e").as_str(), Some("null"));
        assert!(read("").unwrap().is_null());
        assert!(read("# nothing\n").unwrap().is_null());
    }

    #[test]
    fn numbers_and_truth_values_are_keys_by_their_text() {
        let root = read("5: a\non: b\nnull: c\n").unwrap();
        let keys: Vec<_> = root.as_map().unwrap().iter().map(MapEntry::key).collect();
        assert_eq!(keys, ["5", "on", "null"]);
        assert_eq!(problem("? [a]\n: b"), "1:3: a key must be text, not a list or a map");
        assert_eq!(problem(": b"), "1:1: a key is missing here");
    }

    #[test]
    fn escapes_and_folded_lines_are_resolved_and_the_rest_is_borrowed() {
        let root = read("- \"a\\tb\"\n- c\n  d\n- |\n  e\n- plain\n- 'it''s'\n").unwrap();
        let texts: Vec<_> = root.as_list().unwrap().iter().filter_map(Node::as_str).collect();
        assert_eq!(texts, ["a\tb", "c d", "e\n", "plain", "it's"]);
    }

    #[test]
    fn a_repeated_key_names_both_lines_in_small_and_large_maps() {
        let twice = "3:1: key 'a' is given twice, on lines 1 and 3";
        assert_eq!(problem("a: 1\nb: 2\na: 3\n"), twice);
        let many: String = (0..1_000).map(|n| format!("k{n}: 1\n")).collect();
        let twice = "1001:1: key 'k7' is given twice, on lines 8 and 1001";
        assert_eq!(problem(&format!("{many}k7: 1\n")), twice);
    }

    #[test]
    fn an_alias_stands_for_its_anchor() {
        let root = read("a: &x [1, 2]\nb: *x\n&k c: *k\n").unwrap();
        assert_eq!(value(&root, "a"), value(&root, "b"));
        assert_eq!(value(&root, "c").as_str(), Some("c"));
        assert!(problem("a: *x").starts_with("1:4: "));
        assert!(problem("a: &x [*x]").starts_with("1:8: an alias cannot refer to"));
    }

    #[test]
    fn a_billion_laughs_are_refused() {
        let mut laughs = String::from("a0: &a0 [lol, lol]\n");
        for n in 1..40 {
            let before = n - 1;
            laughs += &format!("a{n}: &a{n} [*a{before}, *a{before}]\n");
        }
        assert!(problem(&laughs).contains("aliases expand to more than 64 MiB"));
        let long = format!("- &a {}\n{}", "x".repeat(1 << 20), "- *a\n".repeat(100));
        assert!(problem(&long).contains("aliases expand"));
    }

    #[test]
    fn nesting_is_bounded_with_and_without_aliases() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&nested(MAX_DEPTH)).is_ok());
        let too_deep = "lists and maps are nested deeper than 64 levels";
        assert_eq!(problem(&nested(MAX_DEPTH + 1)), format!("1:65: {too_deep}"));
        let text = format!("[&a {}, [*a]]", nested(MAX_DEPTH - 1));
        assert!(problem(&text).ends_with(too_deep));
        assert!(read(&"[".repeat(100_000)).is_err());
        assert!(read(&"- ".repeat(100_000)).is_err());
    }

    #[test]
    fn merge_keys_tags_and_second_documents_are_refused() {
        let text = "a: !!str 5\nb:\n  <<: {c: d}\n";
        let expected = "1:4: tags such as '!!str' are not supported: quote text instead\n\
                        3:3: merge keys '<<' are not supported: write the keys out";
        assert_eq!(problem(text), expected);
        assert!(read("'<<': a").is_ok());
        assert!(problem("a: 1\n---\nb: 2\n").starts_with("2:1: a second document starts here"));
        assert!(read("---\na: 1\n...\n").is_ok());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(
            text in "[-a1 \\n\\t\\r:,?!&*#|>%@`'\"{}\\[\\]<.~\\\\ué\u{feff}]{0,60}",
        ) {
            let _ = read(&text);
        }

        #[test]
        fn damaged_rules_do_not_make_the_reader_panic(
            at in 0..RULES.len(),
            piece in "[-\\n :,&*'\"{}\\[\\]|]{1,4}",
        ) {
            let (before, after) = RULES.split_at(at);
            let _ = read(&format!("{before}{piece}{after}"));
            let _ = read(&format!("{before}{piece}{}", &after[1..]));
        }
    }

    const RULES: &str = r#"
rules:
  - { id: r1, match: "POST /a\u00e9/{x}", key: &k [ip, user] }
  - id: r2
    key: *k
    note: |
      two
      lines
"#;
}
