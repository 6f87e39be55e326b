//! Who may use the admin API: bearer tokens with roles, read from a file.
//!
//! One token a line, `ROLE TOKEN`, where the token is written plainly or as `sha256:` and 64 hex
//! digits. Only digests are kept, and compared in constant time.

use ring::digest::{SHA256, digest};

/// What a token may do; each role includes the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Look.
    Read,
    /// Ban, unban and reset.
    Operate,
    /// Change rules.
    Admin,
}

#[derive(Default)]
pub struct Tokens(Vec<(Role, [u8; 32])>);

/// Shorter tokens could be guessed.
const MIN_TOKEN_BYTES: usize = 16;

impl Tokens {
    /// Problems name the line, never the token.
    pub fn parse(text: &str) -> Result<Tokens, String> {
        let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
        let tokens = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(n, line)| {
            let (role, token) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let role = match role {
                "read" => Role::Read,
                "operate" => Role::Operate,
                "admin" => Role::Admin,
                _ => return Err(format!("line {n}: a line is a role (read, operate or admin) and a token")),
            };
            Ok((role, token_digest(token.trim()).map_err(|why| format!("line {n}: {why}"))?))
        });
        let tokens: Vec<_> = tokens.collect::<Result<_, String>>()?;
        if tokens.is_empty() { Err("there is no token in it".to_owned()) } else { Ok(Tokens(tokens)) }
    }

    /// The role of a token.
    pub fn role(&self, token: &str) -> Option<Role> {
        let given = sha256(token);
        // All are compared, so that the time does not tell which one is near.
        self.0.iter().filter(|(_, known)| same(known, &given)).map(|(role, _)| *role).max()
    }
}

fn token_digest(token: &str) -> Result<[u8; 32], &'static str> {
    let Some(hex) = token.strip_prefix("sha256:") else {
        return if token.len() < MIN_TOKEN_BYTES {
            Err("the token has less than 16 characters")
        } else {
            Ok(sha256(token))
        };
    };
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let bytes: Option<Vec<u8>> =
        hex.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or("sha256: wants 64 hex digits")
}

fn sha256(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_roles_and_may_be_written_as_digests() {
        // printf 'correct horse battery' | sha256sum
        let text = "# who may do what\nread only-for-looking-at\n\nadmin sha256:\
                    2ab0eab48d4ab2afcaf2ea5ecba6b2cf6d0ff9b3ea0a6bb5b7a97e0dfdd7ffcf";
        let tokens = Tokens::parse(text).expect("valid");
        assert_eq!(tokens.role("only-for-looking-at"), Some(Role::Read));
        assert_eq!(tokens.role("something else entirely"), None);
        assert_eq!(tokens.role(""), None);
        let hex: String = sha256("correct horse battery").iter().map(|byte| format!("{byte:02x}")).collect();
        let tokens = Tokens::parse(&format!("admin sha256:{hex}")).expect("valid");
        assert_eq!(tokens.role("correct horse battery"), Some(Role::Admin));
    }

    #[test]
    fn a_bad_file_is_rejected_by_line_and_never_quoted() {
        for text in ["", "read", "king 0123456789abcdef", "read short", "read sha256:abcd", "read sha256:zz"]
        {
            let message = Tokens::parse(text).err().expect(text);
            assert!(!message.contains("short") && !message.contains("king"), "{message}");
        }
    }
}
