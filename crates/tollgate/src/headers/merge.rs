//! Merges our `RateLimit` with that of the upstream: both are reported, and neither is loosened.

/// Adds `ours`, one item, to the items of `theirs`. Of two with the same name the one with less remaining is kept.
pub fn merge_ratelimit<'a>(theirs: impl IntoIterator<Item = &'a str>, ours: &str) -> String {
    let (name, left) = read(ours);
    let mut joined = String::new();
    let mut written = false;
    for item in theirs.into_iter().flat_map(items) {
        let (theirs, their_left) = read(item);
        let same = theirs.is_some() && theirs == name;
        // An item without a number counts as the stricter one.
        let replaced = same && matches!((their_left, left), (Some(theirs), Some(ours)) if ours < theirs);
        written |= same && !replaced;
        if !replaced {
            push(&mut joined, item);
        }
    }
    if !written {
        push(&mut joined, ours);
    }
    joined
}

fn push(joined: &mut String, item: &str) {
    if !joined.is_empty() {
        joined.push_str(", ");
    }
    joined.push_str(item);
}

/// The name of an item, and what remains.
fn read(item: &str) -> (Option<&str>, Option<u64>) {
    let name = item.strip_prefix('"').and_then(|rest| rest.split_once('"'));
    let left = name.map_or(item, |(_, parameters)| parameters).split(';').map(str::trim);
    let left = left.filter_map(|parameter| parameter.strip_prefix("r=")).find_map(|left| left.parse().ok());
    (name.map(|(name, _)| name), left)
}

/// The items of a list, split at commas outside quotes.
fn items(line: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let split = line.split(move |letter| {
        quoted ^= letter == '"';
        letter == ',' && !quoted
    });
    split.map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sets_of_limits_are_merged_and_the_stricter_of_one_name_wins() {
        let ours = "\"login\";r=5;t=10";
        for (theirs, expected) in [
            (&[][..], "\"login\";r=5;t=10"),
            (&["\"api\";r=9;t=1"], "\"api\";r=9;t=1, \"login\";r=5;t=10"),
            (&["\"a,b\";r=1", "\"c\";r=2,"], "\"a,b\";r=1, \"c\";r=2, \"login\";r=5;t=10"),
            (&["\"login\";r=4;t=99"], "\"login\";r=4;t=99"),
            (&["\"login\";r=6;t=99, \"x\";r=1"], "\"x\";r=1, \"login\";r=5;t=10"),
            (&["\"login\";t=99"], "\"login\";t=99"),
            (&["limit=10, remaining=5"], "limit=10, remaining=5, \"login\";r=5;t=10"),
        ] {
            assert_eq!(merge_ratelimit(theirs.iter().copied(), ours), expected);
        }
    }
}
