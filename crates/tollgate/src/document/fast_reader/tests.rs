//! Both readers agree wherever the fast one answers.

use proptest::prelude::*;

use super::*;
use crate::document::builder::Builder;

#[test]
fn unsure_input_is_left_to_the_other_reader() {
    for text in [
        "",
        "[1]",
        "{\"a\":1",
        "{\"a\":1}}",
        "{\"a\" 1}",
        "{\"a\":1,}",
        "{\"a\":\"x\\n\"}",
        "{\"a\":-1}",
        "{\"a\":\"é\"}",
        "{\"a\":\n1}",
        "{\"a\":1,\"a\":2}",
        "{a:1}",
        "a:",
        "a: b: c",
        "a: {a: 1 -}",
        "a: b\n  c",
        "a: 'b'",
        "a: b #c",
        "a: &b c",
        "- - a",
        "-\n  a: 1",
        "---\na: 1",
        " a: 1",
        "a: 1\nb",
        "a: 1\n b: 1",
        "a: [1,\n  2]",
        "a: |\n  b",
        "a: 1\r\n",
        "a: 1\na: 2",
        "? a",
    ] {
        assert_eq!(read(text), None, "{text}");
    }
    assert!(read(&format!("{{\"a\":{}{}}}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH))).is_none());
}

fn json() -> impl Strategy<Value = String> {
    let string = "\"[ -!#-\\[\\]-~]{0,6}\"".prop_map(|text| text);
    let leaf = prop_oneof![string, "[0-9]{1,3}", Just("true".to_owned()), Just("null".to_owned())];
    let spaces = " {0,1}";
    let nested = leaf.prop_recursive(4, 40, 6, move |inner| {
        let entry = ("\"[a-z<:# ]{0,4}\"", spaces, inner.clone())
            .prop_map(|(key, space, value)| format!("{key}{space}:{space}{value}"));
        prop_oneof![
            (proptest::collection::vec(inner, 0..4), spaces)
                .prop_map(|(items, space)| format!("[{}{space}]", items.join(&format!(",{space}")))),
            (proptest::collection::vec(entry, 0..4), spaces)
                .prop_map(|(entries, space)| format!("{{{}{space}}}", entries.join(&format!(",{space}")))),
        ]
    });
    nested.prop_map(|value| format!("{{\"root\":{value}}}"))
}

/// Lines of block style, most of them well-formed.
fn lines() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        "[a-z/0-9][a-zA-Z0-9 /:{}_,.*<>()+=-]{0,8}",
        "\\{[a-c]: [a-z/1][a-z /:-]{0,4}(, [d-f]: (\\[[a-z](, ?[0-9/]m?)*\\]|\"[ -!#-\\[\\]-~]{0,4}\"))?\\}",
        "\\[[a-z]?( ?, ?[0-9]/m){0,2} ?\\]",
        Just("null".to_owned()),
        Just(String::new()),
        Just("{}".to_owned()),
    ];
    let line = (0..4usize, "(- )?", "([a-h]:)?", " {0,2}", value, " ?", "( {0,4}#x|)", "\n{1,2}");
    let line = line.prop_map(|(indent, item, key, space, value, end, comment, newline)| {
        let comment = if comment.is_empty() { comment } else { format!("\n{comment}") };
        format!("{}{item}{key}{space}{value}{end}{comment}{newline}", "  ".repeat(indent))
    });
    proptest::collection::vec(line, 1..7).prop_map(|lines| lines.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn both_readers_read_the_same(text in json()) {
        if let Some(node) = read(&text) {
            prop_assert_eq!(Builder::build(&text).map_err(|problems| problems.to_string()), Ok(Some(node)));
        }
    }

    #[test]
    fn both_readers_agree_on_lines_of_yaml(text in lines()) {
        if let Some(node) = read(&text) {
            prop_assert_eq!(Builder::build(&text).map_err(|problems| problems.to_string()), Ok(Some(node)));
        }
    }

    #[test]
    fn both_readers_agree_on_any_lines(text in "([ab][:] ?|- |[ \n]|[/1:,#{}\\[\\]\"'&*?|>!%@-]|null|/p/\\{id\\}|a: b\n|  ){0,14}") {
        if let Some(node) = read(&text) {
            prop_assert_eq!(Builder::build(&text).map_err(|problems| problems.to_string()), Ok(Some(node)));
        }
    }

    #[test]
    fn both_readers_agree_on_any_text(text in "\\{[-a1 :,\"{}\\[\\]tru#&*']{0,30}\\}") {
        if let Some(node) = read(&text) {
            prop_assert_eq!(Builder::build(&text).map_err(|problems| problems.to_string()), Ok(Some(node)));
        }
    }
}

#[test]
fn rules_as_people_write_them_are_read() {
    let text = "\
# limits
rules:
  - id: login
    match: POST /login/{id}
    key: [email, ip]
    limits: [5/m, 20/h]

    overrides:
      - { email: \"a@example.com\", limits: [50/m] }
  - {id: rule-1, match: \"POST /x/{id}\", key: user, limit: 5/s}
allow:
- ip:10.0.0.0/8
- user:health-check
";
    assert!(read(text).is_some());
    assert_eq!(Builder::build(text).map_err(|problems| problems.to_string()), Ok(read(text)));
}

#[test]
fn a_rule_as_the_database_holds_it_is_read() {
    let text = r#"{"id":"r-1","uid":"42","url":"GET /a/{b}/**","time":"minute","requests":5,"limits":["5/m"],"track":true}"#;
    assert!(read(text).is_some());
}
