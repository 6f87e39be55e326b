//! Rejected rules, and their errors.

use super::*;

#[test]
fn unknown_keys_are_rejected_with_what_was_meant() {
    check_rejected(
        "rules: [{id: r, limts: [5/m]}]",
        &["no limit: write limit: 5/m", "unknown key 'limts': did you mean 'limits'?"],
    );
    check_rejected(
        "rules:\n  - id: r\n    limit: 5/m\n    algoritm: gcra\n",
        &["4:5: rules[0]: unknown key 'algoritm': did you mean 'algorithm'?"],
    );
    check_option_rejected("colour: red", "unknown key 'colour': use id, ");
    check_option_rejected("key: ip, ban: {after: 3, untl: 5m}", "rules[0].ban: unknown key 'untl'");
    check_rejected("rulez: []", &["1:1: unknown key 'rulez': did you mean 'rules'?"]);
    check_rejected(
        "bans: [{key: 'ip:192.0.2.1', utnil: x}]",
        &["bans[0]: unknown key 'utnil': did you mean 'until'?"],
    );
}

#[test]
fn all_problems_are_reported_at_once_with_their_positions() {
    check_rejected(
        "rules:
  - id: a b
    limit: 5/fortnight
  - id: good
    limit: 5/m
  - id: good
    limit: 5/m
    mode: maybe
  - {id: other, limit: -5/m}
allow: [nobody]
bans: [{key: 'ip:1.2.3', until: tomorrow}]
",
        &[
            "2:9: rules[0].id: 'a b' is not a valid id: use 1 to 64 characters of A-Z a-z 0-9 . _ -",
            "3:12: rules[0].limit: unknown unit 'fortnight' in '5/fortnight': use s, m, h, d, week, month",
            "6:5: rules[2]: rule id 'good' is used twice, first at line 4",
            "8:11: rules[2].mode: unknown value 'maybe': use enforce, shadow, off",
            "9:24: rules[3].limit: negative number in '-5/m'",
            "10:9: allow[0]: key 'nobody' has no value",
            "11:14: bans[0].key: '1.2.3' is not an IP address",
            "11:33: bans[0].until: expected a timestamp such as 2027-01-01T00:00:00Z",
        ],
    );
}

#[test]
fn a_repeated_id_names_the_first_line() {
    check_rejected(
        "rules:\n  - {id: a, limit: 5/m}\n  - {id: b, limit: 5/m}\n  - {id: a, limit: 6/m}\n",
        &["4:5: rules[2]: rule id 'a' is used twice, first at line 2"],
    );
}

/// The line was reported only if both rules were valid.
#[test]
fn an_id_is_repeated_even_if_the_first_rule_has_another_problem() {
    check_rejected(
        "rules:\n  - {id: a, limit: 5/x}\n  - {id: a, limit: 6/m}\n",
        &[
            "2:20: rules[0].limit: unknown unit 'x'",
            "3:5: rules[1]: rule id 'a' is used twice, first at line 2",
        ],
    );
}

#[test]
fn rates_that_make_no_sense_are_rejected() {
    check_option_rejected(
        "limit: 5/fortnight",
        "unknown unit 'fortnight' in '5/fortnight': use s, m, h, d, week, month",
    );
    check_option_rejected("limit: -5/m", "negative number in '-5/m'");
    check_option_rejected("limit: 5/0s", "empty period in '5/0s'");
    check_option_rejected("limit: 5", "no period in '5'");
    check_option_rejected("limit: 1.5/s", "not a whole number");
    check_option_rejected("limit: 2000000000/s", "too fast");
    check_option_rejected("limits: []", "expected 1 to 8 limits, found 0");
    check_option_rejected("limits: [1/s, 1/m, 1/h, 1/d, 1/w, 1/month, 1/y, 1/2s, 1/3s]", "found 9");
    check_option_rejected(
        "limits: [5/m, 6/m]",
        "limits[1]: two limits per m: the smaller one would always decide",
    );
    check_option_rejected("limits: [[5/m]]", "limits[0]: expected a rate such as 5/m");
    check_option_rejected("limit: {per: m}", "limit: expected a rate such as 5/m");
    check_option_rejected(
        "limit: 5/m, limits: [6/h]",
        "more than one of 'limit', 'limits', 'limits_by' and 'time'",
    );
    check_rejected("rules: [{id: r}]", &["no limit: write limit: 5/m"]);
    check_rejected("rules: [{id: r, time: minute}]", &["'time' needs 'requests'", "no limit"]);
    check_rejected("rules: [{id: r, requests: 5}]", &["'requests' needs 'time'", "no limit"]);
    check_rejected("rules: [{id: r, time: eon, requests: 5}]", &["rules[0].requests: unknown unit 'eon'"]);
    check_rejected("rules: [{id: r, time: m, requests: -5}]", &["rules[0].requests: negative number"]);
}

#[test]
fn options_of_other_algorithms_are_rejected() {
    for window in ["fixed-window", "sliding-log", "sliding-compact", "sliding-counter", "tiered-window"] {
        let message = "burst: 'burst' is for gcra, token-bucket and leaky-bucket only";
        check_option_rejected(&format!("algorithm: {window}, burst: 5"), message);
    }
    check_option_rejected("refill: tick", "'refill' is for token-bucket only");
    check_option_rejected("algorithm: token-bucket, tick: 1s", "'tick' is for refill: tick only");
    check_option_rejected("window: aligned", "'window' is for fixed-window only");
    check_option_rejected("resolution: 1s", "'resolution' is for sliding-compact only");
    check_option_rejected("levels: [s]", "'levels' is for tiered-window only");
    check_option_rejected("max_wait: 1s", "'max_wait' is for a leaky-bucket that holds only");
    check_option_rejected("algorithm: leaky-bucket, on_exceed: reject, max_wait: 1s", "'max_wait' is for");
    check_option_rejected("hold_after: 8", "'hold_after' is for a leaky-bucket that holds only");
    check_option_rejected("algorithm: leaky-bucket, on_exceed: reject, hold_after: 8", "'hold_after' is for");
    check_option_rejected("algorithm: leaky-bucket, hold_after: 1000000001", "hold_after 1000000001 is too");
    check_option_rejected("on_exceed: hold", "on_exceed: hold is for leaky-bucket only");
    check_option_rejected("algorithm: gcra, on_exceed: hold", "on_exceed: hold is for leaky-bucket only");
    check_option_rejected("algorithm: concurrency, burst: 5", "'burst' is for");
    check_option_rejected("algorithm: gcr", "unknown value 'gcr': did you mean 'gcra'?");
}

#[test]
fn options_that_do_not_go_together_are_rejected() {
    check_option_rejected(
        "cost: 6, burst: 5",
        "60/m lets 5 pass at once, less than the cost 6: nothing would ever pass",
    );
    check_option_rejected("cost: 61", "lets 60 pass at once, less than the cost 61");
    check_option_rejected("burst: 0", "burst is 0: nothing would ever pass");
    check_option_rejected("burst: 2000000000", "burst 2000000000 is too large");
    check_option_rejected(
        "algorithm: sliding-compact, resolution: 7s",
        "a window of 1m is not a whole number of steps of 7s",
    );
    check_option_rejected(
        "limit: 5/90s, algorithm: sliding-compact, resolution: 7s",
        "a window of 90s is not a whole number of steps of 7s",
    );
    check_option_rejected(
        "limit: 9/90s, algorithm: tiered-window, levels: [m, h]",
        "not a whole number of steps of 1m",
    );
    check_option_rejected(
        "algorithm: tiered-window, levels: [h, m]",
        "expected some of s, m, h, d, each once, finest first",
    );
    check_option_rejected("algorithm: tiered-window, levels: [s, s]", "each once");
    check_option_rejected("algorithm: tiered-window, levels: [s, w]", "expected some of s, m, h, d");
    check_option_rejected("algorithm: tiered-window, levels: []", "'levels' is empty");
    check_option_rejected("algorithm: token-bucket, refill: tick, tick: 0s", "'0s' is zero");
    check_option_rejected("algorithm: leaky-bucket, max_wait: soon", "no number in 'soon'");
    check_option_rejected("uid: 42, key: ip", "a rule for one user is counted by user: add user to its key");
    check_option_rejected("match: /a, url: /a", "'match' and 'url' are the same setting: keep one");
    check_option_rejected("key: user, uid: 42, enforce_percent: 5", "a rule for one user is enforced or not");
    check_option_rejected(
        "key: [], enforce_percent: 5",
        "the rule has no key, so no share of it can be chosen",
    );
}

#[test]
fn values_of_the_wrong_type_are_rejected() {
    check_option_rejected("cost: much", "rules[0].cost: expected a whole number, found text 'much'");
    for percent in ["101", "-1", "2.5", "ten", "10%"] {
        let option = format!("enforce_percent: {percent}");
        check_option_rejected(&option, "rules[0].enforce_percent: expected a whole number from 0 to 100");
    }
    check_option_rejected("cost: 0", "cost 0 is out of range: 1 to 1000000000");
    check_option_rejected("burst: [5]", "rules[0].burst: expected a whole number, found a list");
    check_option_rejected(
        "track: maybe",
        "rules[0].track: expected true, false or a map such as {times: 16, keep: 30d}, found 'maybe'",
    );
    for (track, says) in [
        ("times: 0", "times: expected a whole number from 1 to 256"),
        ("times: 257", "times: expected a whole number from 1 to 256"),
        ("times: few", "times: expected a whole number from 1 to 256"),
        ("keep: 366d", "keep: expected whole seconds, from 1s to 365d"),
        ("keep: 1500ms", "keep: expected whole seconds, from 1s to 365d"),
    ] {
        check_option_rejected(&format!("track: {{{track}}}"), &format!("rules[0].track.{says}"));
    }
    check_option_rejected("mode: [shadow]", "rules[0].mode: expected text, found a list");
    check_option_rejected("match: login", "'login' is not a valid path: begin it with /");
    check_option_rejected("match: [/login]", "expected [METHOD ]PATH");
    check_option_rejected("host: '*'", "'*' is not a valid host");
    check_option_rejected("key: colour", "unknown attribute 'colour'");
    check_option_rejected("key: [ip, ip]", "ip is named twice");
    check_option_rejected("key: {a: b}", "rules[0].key: expected an attribute");
    check_option_rejected("uid: ''", "expected a user id");
    check_option_rejected("count_when: status:99", "expected always, success, failure or status:401,403");
    check_option_rejected("limits_by: [5/m]", "expected a map such as {attr: plan");
    check_option_rejected("limits_by: {free: 5/m}", "'attr' is missing");
    check_option_rejected("limits_by: {attr: plan}", "rules[0].limits_by: no limits: write some for a value");
    check_option_rejected("limits_by: {attr: 'cookie:', free: 5/m}", "'cookie:' lacks a name");
    check_option_rejected("limits_by: {attr: plan, free: 5/x}", "rules[0].limits_by.free: unknown unit 'x'");
    check_option_rejected("overrides: {}", "rules[0].overrides: expected a list, found a map");
    check_option_rejected("key: user, overrides: [x]", "overrides[0]: expected a map such as");
    check_option_rejected(
        "key: user, overrides: [{ip: 192.0.2.1, limit: 5/m}]",
        "ip is not in the rule's key [user]",
    );
    check_option_rejected(
        "key: user, overrides: [{limit: 5/m}]",
        "overrides[0]: names no attribute of the rule's key",
    );
    check_option_rejected("key: user, overrides: [{user: a}]", "overrides[0]: 'limits' is missing");
    check_option_rejected(
        "key: user, overrides: [{user: a, limit: 5/x}]",
        "overrides[0].limit: unknown unit 'x'",
    );
    check_option_rejected("key: ip, ban: yes", "rules[0].ban: expected a map, found text 'yes'");
    check_option_rejected("key: ip, ban: {}", "'after' is missing");
    check_option_rejected(
        "key: ip, ban: {after: 0}",
        "rules[0].ban.after: expected a number of denials from 1 to 1000",
    );
    check_option_rejected(
        "key: ip, ban: {after: often}",
        "rules[0].ban.after: expected a number of denials from 1 to 1000",
    );
    check_option_rejected("key: ip, ban: {after: 3, for: 2d, max: 1d}", "'max' is shorter than 'for'");
    check_option_rejected("ban: {after: 3}", "'key' is missing: the attributes to ban by, such as [ip]");
    check_rejected("rules: {id: r, limit: 5/m}", &["1:8: rules: expected a list of rules"]);
    check_rejected("rules: [r]", &["rules[0]: expected a map, found text 'r'"]);
    check_rejected("rules: [{limit: 5/m}]", &["rules[0]: 'id' is missing"]);
    check_rejected("rules: [{id: [a], limit: 5/m}]", &["is not a valid id"]);
    check_rejected("[]", &["expected a map, found a list"]);
    check_rejected("allow: ip:10.0.0.0/8", &["allow: expected a list"]);
    check_rejected("allow: [[a]]", &["allow[0]: expected a key such as ip:10.0.0.0/8"]);
    check_rejected("bans: {}", &["bans: expected a list, found a map"]);
    check_rejected("bans: [{until: 2027-01-01T00:00:00Z}]", &["bans[0]: 'key' is missing"]);
}

#[test]
fn names_and_lists_have_bounds() {
    let id = "x".repeat(64);
    policy(&format!("rules: [{{id: {id}, limit: 5/m}}]"));
    check_rejected(&format!("rules: [{{id: {id}x, limit: 5/m}}]"), &["is not a valid id"]);
    check_option_rejected(
        "key: ['attr:1','attr:2','attr:3','attr:4','attr:5','attr:6','attr:7','attr:8','attr:9']",
        "more than 8 attributes",
    );
    check_option_rejected(&format!("match: {}", "/a".repeat(65)), "more than 64 segments");
}

#[test]
fn at_most_64_rules_may_be_on_one_pattern() {
    let rules = |count: usize, options: &str| {
        let rules: String =
            (0..count).map(|n| format!("  - {{id: r{n}, limit: 5/m, {options}}}\n")).collect();
        format!("rules:\n{rules}")
    };
    policy(&rules(64, "match: /a"));
    check_rejected(&rules(65, "match: /a"), &["65 rules on '/a': at most 64 may match one request"]);
    check_rejected(&rules(65, ""), &["65 rules on 'every request'"]);
    policy(&rules(65, "match: /a, mode: off"));
    let many: String =
        (0..65).map(|n| format!("  - {{id: u{n}, uid: {n}, url: /a, time: m, requests: 5}}\n")).collect();
    policy(&format!("rules:\n{many}"));
    check_rejected(&rules(65, "match: /a, uid: 42, key: user"), &["65 rules on '/a'"]);
}

#[test]
fn matches_beyond_64_are_ignored_and_counted() {
    let rules = |from: usize, pattern: &str| -> String {
        (from..from + 40).map(|n| format!("  - {{id: r{n}, limit: 5/m, match: {pattern}}}\n")).collect()
    };
    let engine = engine(&format!("rules:\n{}{}", rules(0, "/a"), rules(40, "/**")));
    assert_eq!(engine.check(&Hit::on("GET", "", "/a"), NOW).limits().len(), 64);
    assert_eq!(engine.ignored_matches(), 16);
}

#[test]
fn no_empty_policy_is_an_error() {
    for yaml in ["", "# nothing\n", "rules:", "rules: []", "{}", "allow:\nbans:\n"] {
        assert!(policy(yaml).rules().is_empty(), "{yaml}");
    }
}

#[test]
fn a_bad_limit_makes_no_other_key_of_its_rule_unknown() {
    // `mode`, `track` and `ban` were once read after the limits, and not at all if these were bad.
    let rule = "{id: a, limit: 5/fortnight, mode: shadow, track: true, ban: {key: ip, after: 3}, count_denied: true}";
    let problems = PolicySnapshot::from_yaml(&format!("rules: [{rule}]")).err().expect("the limit is bad");
    assert_eq!(problems.count(), 1, "{problems}");
}
