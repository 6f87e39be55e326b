//! A file of rules or bans, read and checked locally before it is uploaded.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use bytes::Bytes;
use tollgate::internal::document::{Problem, Problems, json::join_surrogates};
use tollgate::internal::rule::Warnings;
use tollgate_stores::rules::for_each_rule;

use crate::cli::progress::Progress;
use crate::config;

/// How many bytes of comments at the start of a file are skipped.
const MAX_LOOK_BYTES: u64 = 1 << 20;

/// The server's limit.
pub const MAX_BYTES: u64 = 512 << 20;

/// A text that may be uploaded.
pub struct InputFile {
    pub name: String,
    pub bytes: Bytes,
    pub content_type: &'static str,
}

/// Reads a file, or stdin for `-`. The text is in memory once; exactly what was read is sent.
pub fn read(path: &Path) -> Result<InputFile, Problems> {
    let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
    let _progress = Progress::start(format!("reading {name}"), None);
    let problem = |message: String| Problems::from(Problem::new(None, "", message)).in_file(&name);
    let opened: io::Result<Box<dyn Read>> = if name == "stdin" {
        Ok(Box::new(io::stdin()))
    } else {
        File::open(path).map(|file| Box::new(file) as _)
    };
    let mut bytes = Vec::new();
    let read = opened.and_then(|source| source.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| problem(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(problem(format!("is larger than {MAX_BYTES} bytes")));
    }
    let mut text = config::utf8(bytes, &name)?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    if is_json && let Cow::Owned(joined) = join_surrogates(&text) {
        text = joined;
    }
    let content_type = if is_json { "application/json" } else { "application/yaml" };
    Ok(InputFile { name, bytes: text.into(), content_type })
}

/// Whether a file starts like a list, not like a configuration. `false` if it cannot be read.
pub fn is_list(file: &Path) -> bool {
    let Ok(file) = File::open(file) else { return false };
    let lines = BufReader::new(file.take(MAX_LOOK_BYTES)).lines().map_while(Result::ok);
    let mut content = lines.filter(|line| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#') && !line.starts_with("---")
    });
    content.next().is_some_and(|line| line.trim_start().starts_with(['-', '[']))
}

impl InputFile {
    /// Checks that the text is a list of rules; returns their number and the warnings.
    pub fn check_rules(&self) -> Result<(usize, Warnings), Problems> {
        let _progress = Progress::start(format!("checking {}", self.name), None);
        let text = str::from_utf8(&self.bytes).unwrap_or_default();
        let start = || (0, Warnings::default());
        let read = for_each_rule(text, start, |(count, warnings), read| {
            *count += 1;
            warnings.check(&read.rule);
        });
        read.map_err(|problems| problems.in_file(&self.name))
    }
}
