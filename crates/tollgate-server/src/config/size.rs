//! Memory sizes with units: `512MiB`, `1GiB`, `64MB`.

use tollgate::internal::EngineSetup;

pub(super) fn parse(text: &str) -> Result<usize, String> {
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

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("16TiB"), Ok(1 << 44));
        assert_eq!(parse("64 MB"), Ok(64_000_000));
        assert_eq!(parse("2097152"), Ok(2 << 20));
        for bad in ["", "lots", "1", "-1GiB", "1EB", "99999999GiB"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
