//! `tollgate completions SHELL`: the completion script of a shell, from the definitions of the commands.

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::shells::{Bash, Fish, Zsh};

use crate::cli::{Cli, Exit, out};

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub fn run(args: &CompletionsArgs) -> Exit {
    let mut command = Cli::command();
    let mut script = Vec::new();
    let name = "tollgate";
    match args.shell {
        Shell::Bash => clap_complete::generate(Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(Fish, &mut command, name, &mut script),
    }
    out::written(out::file(&script))
}
