//! Inputs on the disk: `fuzz/corpus/TARGET` has those that reach different code, `fuzz/regressions/TARGET` those that
//! have failed once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The inputs that are kept of a target; more make every test run longer.
pub const MAX_KEPT: usize = 24;
/// Longer inputs are not kept.
pub const MAX_KEPT_BYTES: usize = 1 << 10;

/// Where inputs are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Corpus,
    Regressions,
}

pub fn folder(kind: Kind, target: &str) -> PathBuf {
    let name = match kind {
        Kind::Corpus => "corpus",
        Kind::Regressions => "regressions",
    };
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join(target)
}

/// The inputs of a target in the order of their names; none if there is no folder.
pub fn load(kind: Kind, target: &str) -> io::Result<Vec<Vec<u8>>> {
    let folder = folder(kind, target);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    files.into_iter().map(fs::read).collect()
}

/// Keeps an input under a name that follows from its bytes.
pub fn save(kind: Kind, target: &str, input: &[u8]) -> io::Result<PathBuf> {
    let folder = folder(kind, target);
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("{:016x}", fnv(input)));
    fs::write(&file, input)?;
    Ok(file)
}

/// Replaces the corpus of a target.
pub fn replace(target: &str, inputs: &[Vec<u8>]) -> io::Result<()> {
    let folder = folder(Kind::Corpus, target);
    if folder.is_dir() {
        fs::remove_dir_all(&folder)?;
    }
    inputs.iter().try_for_each(|input| save(Kind::Corpus, target, input).map(drop))
}

/// The same name for the same bytes on every machine.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
