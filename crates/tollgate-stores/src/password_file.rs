//! Passwords in files of their own, as secrets are mounted.

use std::path::Path;

/// The password, without a trailing newline.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("password_file {}: {error}", path.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
