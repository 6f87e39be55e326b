//! Results as JUnit XML, which CI systems show.

use std::fmt::Write;

use super::run::TestResult;

pub fn document(file: &str, results: &[TestResult]) -> String {
    let failed = results.iter().filter(|result| result.failure.is_some()).count();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let suite = escape(file);
    let total = results.len();
    writeln!(xml, "<testsuite name=\"{suite}\" tests=\"{total}\" failures=\"{failed}\">").expect(INFALLIBLE);
    for result in results {
        let name = escape(&result.name);
        write!(xml, "  <testcase classname=\"{suite}\" name=\"{name}\"").expect(INFALLIBLE);
        match &result.failure {
            None => xml.push_str("/>\n"),
            Some(failure) => {
                let lines = failure.lines();
                let first = escape(lines.first().map_or("", String::as_str));
                let text = escape(&lines.join("\n"));
                writeln!(xml, ">\n    <failure message=\"{first}\">{text}</failure>\n  </testcase>")
                    .expect(INFALLIBLE);
            }
        }
    }
    xml.push_str("</testsuite>\n");
    xml
}

const INFALLIBLE: &str = "writing to a string cannot fail";

/// Escapes markup; characters that XML cannot contain are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
