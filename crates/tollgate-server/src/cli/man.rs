//! `tollgate man`: manual pages from the definitions of the commands.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::{Cli, Exit, out};

#[derive(Args)]
pub struct ManArgs {
    /// Write a page for each command into this folder, created if missing; without it, print the page of tollgate itself
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub fn run(args: &ManArgs) -> Exit {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    out::written(match &args.folder {
        None => print(&command),
        Some(folder) => create_folder(folder).and_then(|()| write_pages(&command, folder)),
    })
}

fn print(command: &Command) -> io::Result<()> {
    let mut text = Vec::new();
    page(command).render(&mut text)?;
    out::file(&text)
}

fn create_folder(folder: &Path) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(named)
}

/// `tollgate.1`, `tollgate-rules-apply.1` and so on.
fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, folder)?;
    }
    let page = page(command);
    let path = folder.join(page.get_filename());
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    page.generate_to(folder).map(drop).map_err(named)
}

fn page(command: &Command) -> Man {
    Man::new(command.clone()).source(concat!("tollgate ", env!("CARGO_PKG_VERSION"))).manual("Tollgate")
}
