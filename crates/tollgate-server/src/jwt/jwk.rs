//! Keys that signatures are verified with (RFC 7517, RFC 7518, RFC 8037).
//!
//! A key is checked when it is parsed: its kind, its size and, if it names one, its algorithm. Verification matches on
//! key and algorithm together, so that a public key can never be used as a secret. Must not know the contents of a
//! token.

use std::ops::RangeInclusive;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::Value;

/// Minimum length of a secret: the output of SHA-256 (RFC 7518, 3.2).
pub const MIN_SECRET_BYTES: usize = 32;

/// Minimum and maximum RSA modulus that the verification accepts, in bytes.
const RSA_MODULUS_BYTES: RangeInclusive<usize> = 256..=1024;

/// One valid key of a set.
pub(crate) struct Jwk {
    id: Option<String>,
    /// The only algorithm of this key, if the set names one.
    algorithm: Option<JwtAlgorithm>,
    material: Material,
}

enum Material {
    Secret(Vec<u8>),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    Point(Curve, Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Curve {
    P256,
    P384,
    Ed25519,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JwtHash {
    Sha256,
    Sha384,
    Sha512,
}

/// The algorithm of a signature, which always determines the kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JwtAlgorithm {
    Hmac(JwtHash),
    RsaPkcs1(JwtHash),
    RsaPss(JwtHash),
    Curve(Curve),
}

/// Base64url without padding.
pub(crate) fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

impl Jwk {
    /// `None` for a key to be skipped.
    pub(crate) fn from_jwk(jwk: &Value) -> Result<Option<Self>, &'static str> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes =
            |name: &str| text(name).and_then(decode_base64url).ok_or("a member is missing or not base64url");
        let operations = jwk.get("key_ops").and_then(Value::as_array);
        if text("use").is_some_and(|purpose| purpose != "sig")
            || operations.is_some_and(|list| !list.iter().any(|operation| operation == "verify"))
        {
            return Ok(None);
        }
        let material = match (text("kty"), text("crv")) {
            (Some("oct"), _) => Material::secret(bytes("k")?)?,
            (Some("RSA"), _) => Material::rsa(bytes("n")?, bytes("e")?)?,
            (Some("EC"), Some("P-256")) => Material::point(Curve::P256, &[bytes("x")?, bytes("y")?])?,
            (Some("EC"), Some("P-384")) => Material::point(Curve::P384, &[bytes("x")?, bytes("y")?])?,
            (Some("OKP"), Some("Ed25519")) => Material::point(Curve::Ed25519, &[bytes("x")?])?,
            _ => return Ok(None),
        };
        let id = text("kid").map(str::to_owned);
        let Some(name) = text("alg") else {
            return Ok(Some(Self { id, algorithm: None, material }));
        };
        let Some(algorithm) = JwtAlgorithm::from_name(name) else {
            return Ok(None);
        };
        let key = Self { id, algorithm: Some(algorithm), material };
        if key.supports(algorithm) { Ok(Some(key)) } else { Err("its algorithm does not match its type") }
    }

    /// Whether the key's id is `id`; true if no id is given.
    pub(crate) fn matches_id(&self, id: Option<&str>) -> bool {
        id.is_none() || self.id.as_deref() == id
    }

    /// Whether the key is of the kind and strength that `algorithm` needs.
    pub(crate) fn supports(&self, algorithm: JwtAlgorithm) -> bool {
        if self.algorithm.is_some_and(|only| only != algorithm) {
            return false;
        }
        match (&self.material, algorithm) {
            (Material::Secret(secret), JwtAlgorithm::Hmac(hash)) => secret.len() >= hash.output_bytes(),
            (Material::Rsa(_), JwtAlgorithm::RsaPkcs1(_) | JwtAlgorithm::RsaPss(_)) => true,
            (Material::Point(curve, _), JwtAlgorithm::Curve(wanted)) => *curve == wanted,
            _ => false,
        }
    }

    pub(crate) fn verifies(&self, algorithm: JwtAlgorithm, message: &[u8], signature: &[u8]) -> bool {
        match (&self.material, algorithm) {
            (Material::Secret(secret), JwtAlgorithm::Hmac(hash)) => {
                let key = hmac::Key::new(hash.hmac(), secret);
                hmac::verify(&key, message, signature).is_ok()
            }
            (Material::Rsa(key), JwtAlgorithm::RsaPkcs1(hash)) => {
                key.verify(hash.rsa_pkcs1(), message, signature).is_ok()
            }
            (Material::Rsa(key), JwtAlgorithm::RsaPss(hash)) => {
                key.verify(hash.rsa_pss(), message, signature).is_ok()
            }
            (Material::Point(curve, point), JwtAlgorithm::Curve(wanted)) if *curve == wanted => {
                UnparsedPublicKey::new(curve.scheme(), point).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

impl Material {
    fn secret(secret: Vec<u8>) -> Result<Self, &'static str> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err("its secret is shorter than 32 bytes");
        }
        Ok(Self::Secret(secret))
    }

    fn rsa(n: Vec<u8>, e: Vec<u8>) -> Result<Self, &'static str> {
        let trimmed = |number: Vec<u8>| number.into_iter().skip_while(|byte| *byte == 0).collect();
        let key = RsaPublicKeyComponents::<Vec<u8>> { n: trimmed(n), e: trimmed(e) };
        if !RSA_MODULUS_BYTES.contains(&key.n.len()) {
            return Err("its modulus is not between 2048 and 8192 bits long");
        }
        Ok(Self::Rsa(key))
    }

    fn point(curve: Curve, coordinates: &[Vec<u8>]) -> Result<Self, &'static str> {
        if coordinates.iter().any(|number| number.len() != curve.coordinate_bytes()) {
            return Err("a coordinate's length does not match its curve");
        }
        let uncompressed: &[u8] = if curve == Curve::Ed25519 { &[] } else { &[4] };
        Ok(Self::Point(curve, [uncompressed, &coordinates.concat()].concat()))
    }
}

impl JwtAlgorithm {
    /// `none` is not an algorithm, so it is rejected.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "HS256" => Self::Hmac(JwtHash::Sha256),
            "HS384" => Self::Hmac(JwtHash::Sha384),
            "HS512" => Self::Hmac(JwtHash::Sha512),
            "RS256" => Self::RsaPkcs1(JwtHash::Sha256),
            "RS384" => Self::RsaPkcs1(JwtHash::Sha384),
            "RS512" => Self::RsaPkcs1(JwtHash::Sha512),
            "PS256" => Self::RsaPss(JwtHash::Sha256),
            "PS384" => Self::RsaPss(JwtHash::Sha384),
            "PS512" => Self::RsaPss(JwtHash::Sha512),
            "ES256" => Self::Curve(Curve::P256),
            "ES384" => Self::Curve(Curve::P384),
            "EdDSA" | "Ed25519" => Self::Curve(Curve::Ed25519), // RFC 8037, RFC 9864
            _ => return None,
        })
    }
}

impl JwtHash {
    fn output_bytes(self) -> usize {
        self.hmac().digest_algorithm().output_len()
    }

    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    fn rsa_pkcs1(self) -> &'static RsaParameters {
        match self {
            Self::Sha256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Self::Sha384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Self::Sha512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        }
    }

    fn rsa_pss(self) -> &'static RsaParameters {
        match self {
            Self::Sha256 => &signature::RSA_PSS_2048_8192_SHA256,
            Self::Sha384 => &signature::RSA_PSS_2048_8192_SHA384,
            Self::Sha512 => &signature::RSA_PSS_2048_8192_SHA512,
        }
    }
}

impl Curve {
    fn coordinate_bytes(self) -> usize {
        if self == Self::P384 { 48 } else { 32 }
    }

    fn scheme(self) -> &'static dyn signature::VerificationAlgorithm {
        match self {
            Self::P256 => &signature::ECDSA_P256_SHA256_FIXED,
            Self::P384 => &signature::ECDSA_P384_SHA384_FIXED,
            Self::Ed25519 => &signature::ED25519,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The key, or why it is unusable; `None` if it is skipped.
    fn check(jwk: Value) -> Result<Option<Jwk>, &'static str> {
        Jwk::from_jwk(&jwk)
    }

    fn ones(bytes: usize) -> String {
        URL_SAFE_NO_PAD.encode(vec![1; bytes])
    }

    #[test]
    fn keys_of_other_kinds_and_for_other_uses_are_passed_over() {
        let others = [
            json!({"kty": "oct", "k": ones(32), "use": "enc"}),
            json!({"kty": "oct", "k": ones(32), "key_ops": ["sign"]}),
            json!({"kty": "oct", "k": ones(32), "alg": "A256GCM"}),
            json!({"kty": "EC", "crv": "secp256k1", "x": ones(32), "y": ones(32)}),
            json!({"kty": "AKP"}),
            json!("text"),
        ];
        for other in others {
            assert!(matches!(check(other.clone()), Ok(None)), "{other}");
        }
    }

    #[test]
    fn weak_and_broken_keys_are_refused() {
        let refused = [
            json!({"kty": "oct", "k": ones(31)}),
            json!({"kty": "oct", "k": ones(32), "alg": "HS512"}),
            json!({"kty": "oct", "k": ones(32), "alg": "RS256"}),
            json!({"kty": "oct", "k": "+/=="}),
            json!({"kty": "RSA", "n": ones(128), "e": "AQAB"}),
            json!({"kty": "RSA", "n": ones(256)}),
            json!({"kty": "EC", "crv": "P-256", "x": ones(31), "y": ones(32)}),
            json!({"kty": "OKP", "crv": "Ed25519", "x": ones(33)}),
        ];
        for jwk in refused {
            assert!(check(jwk.clone()).is_err(), "{jwk}");
        }
    }

    #[test]
    fn a_secret_is_only_fit_for_hashes_no_longer_than_itself() {
        let key = check(json!({"kty": "oct", "k": ones(48)})).unwrap().unwrap();
        assert!(key.supports(JwtAlgorithm::Hmac(JwtHash::Sha256)));
        assert!(key.supports(JwtAlgorithm::Hmac(JwtHash::Sha384)));
        assert!(!key.supports(JwtAlgorithm::Hmac(JwtHash::Sha512)));
    }

    #[test]
    fn leading_zeros_of_a_modulus_do_not_count() {
        let padded = URL_SAFE_NO_PAD.encode([vec![0], vec![1; 255]].concat());
        assert!(check(json!({"kty": "RSA", "n": padded, "e": "AQAB"})).is_err());
        let padded = URL_SAFE_NO_PAD.encode([vec![0], vec![1; 256]].concat());
        assert!(check(json!({"kty": "RSA", "n": padded, "e": "AQAB"})).is_ok());
    }
}
