//! Lists of the admin API: asked for page by page, printed as they come.

use std::io;

use serde_json::Value;

use crate::cli::session::Session;
use crate::cli::table::TextTable;
use crate::cli::{AdminArgs, Exit, out};

/// What is asked for at once.
const PAGE: u64 = 1_000;

/// One list, and how it is read.
pub struct Listing<'a> {
    pub path: &'a str,
    /// `name=value`, escaped, without the words of paging.
    pub query: Vec<String>,
    /// Where the answer has its items.
    pub items: &'a str,
    /// The word that asks for what follows a page.
    pub cursor: &'a str,
    /// What comes after this is asked for first.
    pub after: Option<String>,
    /// At most so many are printed.
    pub limit: Option<u64>,
    /// Said where there is none.
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

    /// As a table, or as JSON.
    pub fn print_table(
        &self,
        admin: &AdminArgs,
        head: &'static [&'static str],
        row: impl Fn(&Value) -> Vec<String>,
    ) -> Result<(), Exit> {
        let mut table = TextTable::new(head);
        self.print(admin, |_| true, |page| table.lines(&page.iter().map(&row).collect::<Vec<_>>()))
    }

    /// The items that are `wanted`, as lines or as JSON.
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

    /// Hands on each page: what is wanted of it, the cursor of what is left after the last one, the whole answer.
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

/// One JSON value, written while its items come.
struct JsonList<'a> {
    name: &'a str,
    has_begun: bool,
    has_items: bool,
}

impl<'a> JsonList<'a> {
    fn new(name: &'a str) -> JsonList<'a> {
        JsonList { name, has_begun: false, has_items: false }
    }

    /// `last` is the cursor of what was left out, of the last page only.
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
