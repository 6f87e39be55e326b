"""F. The trade-offs are in the docs, each where one chooses."""

from process import ROOT
from table import check, equal

TRADE_OFFS = {
    "a leaky bucket makes a request wait long at low rates": ("algorithms.md", ["at low rates", "wait long"]),
    "two bursts meet at the edge of fixed windows": ("algorithms.md", ["twice the limit around an edge"]),
    "the log costs memory in proportion to the limit": ("algorithms.md", ["memory grows with the limit"]),
    "the counter is approximate, and how far it can be off": ("algorithms.md", ["How far it can be off"]),
    "tiers trade precision for reads": ("algorithms.md", ["less precise"]),
    "IP alone hurts shared networks, user alone misses the login": ("algorithms.md", ["a university", "does not cover the login"]),
    "sticky sessions lose fault tolerance and can overload a node": ("algorithms.md", ["sticky sessions", "overloaded"]),
    "a central store adds a round trip": ("stores.md", ["round trips per decision"]),
    "fail open lets surges through, fail closed turns an outage into yours": ("algorithms.md", ["surge", "outage"]),
}


@check("F", "nine trade-offs, each said where one chooses")
def trade_offs() -> None:
    missing = []
    for claim, (page, words) in TRADE_OFFS.items():
        text = " ".join((ROOT / "docs" / page).read_text().split())
        missing += [f"{claim} ({page}: {word})" for word in words if word.lower() not in text.lower()]
    equal(missing, [])
