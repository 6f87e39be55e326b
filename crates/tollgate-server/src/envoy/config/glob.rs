//! Values with wildcards: `*` stands for any characters, also for none.

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob {
    /// The texts between the wildcards; at least two.
    parts: Vec<Box<str>>,
}

impl Glob {
    /// `None` if the text has no wildcard.
    pub fn parse(text: &str) -> Option<Glob> {
        let parts: Vec<Box<str>> = text.split('*').map(Into::into).collect();
        (parts.len() > 1).then_some(Glob { parts })
    }

    /// Each part is matched at its first occurrence after the one before: a later one would leave less for the rest.
    pub fn matches(&self, value: &str) -> bool {
        let [first, between @ .., last] = &self.parts[..] else { return false };
        let Some(mut rest) = value.strip_prefix(&**first) else { return false };
        for part in between {
            match rest.find(&**part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(&**last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_matches_any_characters_also_none() {
        for (pattern, yes, no) in [
            ("foo*", &["foo", "foobar"][..], &["fo", "xfoo"][..]),
            ("*foo", &["foo", "xfoo"], &["foox"]),
            ("bar*b", &["barb", "bar-b-b"], &["bar", "ba", "bab"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("a*b*c", &["abc", "a-b-b-c"], &["acb", "ab"]),
            ("*", &["", "anything"], &[]),
            ("**x", &["x", "yx"], &["y"]),
        ] {
            let glob = Glob::parse(pattern).expect("a pattern");
            yes.iter().for_each(|value| assert!(glob.matches(value), "{pattern} {value}"));
            no.iter().for_each(|value| assert!(!glob.matches(value), "{pattern} {value}"));
        }
        assert_eq!(Glob::parse("foo"), None);
    }
}
