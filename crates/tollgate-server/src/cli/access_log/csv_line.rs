//! Comma-separated values (RFC 4180) with a header line. A record is one line; unknown columns are attributes.

use std::borrow::Cow;

use tollgate::internal::http::FieldSelection;

use super::LogRecord;
use super::field_names::LogField;

const MAX_COLUMNS: usize = 256;
const TIME_COLUMNS: [&str; 6] = ["time", "ts", "timestamp", "@timestamp", "time_iso8601", "msec"];

/// Each with its name; without a field if no rule needs it.
pub struct CsvColumns<'s>(Vec<(String, Option<LogField<'s>>)>);

impl<'s> CsvColumns<'s> {
    /// The columns, if a line is a header with a time.
    pub fn of_header(line: &str, selection: &'s FieldSelection) -> Result<CsvColumns<'s>, String> {
        let line = line.strip_prefix('\u{feff}').unwrap_or(line);
        let names: Vec<String> = fields(line)?.into_iter().map(|name| name.trim().to_owned()).collect();
        if !names.iter().any(|name| TIME_COLUMNS.contains(&name.as_str())) {
            return Err(format!("the header has no column of {}", TIME_COLUMNS.join(", ")));
        }
        let column = |name: String| {
            let field = LogField::of(&name, selection);
            (name, field)
        };
        Ok(CsvColumns(names.into_iter().map(column).collect()))
    }

    pub fn parse<'l>(&self, line: &'l str) -> Result<LogRecord<'l>, String>
    where
        's: 'l,
    {
        let values = fields(line)?;
        if values.len() != self.0.len() {
            return Err(format!("{} fields instead of {}", values.len(), self.0.len()));
        }
        let mut record = LogRecord::default();
        for ((name, field), value) in self.0.iter().zip(values) {
            if let Some(field) = field {
                record.set(*field, name, value)?;
            }
        }
        Ok(record)
    }
}

fn fields(line: &str) -> Result<Vec<Cow<'_, str>>, String> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        if fields.len() == MAX_COLUMNS {
            return Err(format!("more than {MAX_COLUMNS} fields"));
        }
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (Cow::Borrowed(&rest[..end]), &rest[end..])
            }
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(fields),
            None => return Err("text after a closing quote".to_owned()),
        }
    }
}

/// A field up to its closing quote, and what follows; a doubled quote is one.
fn unquote(text: &str) -> Result<(Cow<'_, str>, &str), String> {
    let mut from = 0;
    let mut has_doubled = false;
    loop {
        let end = from + text[from..].find('"').ok_or("a quote is not closed")?;
        if !text[end + 1..].starts_with('"') {
            let field = &text[..end];
            let field =
                if has_doubled { Cow::Owned(field.replace("\"\"", "\"")) } else { Cow::Borrowed(field) };
            return Ok((field, &text[end + 1..]));
        }
        has_doubled = true;
        from = end + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::access_log::testing::selection;

    #[test]
    fn columns_are_fields_and_attributes() {
        let selection = selection(&["attr:plan"]);
        let columns = CsvColumns::of_header("time,ip,user,path,plan,other", &selection).expect("a header");
        let record = columns.parse(r#"1767225600,192.0.2.7,"a ""b"", c",/x,pro,x"#).expect("a record");
        assert_eq!(record.user.as_deref(), Some(r#"a "b", c"#));
        assert_eq!(record.path.as_deref(), Some("/x"));
        let attributes: Vec<_> = record.fields.iter().map(|(_, name, value)| (*name, &**value)).collect();
        assert_eq!(attributes, [("plan", "pro")]);
    }

    #[test]
    fn other_lines_are_rejected_with_a_reason() {
        let selection = FieldSelection::default();
        assert!(CsvColumns::of_header("ip,user", &selection).is_err());
        let columns = CsvColumns::of_header("time,user", &selection).expect("a header");
        for (line, why) in [
            ("1", "1 fields instead of 2"),
            ("1,\"a", "not closed"),
            ("1,\"a\"b", "after a closing quote"),
            ("soon,a", "'time' is not a time"),
        ] {
            let found = columns.parse(line).expect_err(line);
            assert!(found.contains(why), "{line}: {found}");
        }
    }
}
