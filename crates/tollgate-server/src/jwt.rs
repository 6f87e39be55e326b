//! Verifies JSON Web Tokens (RFC 7519) against a set of keys (RFC 7517).
//!
//! A token is accepted only if a key of the set, of the kind its algorithm needs, verifies it; the algorithm's name
//! alone never determines how a key is used (RFC 8725, 3.1). Errors contain neither tokens nor key material. Issuer and
//! audience (`iss`, `aud`) are not checked here. Must not know about requests or rules.
//!
//! Not `jsonwebtoken` (11.1): it runs on aws-lc-rs or RustCrypto, not on *ring*, so the verification would be ours in any
//! case; it accepts secrets of any length, reads the system's clock and rounds fractions of seconds.

use std::fmt;

use serde_json::{Map, Value};
use thiserror::Error;

mod claims;
mod jwk;

pub use claims::Claims;
use jwk::{Jwk, JwtAlgorithm, decode_base64url};

/// Longer tokens are rejected.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Maximum number of keys in a set; without a `kid` every suitable one is tried.
pub const MAX_KEYS: usize = 64;

/// Why a key set or a token is rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JwtError {
    #[error("the key set is not valid JSON with a list named 'keys'")]
    NotAKeySet,
    #[error("the key set has more than {MAX_KEYS} keys")]
    TooManyKeys,
    #[error("keys[{index}] of the key set is unusable: {why}")]
    BadKey { index: usize, why: &'static str },
    #[error("the key set has no key that can verify signatures")]
    NoKeys,
    #[error("the token is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    #[error("the token's algorithm is not supported")]
    UnsupportedAlgorithm,
    #[error("the token requires extensions ('crit') that are not supported")]
    CriticalHeader,
    #[error("no key of the set matches the token's key id and algorithm")]
    NoFittingKey,
    #[error("the token's signature is not valid")]
    BadSignature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
}

/// The keys that tokens may be signed with. Never empty.
pub struct KeySet {
    keys: Vec<Jwk>,
}

impl KeySet {
    /// Parses a JWK set. Keys of unknown kinds or for other uses are skipped (RFC 7517, 5); a key of a known kind that
    /// is invalid or too weak rejects the set.
    pub fn from_json(text: &str) -> Result<Self, JwtError> {
        let set: Value = serde_json::from_str(text).map_err(|_| JwtError::NotAKeySet)?;
        let list = set.get("keys").and_then(Value::as_array).ok_or(JwtError::NotAKeySet)?;
        if list.len() > MAX_KEYS {
            return Err(JwtError::TooManyKeys);
        }
        let mut keys = Vec::new();
        for (index, jwk) in list.iter().enumerate() {
            keys.extend(Jwk::from_jwk(jwk).map_err(|why| JwtError::BadKey { index, why })?);
        }
        if keys.is_empty() { Err(JwtError::NoKeys) } else { Ok(Self { keys }) }
    }

    /// The claims of `token`, if its signature and its times are valid at `now_unix_s`.
    pub fn verify(&self, token: &str, now_unix_s: u64) -> Result<Claims, JwtError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(JwtError::TooLong);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(THREE_PARTS)?;
        let (header, payload) = message.split_once('.').ok_or(THREE_PARTS)?;
        if payload.contains('.') {
            return Err(THREE_PARTS);
        }
        let header = json_object(header)?;
        if header.contains_key("crit") {
            return Err(JwtError::CriticalHeader);
        }
        let name = header.get("alg").and_then(Value::as_str).ok_or(JwtError::UnsupportedAlgorithm)?;
        let algorithm = JwtAlgorithm::from_name(name).ok_or(JwtError::UnsupportedAlgorithm)?;
        let id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.as_str()),
            Some(_) => return Err(JwtError::Malformed("its key id is not text")),
        };
        let signature =
            decode_base64url(signature).ok_or(JwtError::Malformed("its signature is not base64url"))?;
        self.verify_signature(id, algorithm, message.as_bytes(), &signature)?;
        let claims = Claims::new(json_object(payload)?);
        claims.check_times(now_unix_s)?;
        Ok(claims)
    }

    fn verify_signature(
        &self,
        id: Option<&str>,
        algorithm: JwtAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), JwtError> {
        let usable = |key: &&Jwk| key.matches_id(id) && key.supports(algorithm);
        let mut fitting = self.keys.iter().filter(usable).peekable();
        if fitting.peek().is_none() {
            return Err(JwtError::NoFittingKey);
        }
        if fitting.any(|key| key.verifies(algorithm, message, signature)) {
            Ok(())
        } else {
            Err(JwtError::BadSignature)
        }
    }
}

/// Shows the number of keys, never their contents.
impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySet").field("keys", &self.keys.len()).finish()
    }
}

const THREE_PARTS: JwtError = JwtError::Malformed("it does not have three parts");

fn json_object(part: &str) -> Result<Map<String, Value>, JwtError> {
    let parsed = decode_base64url(part).and_then(|json| serde_json::from_slice(&json).ok());
    parsed.ok_or(JwtError::Malformed("a part is not a JSON object in base64url"))
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::rand::SystemRandom;
    use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
    use ring::{hmac, rand};
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_800_000_000;
    const SECRET: [u8; 64] = [7; 64];
    /// Made for these tests by `openssl genpkey`; signs nothing else.
    const RSA_TEST_KEY: &[u8] = include_bytes!("jwt/fixtures/jwt-test-rsa.pk8");

    fn base64(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn token(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
        let message = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
        let signature = base64(sign(message.as_bytes()));
        format!("{message}.{signature}")
    }

    fn hs256(message: &[u8]) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &SECRET);
        hmac::sign(&key, message).as_ref().to_vec()
    }

    fn set(keys: Value) -> KeySet {
        KeySet::from_json(&json!({ "keys": keys }).to_string()).unwrap()
    }

    fn secret_set() -> KeySet {
        set(json!([{"kty": "oct", "kid": "s", "k": base64(SECRET)}]))
    }

    fn rsa_jwk() -> (RsaKeyPair, Value) {
        let pair = RsaKeyPair::from_pkcs8(RSA_TEST_KEY).unwrap();
        let public = signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
        let jwk = json!({"kty": "RSA", "kid": "r", "n": base64(public.n), "e": base64(public.e)});
        (pair, jwk)
    }

    /// `keys` must accept what `sign` has signed, and nothing else.
    fn check(keys: &KeySet, algorithm: &str, sign: impl Fn(&[u8]) -> Vec<u8>) {
        let good = token(&json!({"alg": algorithm}), &json!({"sub": "ann"}), &sign);
        let claims = keys.verify(&good, NOW).expect(algorithm);
        assert_eq!(claims.get("sub").as_deref(), Some("ann"), "{algorithm}");
        let parts: Vec<_> = good.split('.').collect();
        let payload = base64(json!({"sub": "bob"}).to_string());
        let tampered = format!("{}.{payload}.{}", parts[0], parts[2]);
        assert_eq!(keys.verify(&tampered, NOW), Err(JwtError::BadSignature), "{algorithm}");
    }

    /// The result of a token that the set's secret has signed.
    fn signed(header: Value, claims: Value) -> Result<Claims, JwtError> {
        secret_set().verify(&token(&header, &claims, hs256), NOW)
    }

    #[test]
    fn every_hmac_algorithm_verifies_and_notices_tampering() {
        let hashes = [hmac::HMAC_SHA256, hmac::HMAC_SHA384, hmac::HMAC_SHA512];
        for (name, hash) in ["HS256", "HS384", "HS512"].into_iter().zip(hashes) {
            let key = hmac::Key::new(hash, &SECRET);
            check(&secret_set(), name, |message| hmac::sign(&key, message).as_ref().to_vec());
        }
    }

    #[test]
    fn every_rsa_algorithm_verifies_and_notices_tampering() {
        let (pair, jwk) = rsa_jwk();
        let paddings: [(&str, &'static dyn signature::RsaEncoding); 6] = [
            ("RS256", &signature::RSA_PKCS1_SHA256),
            ("RS384", &signature::RSA_PKCS1_SHA384),
            ("RS512", &signature::RSA_PKCS1_SHA512),
            ("PS256", &signature::RSA_PSS_SHA256),
            ("PS384", &signature::RSA_PSS_SHA384),
            ("PS512", &signature::RSA_PSS_SHA512),
        ];
        for (name, padding) in paddings {
            check(&set(json!([jwk])), name, |message| {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(padding, &SystemRandom::new(), message, &mut signature).unwrap();
                signature
            });
        }
    }

    #[test]
    fn every_curve_verifies_and_notices_tampering() {
        let random = SystemRandom::new();
        let curves = [
            ("ES256", "P-256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING),
            ("ES384", "P-384", &signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        ];
        for (name, curve, scheme) in curves {
            let pkcs8 = EcdsaKeyPair::generate_pkcs8(scheme, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(scheme, pkcs8.as_ref(), &random).unwrap();
            let point = &pair.public_key().as_ref()[1..];
            let (x, y) = point.split_at(point.len() / 2);
            let keys = set(json!([{"kty": "EC", "crv": curve, "x": base64(x), "y": base64(y)}]));
            check(&keys, name, |message| pair.sign(&random, message).unwrap().as_ref().to_vec());
        }
        let seed: [u8; 32] = rand::generate(&random).unwrap().expose();
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let x = base64(pair.public_key());
        let keys = set(json!([{"kty": "OKP", "crv": "Ed25519", "x": x, "alg": "EdDSA"}]));
        check(&keys, "EdDSA", |message| pair.sign(message).as_ref().to_vec());
    }

    #[test]
    fn the_examples_of_rfc_7515_verify() {
        const BEFORE_EXPIRY: u64 = 1_300_819_379;
        let payload = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt\
                       cGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75\
                      aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let x = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
        let y = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
        let keys = json!([{"kty": "oct", "k": secret}, {"kty": "EC", "crv": "P-256", "x": x, "y": y}]);
        let a1 = ("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
        let a3 = (
            "eyJhbGciOiJFUzI1NiJ9",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSA\
             pmWQxfKTUJqPP3-Kg6NU1Q",
        );
        for (header, signature) in [a1, a3] {
            let token = format!("{header}.{payload}.{signature}");
            let claims = set(keys.clone()).verify(&token, BEFORE_EXPIRY).unwrap();
            assert_eq!(claims.get("http://example.com/is_root").as_deref(), Some("true"));
        }
    }

    #[test]
    fn a_token_counts_from_nbf_until_exp_with_a_minute_of_leeway() {
        let at = |name: &str, time: Value| signed(json!({"alg": "HS256"}), json!({name: time}));
        assert!(at("exp", json!(NOW - 59)).is_ok());
        assert_eq!(at("exp", json!(NOW - 60)), Err(JwtError::Expired));
        assert!(at("nbf", json!(NOW + 60)).is_ok());
        assert_eq!(at("nbf", json!(NOW as f64 + 60.5)), Err(JwtError::NotYetValid));
    }

    #[test]
    fn the_key_id_chooses_the_key() {
        let keys = set(json!([
            {"kty": "oct", "kid": "a", "k": base64([1; 32])},
            {"kty": "oct", "kid": "s", "k": base64(SECRET)},
        ]));
        let outcome = |header: Value| keys.verify(&token(&header, &json!({}), hs256), NOW).map(drop);
        assert_eq!(outcome(json!({"alg": "HS256", "kid": "s"})), Ok(()));
        assert_eq!(outcome(json!({"alg": "HS256"})), Ok(()), "all matching keys are tried");
        assert_eq!(outcome(json!({"alg": "HS256", "kid": "a"})), Err(JwtError::BadSignature));
        assert_eq!(outcome(json!({"alg": "HS256", "kid": "b"})), Err(JwtError::NoFittingKey));
        let no_text = outcome(json!({"alg": "HS256", "kid": 5}));
        assert!(matches!(no_text, Err(JwtError::Malformed(_))));
    }

    #[test]
    fn a_public_key_is_never_used_as_a_secret() {
        let (_, jwk) = rsa_jwk();
        let modulus = URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap();
        let forged = token(&json!({"alg": "HS256", "kid": "r"}), &json!({}), |message| {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &modulus), message).as_ref().to_vec()
        });
        assert_eq!(set(json!([jwk])).verify(&forged, NOW), Err(JwtError::NoFittingKey));
    }

    #[test]
    fn a_key_for_one_algorithm_verifies_no_other() {
        let keys = set(json!([{"kty": "oct", "alg": "HS512", "k": base64(SECRET)}]));
        let other = token(&json!({"alg": "HS256"}), &json!({}), hs256);
        assert_eq!(keys.verify(&other, NOW), Err(JwtError::NoFittingKey));
    }

    #[test]
    fn unsigned_critical_and_oversized_tokens_are_refused() {
        for none in ["none", "None", "nOnE", ""] {
            let unsigned = token(&json!({"alg": none}), &json!({}), |_| Vec::new());
            assert_eq!(secret_set().verify(&unsigned, NOW), Err(JwtError::UnsupportedAlgorithm));
        }
        let critical = signed(json!({"alg": "HS256", "crit": ["b64"], "b64": false}), json!({}));
        assert_eq!(critical, Err(JwtError::CriticalHeader));
        let large = signed(json!({"alg": "HS256"}), json!({"a": "x".repeat(MAX_TOKEN_BYTES)}));
        assert_eq!(large, Err(JwtError::TooLong));
    }

    #[test]
    fn every_cut_or_broken_token_is_refused() {
        let good = token(&json!({"alg": "HS256"}), &json!({}), hs256);
        for cut in 0..good.len() {
            assert!(secret_set().verify(&good[..cut], NOW).is_err(), "{cut}");
        }
        for broken in ["", ".", "..", "...", "a.b.c", "é.é.é", &format!("{good}."), &format!("{good}=")] {
            let outcome = secret_set().verify(broken, NOW);
            assert!(matches!(outcome, Err(JwtError::Malformed(_))), "{broken}");
        }
    }

    #[test]
    fn an_empty_or_broken_set_is_refused() {
        let error = |text: &str| KeySet::from_json(text).unwrap_err();
        assert_eq!(error("{"), JwtError::NotAKeySet);
        assert_eq!(error("[]"), JwtError::NotAKeySet);
        assert_eq!(error(r#"{"keys": []}"#), JwtError::NoKeys);
        let enc = json!({"keys": [{"kty": "oct", "use": "enc", "k": base64(SECRET)}]});
        assert_eq!(error(&enc.to_string()), JwtError::NoKeys);
        let short = json!({"keys": [{"kty": "oct", "k": base64([1; 31])}]}).to_string();
        assert!(matches!(error(&short), JwtError::BadKey { index: 0, .. }));
        let many = json!({ "keys": vec![json!({"kty": "oct"}); MAX_KEYS + 1] }).to_string();
        assert_eq!(error(&many), JwtError::TooManyKeys);
    }

    #[test]
    fn a_set_does_not_show_its_keys() {
        assert_eq!(format!("{:?}", secret_set()), "KeySet { keys: 1 }");
    }
}
