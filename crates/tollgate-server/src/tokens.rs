//! Bearer tokens of the admin API and the decision API, with roles and names, from a file or the environment.
//!
//! One token per line, `ROLE TOKEN [NAME]`, where the token is plain text or `sha256:` and 64 hex digits. Only digests
//! are stored, and compared in constant time. The name appears in the log of changes. A changed file is read again.

use arc_swap::ArcSwap;
use ring::digest::{SHA256, digest};

/// The role of a token. In the admin API each role includes the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Use the decision API, which charges counters. Gives no access to the admin API, and no other role includes it.
    Check,
    /// Read everything.
    Read,
    /// Ban, unban and reset.
    Operate,
    /// Change rules.
    Admin,
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Role::Check => "check",
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }
}

impl Role {
    pub const fn includes(self, needed: Role) -> bool {
        match needed {
            Role::Check => matches!(self, Role::Check),
            _ => self as u8 >= needed as u8,
        }
    }
}

/// The tokens in force, which a reload replaces.
#[derive(Default)]
pub struct Tokens(ArcSwap<Vec<Token>>);

#[derive(Clone, PartialEq, Eq)]
struct Token {
    role: Role,
    digest: [u8; 32],
    name: Box<str>,
}

/// The environment variable with the lines of a token file.
pub const TOKENS_ENV: &str = "TOLLGATE_TOKENS";
/// Shorter tokens could be guessed.
const MIN_TOKEN_BYTES: usize = 16;

const MAX_NAME_CHARS: usize = 64;

impl Tokens {
    /// Problems name the line, never the token.
    pub fn parse(text: &str) -> Result<Tokens, String> {
        let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let tokens = lines.map(|(n, line)| Token::parse(n, line).map_err(|why| format!("line {n}: {why}")));
        let tokens: Vec<_> = tokens.collect::<Result<_, String>>()?;
        if tokens.is_empty() {
            Err("there is no token in it".to_owned())
        } else {
            Ok(Tokens(ArcSwap::from_pointee(tokens)))
        }
    }

    pub fn and(self, more: Tokens) -> Tokens {
        Tokens(ArcSwap::from_pointee([self.0.load().as_slice(), more.0.load().as_slice()].concat()))
    }

    /// Puts other tokens into force; whether they differ from the ones before.
    pub fn replace(&self, new: &Tokens) -> bool {
        let new = new.0.load_full();
        let differs = *self.0.load_full() != *new;
        self.0.store(new);
        differs
    }

    /// The role and the name of a token. A token may have several roles: one that includes `needed` is preferred.
    pub fn find(&self, token: &str, needed: Role) -> Option<(Role, String)> {
        let given = sha256(token);
        let tokens = self.0.load();
        // All digests are compared, so that the time does not depend on which one matches.
        let known = tokens.iter().filter(|known| constant_time_eq(&known.digest, &given));
        let found = known.max_by_key(|known| (known.role.includes(needed), known.role));
        found.map(|known| (known.role, known.name.to_string()))
    }

    /// Whether the decision API requires a token.
    pub fn has_check(&self) -> bool {
        self.0.load().iter().any(|token| token.role == Role::Check)
    }

    /// Whether any token gives access to the admin API.
    pub fn has_admin(&self) -> bool {
        self.0.load().iter().any(|token| token.role != Role::Check)
    }
}

impl Token {
    fn parse(line: usize, text: &str) -> Result<Token, &'static str> {
        let mut words = text.split_whitespace();
        let role = match words.next() {
            Some("check") => Role::Check,
            Some("read") => Role::Read,
            Some("operate") => Role::Operate,
            Some("admin") => Role::Admin,
            _ => {
                return Err(
                    "a line is a role (check, read, operate or admin), a token and, optionally, a name",
                );
            }
        };
        let digest = token_digest(words.next().unwrap_or_default())?;
        let name = match words.next() {
            Some(name) if !is_name(name) => return Err("the name is not 1 to 64 of A-Z a-z 0-9 . _ @ -"),
            Some(name) => name.into(),
            None => format!("{}-{line}", role.name()).into(),
        };
        match words.next() {
            Some(_) => Err("there is more on the line than a role, a token and a name"),
            None => Ok(Token { role, digest, name }),
        }
    }
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    text.len() <= MAX_NAME_CHARS && text.bytes().all(plain)
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
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or("sha256: needs 64 hex digits")
}

fn sha256(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

fn constant_time_eq(a: &[u8; 32], b: &[u8; 32]) -> bool {
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
        assert_eq!(tokens.find("only-for-looking-at", Role::Read), Some((Role::Read, "read-2".to_owned())));
        assert_eq!(tokens.find("something else entirely", Role::Read), None);
        assert_eq!(tokens.find("", Role::Read), None);
        let hex: String = sha256("correct horse battery").iter().map(|byte| format!("{byte:02x}")).collect();
        let tokens =
            tokens.and(Tokens::parse(&format!("admin sha256:{hex}  ann@example.com ")).expect("valid"));
        assert_eq!(
            tokens.find("correct horse battery", Role::Read),
            Some((Role::Admin, "ann@example.com".to_owned()))
        );
        assert_eq!(tokens.find("only-for-looking-at", Role::Read), Some((Role::Read, "read-2".to_owned())));
    }

    #[test]
    fn the_role_check_is_separate_and_a_token_may_have_both_roles() {
        let text = "check app-0123456789abc\nadmin both-0123456789abc ann\ncheck both-0123456789abc api";
        let tokens = Tokens::parse(text).expect("valid");
        assert!(tokens.has_check() && tokens.has_admin());
        assert_eq!(tokens.find("app-0123456789abc", Role::Read), Some((Role::Check, "check-1".to_owned())));
        assert_eq!(tokens.find("both-0123456789abc", Role::Check), Some((Role::Check, "api".to_owned())));
        assert_eq!(tokens.find("both-0123456789abc", Role::Operate), Some((Role::Admin, "ann".to_owned())));
        for role in [Role::Read, Role::Operate, Role::Admin] {
            assert!(!Role::Check.includes(role) && !role.includes(Role::Check));
        }
        assert!(Role::Admin.includes(Role::Read) && !Role::Read.includes(Role::Operate));
    }

    #[test]
    fn a_bad_file_is_rejected_by_line_and_never_quoted() {
        for text in [
            "",
            "read",
            "king 0123456789abcdef",
            "read short",
            "read sha256:abcd",
            "read sha256:zz",
            "read 0123456789abcdef a/b",
            "read 0123456789abcdef ann king",
        ] {
            let message = Tokens::parse(text).err().expect(text);
            let quoted =
                ["short", "king", "0123456789abcdef", "a/b"].iter().any(|word| message.contains(word));
            assert!(!quoted, "{message}");
        }
    }
}
