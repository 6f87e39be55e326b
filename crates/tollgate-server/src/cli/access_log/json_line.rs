//! A log line that is a JSON object: Caddy's, Traefik's, or one of nginx with the names of its variables.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tollgate::internal::http::FieldSelection;

use super::LogRecord;
use super::field_names::LogField;

/// Caddy nests two levels: `request.headers`.
const MAX_DEPTH: u8 = 3;

pub fn parse<'l>(line: &'l str, selection: &'l FieldSelection) -> Result<LogRecord<'l>, String> {
    let mut record = LogRecord::default();
    let mut problem = None;
    let mut json = serde_json::Deserializer::from_str(line);
    let level = LineObject {
        selection,
        record: &mut record,
        problem: &mut problem,
        kind: ObjectKind::Fields,
        depth: 0,
    };
    let read = json.deserialize_map(level).and_then(|()| json.end());
    read.map_err(|error| format!("not a JSON object: {error}"))?;
    problem.map_or(Ok(record), Err)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ObjectKind {
    Fields,
    Headers,
    Attributes,
}

impl ObjectKind {
    /// The kind of a member that is an object; `None` for one that is not read.
    fn of_member(name: &str) -> Option<ObjectKind> {
        match name {
            "request" => Some(ObjectKind::Fields),
            "headers" => Some(ObjectKind::Headers),
            "attributes" => Some(ObjectKind::Attributes),
            _ => None,
        }
    }
}

/// An object of the line.
struct LineObject<'r, 'a> {
    selection: &'a FieldSelection,
    record: &'r mut LogRecord<'a>,
    problem: &'r mut Option<String>,
    kind: ObjectKind,
    depth: u8,
}

impl<'a> LineObject<'_, 'a> {
    fn field(&self, name: &str) -> Option<LogField<'a>> {
        match self.kind {
            ObjectKind::Fields => LogField::of(name, self.selection),
            ObjectKind::Headers => LogField::header(name, self.selection),
            ObjectKind::Attributes => LogField::attribute(name, self.selection),
        }
    }

    fn set(&mut self, field: Option<LogField<'a>>, name: &str, value: Cow<'a, str>) {
        if let Some(field) = field
            && let Err(why) = self.record.set(field, name, value)
        {
            self.problem.get_or_insert(why);
        }
    }
}

impl<'de> Visitor<'de> for LineObject<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<(), M::Error> {
        while let Some(name) = map.next_key_seed(BorrowedText)? {
            let field = self.field(&name);
            let object = ObjectKind::of_member(&name).filter(|_| self.depth + 1 < MAX_DEPTH);
            if field.is_none() && object.is_none() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            map.next_value_seed(LineMember { level: &mut self, name: &name, field, object })?;
        }
        Ok(())
    }
}

/// A value of an object.
struct LineMember<'f, 'r, 'a> {
    level: &'f mut LineObject<'r, 'a>,
    name: &'f str,
    field: Option<LogField<'a>>,
    /// If the value is an object.
    object: Option<ObjectKind>,
}

impl<'a> LineMember<'_, '_, 'a> {
    fn set(self, value: Cow<'a, str>) {
        self.level.set(self.field, self.name, value);
    }
}

impl<'de> DeserializeSeed<'de> for LineMember<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LineMember<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<(), E> {
        self.set(Cow::Borrowed(text));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.set(Cow::Owned(text.to_owned()));
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.set(Cow::Owned(number.to_string()));
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.set(Cow::Owned(number.to_string()));
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        let text = match self.field {
            // Six digits: what a number of seconds since 1970 holds.
            Some(LogField::Time { .. }) => format!("{number:.6}"),
            _ => number.to_string(),
        };
        self.set(Cow::Owned(text));
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.set(Cow::Borrowed(if value { "true" } else { "false" }));
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    /// Headers and attributes may have several values; Caddy writes every header as a list.
    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        let LineMember { level, name, field, .. } = self;
        if !matches!(field, Some(LogField::Selected(..))) {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        while list.next_element_seed(LineMember { level, name, field, object: None })?.is_some() {}
        Ok(())
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let Some(kind) = self.object else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        let selection = self.level.selection;
        let LineObject { record, problem, depth, .. } = self.level;
        LineObject { selection, record, problem, kind, depth: *depth + 1 }.visit_map(map)
    }
}

/// A text that is borrowed where it has no escapes.
struct BorrowedText;

impl<'de> DeserializeSeed<'de> for BorrowedText {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for BorrowedText {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Time;

    use super::*;
    use crate::cli::access_log::testing::selection;

    fn parse_with(line: &str, needed: &[&str]) -> Result<LogRecord<'static>, String> {
        parse(line.to_owned().leak(), Box::leak(Box::new(selection(needed))))
    }

    fn check(line: &str, method: &str, path: &str, host: &str) -> LogRecord<'static> {
        let needed = ["header:user-agent", "header:x-api-key"];
        let record = parse_with(line, &needed).unwrap_or_else(|why| panic!("{why}: {line}"));
        assert_eq!(record.at, Some(Time::from_nanos(1_767_225_600_250_000_000)), "{line}");
        assert_eq!(record.ip, Some("192.0.2.7".parse().expect("an address")), "{line}");
        assert_eq!(record.method.as_deref(), Some(method), "{line}");
        assert_eq!(record.path.as_deref(), Some(path), "{line}");
        assert_eq!(record.host.as_deref(), Some(host), "{line}");
        assert_eq!(record.status, Some(200), "{line}");
        record
    }

    #[test]
    fn the_lines_of_caddy_traefik_and_nginx_are_read() {
        let caddy = r#"{"level":"info","ts":1767225600.25,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","remote_port":"41342","client_ip":"192.0.2.7","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"/a?b=c","headers":{"User-Agent":["curl/8"],"X-Api-Key":["k1"]},"tls":{"resumed":false}},"bytes_read":0,"user_id":"ann","duration":0.0009,"size":12,"status":200,"resp_headers":{"Server":["Caddy"]}}"#;
        let record = check(caddy, "GET", "/a?b=c", "example.com");
        assert_eq!(record.user.as_deref(), Some("ann"));
        let headers: Vec<_> = record.fields.iter().map(|(_, name, value)| (*name, &**value)).collect();
        assert_eq!(headers, [("user-agent", "curl/8"), ("x-api-key", "k1")]);

        let traefik = r#"{"ClientAddr":"192.0.2.7:5011","ClientHost":"192.0.2.7","ClientUsername":"-","DownstreamStatus":200,"Duration":12,"RequestHost":"example.com","RequestMethod":"POST","RequestPath":"/login","StartUTC":"2026-01-01T00:00:00.25Z","request_User-Agent":"curl/8","time":"2026-01-01T00:00:01Z"}"#;
        let record = check(traefik, "POST", "/login", "example.com");
        assert_eq!((record.user, record.fields[0].1), (None, "user-agent"));

        let nginx = r#"{"time_local":"01/Jan/2026:00:00:00 +0000","msec":"1767225600.250","remote_addr":"192.0.2.7","remote_user":"","request":"GET /x HTTP/1.1","status":"200","http_host":"example.com","http_x_api_key":"k1","request_time":"0.001"}"#;
        let record = check(nginx, "GET", "/x", "example.com");
        assert!(record.fields.iter().any(|(_, name, value)| *name == "x-api-key" && value == "k1"));
    }

    /// A regression: a field that no server writes was an attribute in CSV and nothing in JSON, and a member of
    /// `attributes` with the name of a field was that field.
    #[test]
    fn fields_that_rules_name_are_attributes_as_in_csv() {
        let needed = ["attr:plan", "attr:user", "attr:weight", "header:x-plan"];
        let attributes = |line: &str| {
            let record = parse_with(line, &needed).unwrap_or_else(|why| panic!("{why}: {line}"));
            let fields = record.fields.iter();
            let fields = fields.map(|(source, name, value)| format!("{source:?}:{name}={value}"));
            (record.user.map(Cow::into_owned), fields.collect::<Vec<_>>().join(" "))
        };
        for (fields, user, expected) in [
            (r#""plan":"pro","level":"info","size":12"#, None, "Attr:plan=pro"),
            (r#""attr:plan":"pro","user":"ann""#, Some("ann"), "Attr:plan=pro"),
            (r#""attributes":{"plan":["pro","free"],"status":"x"}"#, None, "Attr:plan=pro Attr:plan=free"),
            (r#""attributes":{"user":"bob"},"user":"ann""#, Some("ann"), "Attr:user=bob"),
            (r#""weight":1.5,"plan":2"#, None, "Attr:weight=1.5 Attr:plan=2"),
            (r#""headers":{"X-Plan":["pro"],"plan":"x"}"#, None, "Header:x-plan=pro"),
            (r#""request":{"plan":"pro"},"http_x_plan":"a""#, None, "Attr:plan=pro Header:x-plan=a"),
        ] {
            let found = attributes(&format!(r#"{{"ts":1767225600,{fields}}}"#));
            assert_eq!((found.0.as_deref(), &*found.1), (user, expected), "{fields}");
        }
    }

    #[test]
    fn other_lines_are_rejected_with_a_reason() {
        for (line, why) in [
            ("[]", "not a JSON object"),
            (r#"{"ts": 1} x"#, "not a JSON object"),
            (r#"{"ts": 1"#, "not a JSON object"),
            (r#"{"ts": "yesterday"}"#, "'ts' is not a time"),
            (r#"{"ip": "x"}"#, "'ip' is not an IP address"),
            (r#"{"cost": -1}"#, "'cost' is not a number"),
        ] {
            let found = parse_with(line, &[]).expect_err(line);
            assert!(found.contains(why), "{line}: {found}");
        }
        let deep = format!("{}{}", r#"{"request":"#.repeat(5000), "}".repeat(5000));
        assert!(parse_with(&deep, &[]).is_err());
    }
}
