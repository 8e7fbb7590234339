"""Queries 0 to 8 of NEXMark, an auction house, in the SQL of views, and small streams on which each finds something.

Times are milliseconds, and a window is its first one. Windows have 10 s; query 5 has them begin every 2 s.
"""

from __future__ import annotations

from random import Random

from pavane.dataflow.rows import Row

TABLES = """
CREATE TABLE person (id BIGINT, name STRING, city STRING, state STRING, at BIGINT) USING waltz
  OPTIONS (partitions '0', diff 'true');
CREATE TABLE auction (id BIGINT, seller BIGINT, category BIGINT, reserve BIGINT, at BIGINT, expires BIGINT) USING waltz
  OPTIONS (partitions '0', diff 'true');
CREATE TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, at BIGINT) USING waltz
  OPTIONS (partitions '0', diff 'true');
"""
_SLIDING = " UNION ALL ".join(f"SELECT auction, at - at % 2000 - {2000 * back} AS w FROM bid" for back in range(5))
_WINNING = """SELECT a.id, a.seller, a.category, a.expires, max(b.price) AS final FROM auction a JOIN bid b
  ON b.auction = a.id WHERE b.at BETWEEN a.at AND a.expires GROUP BY a.id, a.seller, a.category, a.expires"""
QUERIES = (
    "SELECT auction, bidder, price, at FROM bid",
    "SELECT auction, bidder, 0.908 * price AS price, at FROM bid",
    "SELECT auction, price FROM bid WHERE auction % 7 = 0",
    """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
      WHERE a.category = 2 AND p.state IN ('OR', 'ID', 'CA')""",
    f"SELECT category, avg(final) AS price FROM ({_WINNING}) w GROUP BY category",
    f"""WITH counted AS (SELECT auction, w, count(*) AS n FROM ({_SLIDING}) s GROUP BY auction, w)
      SELECT c.auction, c.w, c.n FROM counted c JOIN (SELECT w, max(n) AS most FROM counted GROUP BY w) m ON c.w = m.w
      WHERE c.n >= m.most""",
    f"""SELECT seller, id, avg(final) OVER (PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND
      CURRENT ROW) AS price FROM ({_WINNING}) w""",
    """SELECT b.auction, b.price, b.bidder, b.at FROM bid b JOIN (SELECT max(price) AS most, at - at % 10000
      AS w FROM bid GROUP BY at - at % 10000) m ON b.price = m.most
      WHERE b.at - b.at % 10000 = m.w""",
    """SELECT p.id, p.name, p.w FROM (SELECT id, name, at - at % 10000 AS w FROM person) p JOIN
      (SELECT DISTINCT seller, at - at % 10000 AS w FROM auction) a ON p.id = a.seller AND p.w = a.w""",
)
PEOPLE, AUCTIONS, BIDS = 1, 3, 46
"""Of 50 events."""
EVENT_MS = 40


def changes(random: Random, ticks: int, events: int = 12, first: int = 12) -> list[list[tuple[str, Row, int]]]:
    """Return by tick what comes, so many events of each; in the second half some are taken back."""
    found: list[list[tuple[str, Row, int]]] = []
    people, auctions, held, number = 0, 0, list[tuple[str, Row]](), 0
    pick = random.randrange
    for tick in range(ticks):
        came: list[tuple[str, Row]] = []
        for _ in range(events if tick else first):
            at, kind, number = number * EVENT_MS, pick(PEOPLE + AUCTIONS + BIDS), number + 1
            if kind < PEOPLE or people < 3:
                state = random.choice(("OR", "ID", "CA", "NY"))
                came.append(("person", (people, f"person {people}", f"city {people % 5}", state, at)))
                people += 1
            elif kind < PEOPLE + AUCTIONS or auctions < 5:
                seller, expires = people - 1 - pick(min(people, 20)), at + pick(1, 200) * EVENT_MS
                came.append(("auction", (auctions, seller, pick(4), pick(500), at, expires)))
                auctions += 1
            else:
                auction, bidder = auctions - 1 - pick(min(auctions, 50)), people - 1 - pick(min(people, 100))
                came.append(("bid", (auction, bidder, pick(1, 10_000), at)))
        gone = random.sample(held, 2) if tick >= ticks // 2 else []
        held = [each for each in held if each not in gone] + came
        found.append([(table, row, 1) for table, row in came] + [(table, row, -1) for table, row in gone])
    return found
