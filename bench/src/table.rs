//! Tables as text: columns as wide as they need to be.

pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<S: Into<String>>(title: impl Into<String>, heads: impl IntoIterator<Item = S>) -> Table {
        Table { title: title.into(), rows: vec![heads.into_iter().map(Into::into).collect()] }
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Prints the first column to the left and the others to the right.
    pub fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |n: usize| {
            self.rows.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        println!("\n{}", self.title);
        for (n, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(
                    |(n, (cell, width))| {
                        if n == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                    },
                )
                .collect();
            println!("{}", cells.join("  ").trim_end());
            if n == 0 {
                println!("{}", "─".repeat(widths.iter().sum::<usize>() + 2 * (columns - 1)));
            }
        }
    }
}
