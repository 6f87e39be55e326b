//! The token of a call: from the environment or a file that it names, never from an argument, which all users of the
//! machine could read.

use std::env::{self, VarError};
use std::fs;
use std::path::Path;

use hyper::header::HeaderValue;

use crate::client::ClientError;

const TOKEN: &str = "TOLLGATE_TOKEN";
const TOKEN_FILE: &str = "TOLLGATE_TOKEN_FILE";

/// The value of the `Authorization` header, if there is a token. A token in the environment precedes a file.
pub fn authorization() -> Result<Option<HeaderValue>, ClientError> {
    match env::var(TOKEN) {
        Ok(token) => return bearer(&token, TOKEN).map(Some),
        Err(VarError::NotUnicode(_)) => return Err(unusable(TOKEN, "it is not text")),
        Err(VarError::NotPresent) => {}
    }
    let Some(path) = env::var_os(TOKEN_FILE) else { return Ok(None) };
    file_authorization(TOKEN_FILE, path.as_ref()).map(Some)
}

/// The value of the `Authorization` header with the token of a file that `setting` names.
pub fn file_authorization(setting: &str, path: &Path) -> Result<HeaderValue, ClientError> {
    let place = format!("{setting}: {}", path.display());
    let text = fs::read_to_string(path).map_err(|error| unusable(&place, &error.to_string()))?;
    bearer(text.trim(), &place)
}

/// Errors never contain the token, even if it is invalid.
fn bearer(token: &str, place: &str) -> Result<HeaderValue, ClientError> {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(unusable(place, "expected one token, of printable characters without spaces"));
    }
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value.map_err(|_| unusable(place, "it cannot be sent"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn unusable(place: &str, why: &str) -> ClientError {
    ClientError::Token { place: place.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_cannot_be_sent_is_rejected_and_not_shown() {
        for token in ["", "sec ret", "sec\nret", "sécret"] {
            let error = bearer(token, "TOLLGATE_TOKEN").expect_err("no token").to_string();
            assert!(error.starts_with("TOLLGATE_TOKEN: ") && !error.contains("ret"), "{error}");
        }
        let value = bearer("s3cret", "TOLLGATE_TOKEN").expect("a token");
        assert_eq!((value.as_bytes(), value.is_sensitive()), (&b"Bearer s3cret"[..], true));
    }
}
