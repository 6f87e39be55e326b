//! Cursors of lists that begin with items of the file and continue with items of the database.

use crate::response::ProblemDetails;

/// The start of a page.
pub enum Cursor {
    First,
    /// After an item of the file.
    File(String),
    /// After an item of the database, by its name.
    Database(String),
}

impl Cursor {
    /// Parses `file:NAME` or `database:NAME`, the `next` of the page before.
    pub fn parse(after: Option<&str>, is_name: impl Fn(&str) -> bool) -> Result<Cursor, ProblemDetails> {
        let Some(after) = after else { return Ok(Cursor::First) };
        match after.split_once(':').filter(|(_, name)| is_name(name)) {
            Some(("file", name)) => Ok(Cursor::File(name.to_owned())),
            Some(("database", name)) => Ok(Cursor::Database(name.to_owned())),
            _ => Err(ProblemDetails::bad_field(
                "after",
                "'after' is not a valid cursor: use the 'next' of the previous page",
            )),
        }
    }

    pub fn file(name: &str) -> String {
        format!("file:{name}")
    }

    pub fn database(name: &str) -> String {
        format!("database:{name}")
    }

    /// Whether the page begins with items of the file.
    pub fn starts_in_file(&self) -> bool {
        !matches!(self, Cursor::Database(_))
    }

    /// The database name after which the page begins.
    pub fn database_name(self) -> String {
        if let Cursor::Database(name) = self { name } else { String::new() }
    }

    /// The items of the file after the cursor.
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

/// A page, and the cursor of the next one: `found` has one item more than `limit` if there is one.
pub fn split_page<T>(mut found: Vec<(String, T)>, limit: usize) -> (Vec<T>, Option<String>) {
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|(cursor, _)| cursor.clone());
    (found.into_iter().map(|(_, item)| item).collect(), next)
}
