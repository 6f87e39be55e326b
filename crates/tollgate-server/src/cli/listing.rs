//! Lists of the admin API: fetched page by page, printed as they arrive.

use std::io;

use serde_json::Value;

use crate::cli::session::Session;
use crate::cli::table::TextTable;
use crate::cli::{AdminArgs, Exit, out};

/// Items per request.
const PAGE: u64 = 1_000;

/// One list, and how it is fetched.
pub struct Listing<'a> {
    pub path: &'a str,
    /// `name=value`, escaped, without the parameters of paging.
    pub query: Vec<String>,
    /// The field of the response that has the items.
    pub items: &'a str,
    /// The parameter that has the cursor.
    pub cursor: &'a str,
    /// The cursor of the first page.
    pub after: Option<String>,
    /// Maximum number of items printed.
    pub limit: Option<u64>,
    /// Printed if the list is empty.
    pub empty_message: &'a str,
}

impl<'a> Listing<'a> {
    pub fn new(path: &'a str, items: &'a str, none: &'a str) -> Listing<'a> {
        Listing {
            path,
            query: Vec::new(),
            items,
            cursor: "after",
            after: None,
            limit: None,
            empty_message: none,
        }
    }

    /// Prints as a table, or as JSON.
    pub fn print_table(
        &self,
        admin: &AdminArgs,
        head: &'static [&'static str],
        row: impl Fn(&Value) -> Vec<String>,
    ) -> Result<(), Exit> {
        let mut table = TextTable::new(head);
        self.print(admin, |_| true, |page| table.lines(&page.iter().map(&row).collect::<Vec<_>>()))
    }

    /// Prints the items that are `wanted`, as lines or as JSON.
    pub fn print(
        &self,
        admin: &AdminArgs,
        wanted: impl Fn(&Value) -> bool,
        mut lines: impl FnMut(&[Value]) -> Vec<String>,
    ) -> Result<(), Exit> {
        let mut json = JsonList::new(self.items);
        let mut count = 0;
        self.pages(admin, wanted, |page, next, rest| {
            count += page.len();
            if admin.json {
                return json.page(page, next, rest);
            }
            lines(page).into_iter().try_for_each(out::try_line)
        })?;
        if count == 0 && !admin.json {
            out::message(self.empty_message);
        }
        Ok(())
    }

    /// Calls back for each page with the wanted items, the cursor of what is left after the last page, and the whole
    /// response.
    fn pages(
        &self,
        admin: &AdminArgs,
        wanted: impl Fn(&Value) -> bool,
        mut each: impl FnMut(&[Value], Option<&Value>, &Value) -> io::Result<()>,
    ) -> Result<(), Exit> {
        let mut session = Session::open(admin)?;
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut after = self.after.clone();
        loop {
            let mut page = session.get(&self.url(left.min(PAGE), after.as_deref()))?;
            let mut items = match page[self.items].take() {
                Value::Array(items) => items,
                _ => Vec::new(),
            };
            items.retain(&wanted);
            items.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= items.len() as u64;
            let next = page["next"].as_str().map(str::to_owned);
            let is_last = next.is_none() || left == 0;
            match each(&items, is_last.then_some(&page["next"]), &page) {
                Ok(()) if !is_last => after = next,
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => {
                    out::message(format!("error: cannot write the list: {error}"));
                    return Err(Exit::Failure);
                }
            }
        }
    }

    fn url(&self, limit: u64, after: Option<&str>) -> String {
        let mut query = self.query.clone();
        query.push(format!("limit={limit}"));
        query.extend(after.map(|after| format!("{}={}", self.cursor, crate::client::percent_encode(after))));
        format!("{}?{}", self.path, query.join("&"))
    }
}

/// One JSON value, written while its items arrive.
struct JsonList<'a> {
    name: &'a str,
    has_begun: bool,
    has_items: bool,
}

impl<'a> JsonList<'a> {
    fn new(name: &'a str) -> JsonList<'a> {
        JsonList { name, has_begun: false, has_items: false }
    }

    /// `last` is the cursor of what was not fetched; set on the last page only.
    fn page(&mut self, items: &[Value], last: Option<&Value>, rest: &Value) -> io::Result<()> {
        use io::Write;
        let mut stdout = io::BufWriter::new(io::stdout().lock());
        if !self.has_begun {
            self.has_begun = true;
            write!(stdout, "{{\n  \"{}\": [", self.name)?;
        }
        for item in items {
            let comma = if self.has_items { "," } else { "" };
            self.has_items = true;
            write!(stdout, "{comma}\n    {item}")?;
        }
        if let Some(next) = last {
            write!(stdout, "{}]", if self.has_items { "\n  " } else { "" })?;
            let others = rest.as_object().into_iter().flatten();
            for (name, value) in others.filter(|(name, _)| *name != self.name && *name != "next") {
                write!(stdout, ",\n  {}: {value}", Value::from(name.as_str()))?;
            }
            write!(stdout, ",\n  \"next\": {next}\n}}\n")?;
        }
        stdout.flush()
    }
}
