//! Fields of a JSON object in the prefix of a body, which may be cut off.
//!
//! Reads what lenient parsers read: escapes of lone surrogates and bytes that are not UTF-8 are replaced, and a trailing
//! comma is accepted, because a server that accepts them sees the fields. Every value of a field is found, whatever the case
//! of its name. In input that is invalid even so, such as comments or single quotes, values before the error do not count:
//! a server that accepts it may see others, so every field of it has the values [`UNREADABLE`]. The scan is linear: each
//! byte is scanned once, and a string is decoded once.
//!
//! Not `serde_json`: it rejects those inputs as a whole (`serde_json_sees_no_field_behind_what_lenient_parsers_take`).

use std::borrow::Cow;
use std::collections::BTreeSet;

/// The value of a list in a list or of an object, beside others.
const NESTED: &str = "{}";

/// The values of every field of an object that cannot be read: two, so that a rule finds it ambiguous.
const UNREADABLE: [&str; 2] = ["{", NESTED];

/// How a body begins that some servers read as an object: comments and the prefix against script inclusion are skipped by
/// lenient parsers.
const OBJECT_STARTS: [&[u8]; 5] = [b"{", b"//", b"/*", b"#", b")]}'"];

/// The values of a field.
#[derive(PartialEq, Eq, Debug)]
pub struct FieldValues {
    /// Without duplicates.
    pub values: Vec<String>,
    /// Whether more values may follow behind the known prefix of the body.
    pub is_cut: bool,
}

/// The strings, numbers and booleans at a dotted path, without duplicates, in their order.
///
/// A list in a list and an object have no value of their own. Beside other values they have a constant one, so that a
/// value of which a server takes no notice does not hide the client.
pub fn find(bytes: &[u8], path: &str, end: Completeness) -> FieldValues {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut scan = FieldScanner { rest: bytes, found: Vec::new(), known: BTreeSet::new(), is_nested: false };
    let is_cut = match scan.object(&case_folded(path)) {
        Err(ScanError::Truncated) if end == Completeness::Truncated => true,
        Err(_) => return FieldValues { values: unreadable(bytes), is_cut: false },
        Ok(()) => false,
    };
    if scan.is_nested && !scan.found.is_empty() {
        scan.keep(NESTED.to_owned());
    }
    FieldValues { values: scan.found, is_cut }
}

/// The values of any field of a body that cannot be read: none, unless it begins like an object.
fn unreadable(bytes: &[u8]) -> Vec<String> {
    let text = bytes.trim_ascii_start();
    match OBJECT_STARTS.iter().any(|start| text.starts_with(start)) {
        true => UNREADABLE.map(str::to_owned).to_vec(),
        false => Vec::new(),
    }
}

/// Whether a byte may be part of a number, a literal or `NaN`. Other bytes outside of strings are those of comments, names
/// without quotes, single quotes and the like.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

/// Whether a body continues behind its known prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completeness {
    Complete,
    Truncated,
}

/// Why a scan ends before the object does.
enum ScanError {
    Truncated,
    NotJson,
}

/// Scans JSON from left to right.
struct FieldScanner<'j> {
    rest: &'j [u8],
    found: Vec<String>,
    known: BTreeSet<String>,
    /// Whether a list in a list, or an object, is in the place of a value.
    is_nested: bool,
}

/// Names are compared by Unicode case folding. Go matches `ſ` with `s` in a field's name.
fn case_folded(name: &str) -> String {
    name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

impl<'j> FieldScanner<'j> {
    /// Searches `path` in the object that follows. The recursion depth is the number of dots in the path.
    fn object(&mut self, path: &str) -> Result<(), ScanError> {
        self.expect(b'{')?;
        let (here, deeper) = path.split_once('.').unwrap_or((path, ""));
        if self.next()? == b'}' {
            return self.skip(1);
        }
        loop {
            let name = case_folded(&decoded(self.text()?));
            self.expect(b':')?;
            if name == path {
                self.values()?;
            } else if name == here && !deeper.is_empty() && self.next()? == b'{' {
                self.object(deeper)?;
            } else {
                self.skip_value()?;
            }
            match self.next()? {
                b'}' => return self.skip(1),
                b',' => self.skip(1)?,
                _ => return Err(ScanError::NotJson),
            }
            // Lenient parsers accept a comma behind the last field.
            if self.next()? == b'}' {
                return self.skip(1);
            }
        }
    }

    fn next(&mut self) -> Result<u8, ScanError> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied().ok_or(ScanError::Truncated)
    }

    fn skip(&mut self, count: usize) -> Result<(), ScanError> {
        self.rest = self.rest.get(count..).ok_or(ScanError::Truncated)?;
        Ok(())
    }

    fn expect(&mut self, byte: u8) -> Result<(), ScanError> {
        if self.next()? == byte { self.skip(1) } else { Err(ScanError::NotJson) }
    }

    /// A string, without its quotes.
    fn text(&mut self) -> Result<&'j [u8], ScanError> {
        self.expect(b'"')?;
        let mut escaped = false;
        let closes = |byte: &u8| {
            let closes = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            closes
        };
        let end = self.rest.iter().position(closes).ok_or(ScanError::Truncated)?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(text)
    }

    /// Collects the value that follows, or the elements of the list that follows.
    fn values(&mut self) -> Result<(), ScanError> {
        match self.next()? {
            b'[' => self.list(),
            b'{' => self.nested(),
            _ => self.scalar(),
        }
    }

    fn nested(&mut self) -> Result<(), ScanError> {
        self.is_nested = true;
        self.skip_value()
    }

    /// Some servers read a list of one element as the element.
    fn list(&mut self) -> Result<(), ScanError> {
        self.expect(b'[')?;
        if self.next()? == b']' {
            return self.skip(1);
        }
        loop {
            match self.next()? {
                b'[' | b'{' => self.nested()?,
                _ => self.scalar()?,
            }
            match self.next()? {
                b']' => return self.skip(1),
                b',' => self.skip(1)?,
                _ => return Err(ScanError::NotJson),
            }
            if self.next()? == b']' {
                return self.skip(1);
            }
        }
    }

    fn scalar(&mut self) -> Result<(), ScanError> {
        if self.next()? == b'"' {
            let text = decoded(self.text()?).into_owned();
            self.keep(text);
        } else if let Some(word) = canonical(self.word()?) {
            self.keep(word);
        }
        Ok(())
    }

    fn keep(&mut self, value: String) {
        if self.known.insert(value.clone()) {
            self.found.push(value);
        }
    }

    /// A number, `true`, `false` or `null`, up to its delimiter.
    fn word(&mut self) -> Result<&'j str, ScanError> {
        self.next()?;
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n');
        let end = self.rest.iter().position(ends).ok_or(ScanError::Truncated)?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let is_valid = !word.is_empty() && word.iter().copied().all(is_word);
        std::str::from_utf8(word).ok().filter(|_| is_valid).ok_or(ScanError::NotJson)
    }

    /// Skips any value.
    fn skip_value(&mut self) -> Result<(), ScanError> {
        match self.next()? {
            b'"' => self.text().map(drop),
            b'{' | b'[' => {
                let mut nesting = Nesting::default();
                for (at, byte) in self.rest.iter().enumerate() {
                    if !nesting.accepts(*byte) {
                        return Err(ScanError::NotJson);
                    }
                    nesting.feed(std::slice::from_ref(byte));
                    if nesting.is_closed() {
                        return self.skip(at + 1);
                    }
                }
                Err(ScanError::Truncated)
            }
            _ => self.word().map(drop),
        }
    }
}

/// Nesting depth of the bytes so far.
#[derive(Default)]
pub struct Nesting {
    depth: usize,
    opened: bool,
    quoted: bool,
    escaped: bool,
}

impl Nesting {
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match (self.quoted, byte) {
                (true, _) if self.escaped => self.escaped = false,
                (true, b'\\') => self.escaped = true,
                (_, b'"') => self.quoted = !self.quoted,
                (false, b'{' | b'[') => {
                    self.depth += 1;
                    self.opened = true;
                }
                (false, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Whether a byte may follow in JSON, wherever it stands there.
    fn accepts(&self, byte: u8) -> bool {
        let is_structure = matches!(byte, b'{' | b'}' | b'[' | b']' | b',' | b':' | b'"');
        self.quoted || is_structure || byte.is_ascii_whitespace() || is_word(byte)
    }

    pub fn is_closed(&self) -> bool {
        self.opened && self.depth == 0 && !self.quoted
    }
}

/// A scalar in its canonical form: `42`, `42.0` and `4.2e1` are one number. `None` for `null`.
///
/// 64-bit integers are compared digit by digit, all other numbers as doubles, which is how most servers read them.
fn canonical(word: &str) -> Option<String> {
    if word == "null" {
        return None;
    }
    if let Ok(whole) = word.parse::<i128>()
        && i128::from(i64::MIN) <= whole
        && whole <= i128::from(u64::MAX)
    {
        return Some(whole.to_string());
    }
    let is_number = word.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    match word.parse::<f64>() {
        // Adding 0 turns -0 into 0.
        Ok(number) if is_number => Some((number + 0.0).to_string()),
        _ => Some(word.to_owned()),
    }
}

/// Decodes the inside of a string. Invalid parts are replaced.
fn decoded(text: &[u8]) -> Cow<'_, str> {
    if !text.contains(&b'\\') {
        return String::from_utf8_lossy(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            decoded.push(byte);
            continue;
        }
        let Some((&escape, after)) = rest.split_first() else { break };
        rest = after;
        match escape {
            b'u' => {
                let char = code_unit(&mut rest);
                decoded.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            }
            b'b' => decoded.push(8),
            b'f' => decoded.push(12),
            b'n' => decoded.push(b'\n'),
            b'r' => decoded.push(b'\r'),
            b't' => decoded.push(b'\t'),
            other => decoded.push(other),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

/// The character of a `\u` escape, or of two for a surrogate pair.
fn code_unit(rest: &mut &[u8]) -> char {
    let Some(first) = hex(rest) else { return char::REPLACEMENT_CHARACTER };
    *rest = &rest[4..];
    if let Some(char) = char::from_u32(u32::from(first)) {
        return char;
    }
    let second = rest.strip_prefix(b"\\u").and_then(hex);
    match second.and_then(|second| char::decode_utf16([first, second]).next()?.ok()) {
        Some(char) => {
            *rest = &rest[6..];
            char
        }
        None => char::REPLACEMENT_CHARACTER,
    }
}

fn hex(digits: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(digits.get(..4)?).ok()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8], path: &str, end: Completeness) -> Vec<String> {
        find(bytes, path, end).values
    }

    #[track_caller]
    fn check(json: &str, path: &str, expected: &[&str]) {
        assert_eq!(fields(json.as_bytes(), path, Completeness::Complete), expected, "{json}");
    }

    #[test]
    fn a_field_is_found_wherever_it_stands() {
        check(r#"{"email":"ann@example.com"}"#, "email", &["ann@example.com"]);
        check(r#" { "a" : [1,{"email":"x"}] , "email" : "ann" , "b":{} } "#, "email", &["ann"]);
        check("\u{feff}{\"email\":\"ann\"}", "email", &["ann"]);
        check(r#"{"em\u0061il":"\u0061nn \"x\"\ud83d\ude00\n"}"#, "email", &["ann \"x\"😀\n"]);
        check(r#"{"id": true}"#, "id", &["true"]);
        check(r#"{"user":{"x":{"email":"no"},"email":"ann"}}"#, "user.email", &["ann"]);
        check(r#"{"user.email":"ann"}"#, "user.email", &["ann"]);
        check(r#"{"email":["ann",["no"],{"no":1},"bob"]}"#, "email", &["ann", "bob", NESTED]);
        check(r#"{"email":[["ann"]]}"#, "email", &[]);
        check(r#"{"email":{"0":"ann"}}"#, "email", &[]);
        check(r#"{"email":[]}"#, "email", &[]);
    }

    #[test]
    fn every_value_of_a_name_counts_once_and_in_any_case() {
        check(r#"{"email":"decoy","EMail":"ann","email":"decoy"}"#, "email", &["decoy", "ann"]);
        check(r#"{"uſer":"a","\u212Aey":"b"}"#, "user", &["a"]);
        check(r#"{"uſer":"a","\u212Aey":"b"}"#, "key", &["b"]);
        check(r#"{"user":{"email":"decoy"},"User":{"Email":"ann"}}"#, "user.email", &["decoy", "ann"]);
        check(r#"{"email":"decoy","email":{"0":"ann"}}"#, "email", &["decoy", NESTED]);
    }

    #[test]
    fn numbers_have_one_spelling() {
        for (number, expected) in [
            ("42", "42"),
            ("42.0", "42"),
            ("4.2e1", "42"),
            ("420E-1", "42"),
            ("42.00000000000000000000001", "42"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("0.5", "0.5"),
            ("5e-1", "0.5"),
            ("18446744073709551615", "18446744073709551615"),
            ("9007199254740993", "9007199254740993"),
        ] {
            check(&format!(r#"{{"id": {number} }}"#), "id", &[expected]);
        }
    }

    #[test]
    fn what_a_lenient_parser_takes_hides_nothing() {
        check(r#"{"email":"decoy","\ud800":0,"email":"ann"}"#, "email", &["decoy", "ann"]);
        check(r#"{"email":"\ud800"}"#, "email", &["\u{fffd}"]);
        check(r#"{"x":NaN,"email":"ann"}"#, "email", &["ann"]);
        check(r#"{"email":"ann",}"#, "email", &["ann"]);
        check(r#"{"email":["ann" , ] , }"#, "email", &["ann"]);
        check(r#"{"user":{"email":"ann",},}"#, "user.email", &["ann"]);
        let bytes = b"{\"email\":\"decoy\",\"x\":\"\xff\",\"email\":\"ann\"}";
        assert_eq!(fields(bytes, "email", Completeness::Complete), ["decoy", "ann"]);
    }

    /// Servers in Go, JavaScript and Python take these, and see the address.
    #[test]
    fn serde_json_sees_no_field_behind_what_lenient_parsers_take() {
        for lenient in [
            &br#"{"x":"\ud800","email":"ann"}"#[..],
            b"{\"x\":\"\xff\",\"email\":\"ann\"}",
            br#"{"x":NaN,"email":"ann"}"#,
            br#"{"email":"ann","x":"cut o"#,
        ] {
            assert!(serde_json::from_slice::<serde_json::Value>(lenient).is_err());
            assert_eq!(fields(lenient, "email", Completeness::Truncated), ["ann"]);
        }
    }

    #[test]
    fn what_is_no_object_has_no_value() {
        for json in
            ["", " ", "[]", "nonsense", "[{\"email\":\"x\"}]", "{\"email\":null}", "{}", "'{'", "/path"]
        {
            check(json, "email", &[]);
        }
    }

    /// A regression: they counted as missing, and some servers read them.
    #[test]
    fn an_object_that_only_other_parsers_read_is_ambiguous() {
        for json in [
            "{'email':'ann'}",
            "{/*}*/\"email\":\"ann\"}",
            "// {}\n{\"email\":\"ann\"}",
            " /* */ {\"email\":\"ann\"}",
            "#\n{\"email\":\"ann\"}",
            ")]}'\n{\"email\":\"ann\"}",
            "{\"a\":1,//\n\"email\":\"ann\"}",
            "{\"a\":1/*,\"email\":\"decoy\"*/,\"email\":\"ann\"}",
            "{\"a\":{/*\"*/},\"email\":\"ann\",\"x\":{/*\"*/}}",
            "{\"a\":['\"'],\"email\":\"ann\",\"x\":['\"']}",
            "{\"a\":1;\"email\":\"ann\"}",
            "{\"email\"=\"ann\"}",
            "{\"email\"=>\"ann\"}",
            "{\"a\":{b=1},\"email\":\"ann\"}",
            "{,\"email\":\"ann\"}",
            "\u{feff}{email:\"ann\"}",
        ] {
            check(json, "email", &UNREADABLE);
            check(json, "user.email", &UNREADABLE);
        }
    }

    #[test]
    fn an_object_that_is_not_valid_is_ambiguous() {
        for json in [
            "{",
            "{\"email\"",
            "{\"email\":",
            "{\"email\":\"an",
            "{\"email\":4",
            "{email:\"x\"}",
            "{\"email\":\"x\" \"b\":1}",
            "{\"email\":\"x\",,}",
            "{,}",
            "{\"email\":\"x\",\"b\":}",
        ] {
            check(json, "email", &UNREADABLE);
        }
    }

    #[test]
    fn what_is_cut_off_has_the_values_before() {
        let json = br#"{"email":"ann","rest":"and so on and on"#;
        assert!(find(json, "email", Completeness::Truncated).is_cut);
        assert_eq!(fields(json, "email", Completeness::Truncated), ["ann"]);
        assert_eq!(fields(json, "email", Completeness::Complete), UNREADABLE);
        let whole = br#"{"email":"ann"} and what follows"#;
        let expected = FieldValues { values: vec!["ann".to_owned()], is_cut: false };
        assert_eq!(find(whole, "email", Completeness::Truncated), expected);
        for open in ["{\"a\":", "[", "{\"a\":["] {
            assert!(fields(open.repeat(20_000).as_bytes(), "a.a.a.a", Completeness::Truncated).is_empty());
        }
    }
}
