"""A table like a shop chain's: many series of daily counts, mostly small and often zero, with a weekly season."""

import csv

import numpy as np

COLUMNS = ("item", "store", "date", "units")
START = np.datetime64("2022-01-03")  # a Monday


def retail_counts(series=500, days=400, seed=0):
    """(series, days) counts.

    Levels go from a sale every few weeks to hundreds a day; each series has a weekly season of its own strength, a slow
    drift, days without sales, and counts that vary more than Poisson counts.
    """
    random = np.random.default_rng(seed)
    level = np.exp(random.normal(0.8, 1.5, series))
    week = np.array([0.8, 0.75, 0.8, 0.9, 1.1, 1.5, 1.3])[None] ** random.uniform(0.3, 2.0, (series, 1))
    day = np.arange(days)
    drift = random.normal(0, 0.3, (series, 1)) * np.sin(
        2 * np.pi * (day / random.uniform(200, 800, (series, 1)) + random.random((series, 1)))
    )
    rate = level[:, None] * week[:, day % 7] * np.exp(drift)
    # Negative binomial, as Poisson counts whose rate is drawn from a gamma distribution.
    spread = random.uniform(1.0, 8.0, (series, 1))
    counts = random.poisson(rate * random.gamma(spread, 1 / spread, (series, days)))
    closed = random.random((series, days)) < random.uniform(0, 0.3, (series, 1))
    return np.where(closed, 0, counts)


def write_retail(path, series=500, days=400, seed=0, *, one_key=False):
    """Write the table as CSV with two key columns, or, with `one_key`, one column `id` in place of both."""
    counts = retail_counts(series, days, seed)
    dates = [str(START + day) for day in range(days)]
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("id", *COLUMNS[2:]) if one_key else COLUMNS)
        for number, row in enumerate(counts.tolist()):
            item, store = f"item {number // 10:03}", f"store {number % 10}"
            key = (f"{item} / {store}",) if one_key else (item, store)
            table.writerows((*key, date, count) for date, count in zip(dates, row, strict=True))
    return path
