//! Which limit of envoyproxy/ratelimit's files applies to a descriptor.

use super::envoy_config::{limit, start_with};

/// Each limit has a number of its own, by which it is recognised.
const CONFIG: &str = "
domain: shop
descriptors:
  - { key: order, value: ab*, rate_limit: { unit: day, requests_per_unit: 11 } }
  - { key: order, value: a*, rate_limit: { unit: day, requests_per_unit: 12 } }
  - { key: order, value: '*c', rate_limit: { unit: day, requests_per_unit: 13 } }
  - { key: order, rate_limit: { unit: day, requests_per_unit: 14 } }
  - { key: order, value: abc, rate_limit: { unit: day, requests_per_unit: 15 } }
  - { key: swapped, value: a*, rate_limit: { unit: day, requests_per_unit: 21 } }
  - { key: swapped, value: ab*, rate_limit: { unit: day, requests_per_unit: 22 } }
  - { key: literal, value: 'a*b', rate_limit: { unit: day, requests_per_unit: 31 } }
  - { key: literal, value: axb, rate_limit: { unit: day, requests_per_unit: 32 } }
  - key: outer
    value: 'x*'
    descriptors:
      - { key: inner, value: 'b*', rate_limit: { unit: day, requests_per_unit: 41 } }
      - { key: inner, value: bb, rate_limit: { unit: day, requests_per_unit: 42 } }
      - { key: inner, rate_limit: { unit: day, requests_per_unit: 43 } }
  - key: outer
    value: xx
    descriptors:
      - { key: inner, value: bb, rate_limit: { unit: day, requests_per_unit: 44 } }
  - key: outer
    rate_limit: { unit: day, requests_per_unit: 45 }
    descriptors:
      - key: inner
        descriptors:
          - { key: last, value: '*', rate_limit: { unit: day, requests_per_unit: 46 } }
";

#[test]
fn at_each_level_exact_values_precede_wildcards_in_file_order_and_these_the_bare_key() {
    let (_server, client) = start_with(&[("shop.yaml", CONFIG)], "");
    for (entries, expected) in [
        // The file order of wildcards that overlap, not their length.
        (&[("order", "abd")][..], Some(11)),
        (&[("order", "ac")], Some(12)),
        (&[("order", "bc")], Some(13)),
        (&[("swapped", "abd")], Some(21)),
        // An exact value precedes wildcards that come first; a wildcard the bare key.
        (&[("order", "abc")], Some(15)),
        (&[("order", "b")], Some(14)),
        (&[("order", "")], Some(14)),
        (&[("literal", "ab")], Some(31)),
        (&[("literal", "axb")], Some(32)),
        (&[("literal", "xab")], None),
        // The same at each level; the choice of one level is final.
        (&[("outer", "xy"), ("inner", "bc")], Some(41)),
        (&[("outer", "xy"), ("inner", "bb")], Some(42)),
        (&[("outer", "xy"), ("inner", "c")], Some(43)),
        (&[("outer", "xx"), ("inner", "bb")], Some(44)),
        (&[("outer", "xx"), ("inner", "bc")], None),
        (&[("outer", "y"), ("inner", "bb")], None),
        (&[("outer", "y"), ("inner", "bb"), ("last", "")], Some(46)),
        // Exactly at its depth, and by keys in this order.
        (&[("outer", "xy")], None),
        (&[("outer", "y")], Some(45)),
        (&[("inner", "bb"), ("outer", "xy")], None),
        (&[("outer", "xy"), ("inner", "bb"), ("last", "z")], None),
    ] {
        let found = limit(&client, "shop", entries).map(|(requests, _)| requests);
        assert_eq!(found, expected, "{entries:?}");
    }
}
