//! The commands other than decisions, parsed.

use std::fmt;

use thiserror::Error;

use super::frame::{Args, parse_integer};
use super::reply::RespVersion;

/// A command whose reply needs no counter, or that removes counters.
#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Ping(Option<&'a [u8]>),
    Echo(&'a [u8]),
    Hello { version: Option<RespVersion>, auth: Option<AuthToken<'a>>, name: Option<&'a [u8]> },
    Auth(AuthToken<'a>),
    Select(u8),
    Client(ClientCommand<'a>),
    Table(TableCommand),
    Info,
    Del(Vec<&'a [u8]>),
    Quit,
    Reset,
}

/// A user name, which is ignored, and a token.
#[derive(PartialEq, Eq)]
pub struct AuthToken<'a> {
    pub token: &'a [u8],
}

impl fmt::Debug for AuthToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthToken(…)")
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum ClientCommand<'a> {
    Id,
    GetName,
    SetName(&'a [u8]),
    /// Accepted, without effect.
    Ignored,
}

#[derive(Debug, PartialEq, Eq)]
pub enum TableCommand {
    All,
    Count,
    Docs,
    /// The named ones, as indices into [`TABLE`].
    Named(Vec<Option<usize>>),
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CommandError {
    #[error("ERR unknown command '{0}'")]
    Unknown(String),
    #[error("ERR unknown subcommand '{sub}' of '{command}'")]
    UnknownSub { command: &'static str, sub: String },
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(&'static str),
    #[error("NOPROTO unsupported protocol version")]
    Version,
    #[error("ERR syntax error in {0}")]
    Syntax(&'static str),
    #[error("ERR DB index is out of range")]
    Database,
    #[error("ERR a name has at most {MAX_NAME_BYTES} bytes, and no spaces")]
    Name,
}

const MAX_NAME_BYTES: usize = 256;
/// Numbered sets of keys, as in Redis.
const DATABASES: i64 = 16;

/// A row of `COMMAND`: name, number of arguments with the name (negative: at least), first and last key.
pub struct TableRow {
    pub name: &'static str,
    pub arity: i64,
    pub flags: &'static [&'static str],
    pub first_key: i64,
    pub last_key: i64,
}

const fn row(name: &'static str, arity: i64, flags: &'static [&'static str], keys: (i64, i64)) -> TableRow {
    TableRow { name, arity, flags, first_key: keys.0, last_key: keys.1 }
}

pub const TABLE: [TableRow; 14] = [
    row("auth", -2, &["noscript", "loading", "stale", "fast", "no_auth"], (0, 0)),
    row("cl.throttle", -5, &["write", "fast"], (1, 1)),
    row("client", -2, &["noscript"], (0, 0)),
    row("command", -1, &["loading", "stale"], (0, 0)),
    row("del", -2, &["write"], (1, -1)),
    row("echo", 2, &["fast"], (0, 0)),
    row("hello", -1, &["noscript", "loading", "stale", "fast", "no_auth"], (0, 0)),
    row("info", -1, &["loading", "stale"], (0, 0)),
    row("ping", -1, &["fast"], (0, 0)),
    row("quit", -1, &["noscript", "loading", "stale", "fast", "no_auth"], (0, 0)),
    row("reset", 1, &["noscript", "loading", "stale", "fast", "no_auth"], (0, 0)),
    row("select", 2, &["loading", "stale", "fast"], (0, 0)),
    row("tollgate.check", -2, &["write", "fast"], (0, 0)),
    row("unlink", -2, &["write"], (1, -1)),
];

impl<'a> Command<'a> {
    /// Parses a command that is not a decision; `args` has at least its name.
    pub fn parse(args: &Args<'a, '_>) -> Result<Command<'a>, CommandError> {
        let name = args.get(0).unwrap_or_default();
        let mut lower = [0; 16];
        let known = lower.get_mut(..name.len()).map(|lower| {
            lower.copy_from_slice(name);
            lower.make_ascii_lowercase();
            &*lower
        });
        match known {
            Some(b"ping") => at_most(args, 2, "ping").map(|()| Command::Ping(args.get(1))),
            Some(b"echo") => only(args, "echo").map(Command::Echo),
            Some(b"hello") => hello(args),
            Some(b"auth") => match args.len() {
                2 | 3 => Ok(Command::Auth(AuthToken { token: args.get(args.len() - 1).unwrap_or_default() })),
                _ => Err(CommandError::Arity("auth")),
            },
            Some(b"select") => select(args),
            Some(b"client") => client(args).map(Command::Client),
            Some(b"command") => table(args).map(Command::Table),
            Some(b"info") => Ok(Command::Info),
            Some(b"del") => keys(args, "del").map(Command::Del),
            Some(b"unlink") => keys(args, "unlink").map(Command::Del),
            Some(b"quit") => Ok(Command::Quit),
            Some(b"reset") => at_most(args, 1, "reset").map(|()| Command::Reset),
            _ => Err(CommandError::Unknown(shown(name))),
        }
    }
}

fn keys<'a>(args: &Args<'a, '_>, command: &'static str) -> Result<Vec<&'a [u8]>, CommandError> {
    if args.len() == 1 {
        return Err(CommandError::Arity(command));
    }
    Ok(args.iter().skip(1).collect())
}

fn hello<'a>(args: &Args<'a, '_>) -> Result<Command<'a>, CommandError> {
    let version = match args.get(1) {
        None => None,
        Some(b"2") => Some(RespVersion::V2),
        Some(b"3") => Some(RespVersion::V3),
        Some(_) => return Err(CommandError::Version),
    };
    let mut auth = None;
    let mut name = None;
    let mut n = 2;
    while let Some(option) = args.get(n) {
        if option.eq_ignore_ascii_case(b"auth") {
            let token = args.get(n + 2).ok_or(CommandError::Syntax("HELLO"))?;
            auth = Some(AuthToken { token });
            n += 3;
        } else if option.eq_ignore_ascii_case(b"setname") {
            name = Some(valid_name(args.get(n + 1).ok_or(CommandError::Syntax("HELLO"))?)?);
            n += 2;
        } else {
            return Err(CommandError::Syntax("HELLO"));
        }
    }
    Ok(Command::Hello { version, auth, name })
}

fn select<'a>(args: &Args<'a, '_>) -> Result<Command<'a>, CommandError> {
    let number = parse_integer(only(args, "select")?).filter(|number| (0..DATABASES).contains(number));
    number.map(|number| Command::Select(number as u8)).ok_or(CommandError::Database)
}

fn client<'a>(args: &Args<'a, '_>) -> Result<ClientCommand<'a>, CommandError> {
    let sub = args.get(1).ok_or(CommandError::Arity("client"))?;
    match sub.to_ascii_lowercase().as_slice() {
        b"id" => Ok(ClientCommand::Id),
        b"getname" => Ok(ClientCommand::GetName),
        b"setname" => {
            let name = args.get(2).ok_or(CommandError::Arity("client|setname"))?;
            valid_name(name).map(ClientCommand::SetName)
        }
        b"setinfo" | b"no-evict" | b"no-touch" => Ok(ClientCommand::Ignored),
        _ => Err(CommandError::UnknownSub { command: "client", sub: shown(sub) }),
    }
}

fn table(args: &Args<'_, '_>) -> Result<TableCommand, CommandError> {
    let Some(sub) = args.get(1) else { return Ok(TableCommand::All) };
    match sub.to_ascii_lowercase().as_slice() {
        b"count" => Ok(TableCommand::Count),
        b"docs" => Ok(TableCommand::Docs),
        b"info" if args.len() == 2 => Ok(TableCommand::All),
        b"info" => {
            let index =
                |name: &[u8]| TABLE.iter().position(|row| name.eq_ignore_ascii_case(row.name.as_bytes()));
            Ok(TableCommand::Named(args.iter().skip(2).map(index).collect()))
        }
        _ => Err(CommandError::UnknownSub { command: "command", sub: shown(sub) }),
    }
}

fn valid_name(name: &[u8]) -> Result<&[u8], CommandError> {
    let fits = name.len() <= MAX_NAME_BYTES && name.iter().all(u8::is_ascii_graphic);
    if fits { Ok(name) } else { Err(CommandError::Name) }
}

fn only<'a>(args: &Args<'a, '_>, command: &'static str) -> Result<&'a [u8], CommandError> {
    at_most(args, 2, command)?;
    args.get(1).ok_or(CommandError::Arity(command))
}

fn at_most(args: &Args<'_, '_>, most: usize, command: &'static str) -> Result<(), CommandError> {
    if args.len() <= most { Ok(()) } else { Err(CommandError::Arity(command)) }
}

/// The beginning of a name, for an error.
fn shown(name: &[u8]) -> String {
    name[..name.len().min(64)].escape_ascii().to_string()
}
