//! Files of secrets that are read at the start only. A change of their contents is logged, because nothing else shows it.

use std::fs;
use std::path::PathBuf;

use ring::digest::{SHA256, digest};

use super::FileStamp;
use crate::config::Config;

#[derive(Default)]
pub struct SecretFiles(Vec<SecretFile>);

struct SecretFile {
    /// The setting that names the file.
    setting: &'static str,
    path: PathBuf,
    in_force: SecretDigest,
    /// Of the last contents that were compared.
    compared: SecretDigest,
    stamp: Option<FileStamp>,
    is_compared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// White space at both ends is no part of a secret.
    fn of(contents: &[u8]) -> SecretDigest {
        let digest = digest(&SHA256, contents.trim_ascii());
        SecretDigest(digest.as_ref().try_into().expect("a SHA-256 has 32 bytes"))
    }
}

impl SecretFiles {
    /// The files of a configuration, before a start reads them.
    pub fn of(config: &Config) -> SecretFiles {
        let names = config.store.as_ref().and_then(|store| store.keys.secret_file.clone());
        let files = [("receipt_key_file", config.receipt_key_file.clone()), ("store_secret_file", names)];
        let files = files.into_iter().filter_map(|(setting, path)| SecretFile::open(setting, path?));
        SecretFiles(files.collect())
    }

    /// The settings whose files have other contents since the last call than those in force.
    pub fn changed(&mut self) -> impl Iterator<Item = &'static str> {
        self.0.iter_mut().filter_map(SecretFile::poll)
    }
}

impl SecretFile {
    fn open(setting: &'static str, path: PathBuf) -> Option<SecretFile> {
        let stamp = FileStamp::of(&path);
        let in_force = SecretDigest::of(&fs::read(&path).ok()?);
        Some(SecretFile { setting, path, in_force, compared: in_force, stamp, is_compared: true })
    }

    fn poll(&mut self) -> Option<&'static str> {
        let stamp = FileStamp::of(&self.path)?; // temporarily missing
        let is_settled = self.stamp.as_ref().is_some_and(|seen| stamp.is_unchanged_since(seen));
        self.stamp = Some(stamp);
        if !is_settled {
            self.is_compared = false;
            return None;
        }
        if self.is_compared {
            return None;
        }
        let found = SecretDigest::of(&fs::read(&self.path).ok()?);
        self.is_compared = true;
        let is_new = found != self.compared && found != self.in_force;
        self.compared = found;
        is_new.then_some(self.setting)
    }
}
