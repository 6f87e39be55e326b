//! Tables on the terminal: aligned columns with a header. Control characters in values are escaped.

use crate::cli::out;

pub struct TextTable {
    head: &'static [&'static str],
    widths: Vec<usize>,
    has_begun: bool,
}

impl TextTable {
    pub fn new(head: &'static [&'static str]) -> TextTable {
        let widths = head.iter().map(|name| name.chars().count()).collect();
        TextTable { head, widths, has_begun: false }
    }

    /// The next rows as lines. Columns grow with longer values and never shrink.
    pub fn lines(&mut self, rows: &[Vec<String>]) -> Vec<String> {
        let rows: Vec<Vec<_>> =
            rows.iter().map(|row| row.iter().map(|cell| out::escape_control(cell)).collect()).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let head = if self.has_begun || rows.is_empty() { None } else { Some(self.line(self.head)) };
        self.has_begun |= head.is_some();
        head.into_iter().chain(rows.iter().map(|row| self.line(row))).collect()
    }

    fn line(&self, cells: &[impl AsRef<str>]) -> String {
        let mut line = String::new();
        for (n, (width, cell)) in self.widths.iter().zip(cells).enumerate() {
            let is_gap = cell.as_ref().is_empty() && n + 1 < cells.len();
            line += &format!("{:<width$}  ", if is_gap { "-" } else { cell.as_ref() });
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn columns_line_up_under_one_head() {
        let mut table = TextTable::new(&["KEY", "REASON"]);
        assert_eq!(table.lines(&[]), [""; 0]);
        let lines = table.lines(&[row(["user:é", "a"]), row(["ip:1.2.3.4", ""])]);
        assert_eq!(lines, ["KEY         REASON", "user:é      a", "ip:1.2.3.4"]);
        assert_eq!(table.lines(&[row(["", "b"])]), ["-           b"], "the next page has no head");
    }

    #[test]
    fn control_characters_of_a_value_are_escaped() {
        let lines = TextTable::new(&["KEY", "REASON"]).lines(&[row(["a", "\x1b[2J\n\u{202e}x"])]);
        assert_eq!(lines[1], "a    \\u{1b}[2J\\n\\u{202e}x");
    }
}
