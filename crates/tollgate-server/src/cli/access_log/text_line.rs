//! A line of the common or combined log format: `IP IDENT USER [TIME] "REQUEST" STATUS BYTES "REFERER" "AGENT"`.
//!
//! A virtual host may precede the address.

use std::borrow::Cow;

use tollgate::internal::http::FieldSelection;
use tollgate::internal::identity::address::parse_ip;

use super::field_names::LogField;
use super::{LogRecord, timestamp};

pub fn parse<'l>(line: &'l str, selection: &'l FieldSelection) -> Result<LogRecord<'l>, String> {
    let mut record = LogRecord::default();
    let (mut first, mut rest) = line.split_once(' ').ok_or("not a line of an access log")?;
    record.ip = parse_ip(first);
    if record.ip.is_none() {
        record.host = present(first.split(':').next().unwrap_or_default());
        (first, rest) = rest.split_once(' ').ok_or("not a line of an access log")?;
        record.ip = Some(parse_ip(first).ok_or_else(|| format!("'{first}' is not an IP address"))?);
    }
    let (users, rest) = rest.split_once('[').ok_or("the line has no [time]")?;
    // The name of a user may contain spaces.
    record.user = users.split_once(' ').and_then(|(_ident, user)| present(user.trim()));
    let (time, rest) = rest.split_once(']').ok_or("the line has no [time]")?;
    let at = timestamp::common(time.as_bytes()).ok_or_else(|| format!("'{time}' is not a time of a log"))?;
    record.at = Some(at);
    let (request, rest) = quoted(rest).ok_or("the line has no \"request\"")?;
    read_request(&mut record, Cow::Borrowed(request))?;
    let mut words = rest.trim_start().splitn(3, ' ');
    record.status = words.next().and_then(|status| status.parse().ok());
    if let Some((referer, rest)) = words.nth(1).and_then(quoted) {
        let agent = quoted(rest).map(|(agent, _)| agent);
        for (name, value) in [("referer", Some(referer)), ("user-agent", agent)] {
            if let (Some(field), Some(value)) = (LogField::header(name, selection), value) {
                record.set(field, name, Cow::Borrowed(value))?;
            }
        }
    }
    Ok(record)
}

/// `GET /path HTTP/1.1`
pub fn read_request<'a>(record: &mut LogRecord<'a>, request: Cow<'a, str>) -> Result<(), String> {
    let read = |request: &str| -> Option<(usize, usize)> {
        let method = request.find(' ')?;
        let end = request.rfind(" HTTP/").filter(|end| *end > method).unwrap_or(request.len());
        (method > 0 && end > method + 1).then_some((method, end))
    };
    let (method, end) = read(&request).ok_or_else(|| format!("'{request}' is not a request line"))?;
    match request {
        Cow::Borrowed(request) => {
            record.method = Some(Cow::Borrowed(&request[..method]));
            record.path = Some(Cow::Borrowed(&request[method + 1..end]));
        }
        Cow::Owned(request) => {
            record.method = Some(Cow::Owned(request[..method].to_owned()));
            record.path = Some(Cow::Owned(request[method + 1..end].to_owned()));
        }
    }
    Ok(())
}

/// `None` for the `-` of an absent value.
fn present(text: &str) -> Option<Cow<'_, str>> {
    (!text.is_empty() && text != "-").then_some(Cow::Borrowed(text))
}

/// A quoted text and what follows it; a backslash escapes a quote.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start().strip_prefix('"')?;
    let mut from = 0;
    loop {
        let end = from + text[from..].find('"')?;
        let backslashes = text.as_bytes()[..end].iter().rev().take_while(|byte| **byte == b'\\').count();
        if backslashes % 2 == 0 {
            return Some((&text[..end], &text[end + 1..]));
        }
        from = end + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::access_log::testing::selection;

    #[test]
    fn common_and_combined_lines_are_read() {
        let line = r#"192.0.2.7 - ann lee [01/Jan/2026:00:00:00 +0000] "POST /login?a=b HTTP/2.0" 401 12 "-" "a \"quoted\" agent""#;
        let needed = selection(&["header:user-agent", "header:referer"]);
        let record = parse(line, &needed).expect("a valid line");
        assert_eq!(record.user.as_deref(), Some("ann lee"));
        assert_eq!((record.method.as_deref(), record.path.as_deref()), (Some("POST"), Some("/login?a=b")));
        assert_eq!(record.status, Some(401));
        let fields: Vec<_> = record.fields.iter().map(|(_, name, value)| (*name, &**value)).collect();
        assert_eq!(fields, [("user-agent", r#"a \"quoted\" agent"#)]);

        let line =
            r#"api.example.com:443 2001:db8::1 - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 -"#;
        let record = parse(line, &needed).expect("a valid line");
        assert_eq!(record.host.as_deref(), Some("api.example.com"));
        assert_eq!((record.user, record.status), (None, Some(200)));
    }

    #[test]
    fn other_lines_are_rejected_with_a_reason() {
        for (line, why) in [
            ("x", "not a line"),
            ("a b c d", "'b' is not an IP address"),
            (r#"192.0.2.7 - - "GET / HTTP/1.1" 200 1"#, "no [time]"),
            (r#"192.0.2.7 - - [yesterday] "GET / HTTP/1.1" 200 1"#, "'yesterday'"),
            (r#"192.0.2.7 - - [01/Jan/2026:00:00:00 +0000] "" 400 0"#, "not a request line"),
            (r#"192.0.2.7 - - [01/Jan/2026:00:00:00 +0000] "GET /"#, "no \"request\""),
        ] {
            let found = parse(line, &selection(&[])).expect_err(line);
            assert!(found.contains(why), "{line}: {found}");
        }
    }
}
