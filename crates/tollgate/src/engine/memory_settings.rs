//! The memory of counters in the configuration file: its size, and what happens when it is full.

use crate::document::MapReader;
use crate::engine::EngineSetup;
use crate::store::memory::MemoryFull;

/// What the file says about memory; `None` where it says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemorySettings {
    pub bytes: Option<usize>,
    pub full: Option<MemoryFull>,
}

const MEMORY_FULL: [(&str, MemoryFull); 3] =
    [("aggregate", MemoryFull::Aggregate), ("open", MemoryFull::Open), ("closed", MemoryFull::Closed)];

impl MemorySettings {
    pub fn read(map: &mut MapReader<'_, '_>) -> MemorySettings {
        let full = map.optional_choice("memory_full", &MEMORY_FULL);
        let Some(node) = map.optional("memory") else { return MemorySettings { bytes: None, full } };
        let bytes = node.as_str().ok_or("expected a size such as 1GiB".to_owned()).and_then(parse_size);
        MemorySettings { bytes: bytes.map_err(|message| map.reject("memory", node, message)).ok(), full }
    }
}

/// A size with its unit: `512MiB`, `1GiB`, `64MB`.
fn parse_size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let bad = |why: &str| format!("{why} in '{text}': write a size such as 512MiB or 1GiB");
    let number: u64 = text[..digits].parse().map_err(|_| bad("no number"))?;
    let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(bad("unknown unit")),
    };
    let bytes = number.checked_mul(unit).and_then(|bytes| usize::try_from(bytes).ok());
    match bytes {
        Some(bytes) if (EngineSetup::MIN_MEMORY_BYTES..=1 << 44).contains(&bytes) => Ok(bytes),
        _ => Err(format!("'{text}' is out of range: 1MiB to 16TiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{self, Problems};

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("16TiB"), Ok(1 << 44));
        assert_eq!(parse_size("64 MB"), Ok(64_000_000));
        assert_eq!(parse_size("2097152"), Ok(2 << 20));
        for bad in ["", "lots", "1", "-1GiB", "1EB", "99999999GiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_the_file_says_about_memory_is_read() {
        let read = |text: &str| {
            let root = document::read(text).expect("valid YAML");
            let mut problems = Problems::new();
            let settings =
                MemorySettings::read(&mut MapReader::new(&root, "", &mut problems).expect("a map"));
            problems.or(settings).map_err(|problems| problems.to_string())
        };
        assert_eq!(read("{}"), Ok(MemorySettings::default()));
        let full = Some(MemoryFull::Closed);
        assert_eq!(
            read("{memory_full: closed, memory: 2MiB}"),
            Ok(MemorySettings { bytes: Some(2 << 20), full })
        );
        assert!(read("memory_full: maybe").is_err_and(|error| error.contains("memory_full")));
        assert!(read("memory: 1").is_err_and(|error| error.contains("memory")));
    }
}
