//! Lists that begin with what is in the file and go on with what is in the database.

use crate::response::ProblemDetails;

/// Where a page starts.
pub enum Cursor {
    First,
    /// Behind something of the file.
    File(String),
    /// Behind something of the database, by its name.
    Database(String),
}

impl Cursor {
    /// Reads `file:NAME` or `database:NAME`, the `next` of the page before.
    pub fn parse(after: Option<&str>, is_name: impl Fn(&str) -> bool) -> Result<Cursor, ProblemDetails> {
        let Some(after) = after else { return Ok(Cursor::First) };
        match after.split_once(':').filter(|(_, name)| is_name(name)) {
            Some(("file", name)) => Ok(Cursor::File(name.to_owned())),
            Some(("database", name)) => Ok(Cursor::Database(name.to_owned())),
            _ => Err(ProblemDetails::bad_field(
                "after",
                "'after' is no cursor: take the 'next' of the page before",
            )),
        }
    }

    pub fn file(name: &str) -> String {
        format!("file:{name}")
    }

    pub fn database(name: &str) -> String {
        format!("database:{name}")
    }

    /// Whether the page begins in the part of the file.
    pub fn starts_in_file(&self) -> bool {
        !matches!(self, Cursor::Database(_))
    }

    /// The name in the database that the page comes after.
    pub fn database_name(self) -> String {
        if let Cursor::Database(name) = self { name } else { String::new() }
    }

    /// What of the file comes behind the cursor.
    pub fn after<'i, T>(
        &self,
        items: impl IntoIterator<Item = T> + 'i,
        name: impl Fn(&T) -> String,
    ) -> Result<impl Iterator<Item = T> + 'i, ProblemDetails> {
        let mut items = items.into_iter();
        if let Cursor::File(last) = self
            && !items.by_ref().any(|item| name(&item) == *last)
        {
            let detail = format!("{last} is not in the file any more: begin again without 'after'");
            return Err(ProblemDetails::bad_field("after", detail));
        }
        Ok(items)
    }
}

/// A page and whether there is another: what was found is one more than was asked for if there is.
pub fn split_page<T>(mut found: Vec<(String, T)>, limit: usize) -> (Vec<T>, Option<String>) {
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|(cursor, _)| cursor.clone());
    (found.into_iter().map(|(_, item)| item).collect(), next)
}
