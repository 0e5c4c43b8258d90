#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a CSV file of invented sales: 12,000 orders over two years. Same seed, same bytes.

Usage: make_data.py FILE [SEED]. Standard library only.
"""
import csv
import datetime
import math
import random
import sys

ROWS = 12_000
START = datetime.date(2023, 1, 1)
DAYS = 730
REGIONS = {"North": 1.0, "South": 0.7, "East": 1.3, "West": 0.9}
PRODUCTS = {"lamp": 39.0, "desk": 240.0, "chair": 120.0, "shelf": 85.0, "rug": 150.0}


def orders(seed: int):
    """Yields one row an order: sales grow, prices peak in December, and 1 % have no price."""
    rng = random.Random(seed)
    for number in range(1, ROWS + 1):
        # The last day is twice as likely as the first: the business grows.
        day = int(DAYS * (2 * math.sqrt(0.25 + 0.75 * rng.random()) - 1))
        date = START + datetime.timedelta(days=min(day, DAYS - 1))
        region = rng.choices(list(REGIONS), weights=list(REGIONS.values()))[0]
        product = rng.choice(list(PRODUCTS))
        season = 1.0 + 0.3 * (date.month == 12) - 0.1 * (date.month in (1, 2))
        price = PRODUCTS[product] * season * rng.uniform(0.85, 1.15)
        yield {
            "order": number,
            "date": date.isoformat(),
            "region": region,
            "product": product,
            "units": rng.choices((1, 2, 3, 4, 10), weights=(60, 20, 10, 7, 3))[0],
            "unit_price": "" if rng.random() < 0.01 else f"{price:.2f}",
        }


def main() -> None:
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: make_data.py FILE [SEED]")
    seed = int(sys.argv[2]) if len(sys.argv) == 3 else 7
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as out:
        rows = csv.DictWriter(out, ["order", "date", "region", "product", "units", "unit_price"])
        rows.writeheader()
        rows.writerows(orders(seed))


if __name__ == "__main__":
    main()
