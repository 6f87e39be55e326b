//! A file of rules or bans, read and checked locally before it is uploaded.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use tollgate::internal::document::{Problem, Problems, json::join_surrogates};
use tollgate::internal::rule::Warnings;
use tollgate_stores::rules::for_each_rule;

use crate::cli::progress::Progress;
use crate::config::{self, Config, is_stdin, shown_file};

/// The server's limit.
pub const MAX_BYTES: u64 = 512 << 20;

/// A text that may be uploaded. A clone shares the bytes.
#[derive(Clone)]
pub struct InputFile {
    pub name: String,
    pub bytes: Bytes,
    pub content_type: &'static str,
}

/// Reads a file, or stdin for `-`. The text is in memory once; exactly what was read is sent.
pub fn read(path: &Path) -> Result<InputFile, Problems> {
    let name = shown_file(path);
    let _progress = Progress::start(format!("reading {name}"), None);
    let problem = |message: String| Problems::from(Problem::new(None, "", message)).in_file(&name);
    let opened: io::Result<Box<dyn Read>> = if is_stdin(path) {
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

impl InputFile {
    pub fn text(&self) -> &str {
        str::from_utf8(&self.bytes).unwrap_or_default()
    }

    /// Whether it starts like a list, not like a configuration.
    pub fn is_list(&self) -> bool {
        is_list(self.text())
    }

    /// A configuration, which was read from `path`.
    pub fn config(&self, path: &Path) -> Result<Config, Problems> {
        let folder = path.parent().unwrap_or(Path::new(""));
        Config::parse(self.text(), folder).map_err(|problems| problems.in_file(&self.name))
    }

    /// Checks that the text is a list of rules; returns their number and the warnings.
    pub fn check_rules(&self) -> Result<(usize, Warnings), Problems> {
        let _progress = Progress::start(format!("checking {}", self.name), None);
        let start = || (0, Warnings::default());
        let read = for_each_rule(self.text(), start, |(count, warnings), read| {
            *count += 1;
            warnings.check(&read.rule, &[]); // the sources of identities are in the configuration of the nodes
        });
        read.map_err(|problems| problems.in_file(&self.name))
    }
}
/// Whether a text starts like a list, not like a configuration.
pub fn is_list(text: &str) -> bool {
    let mut content = text.trim_start_matches('\u{feff}').lines().filter(|line| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#') && !line.starts_with("---")
    });
    content.next().is_some_and(|line| line.trim_start().starts_with(['-', '[']))
}
