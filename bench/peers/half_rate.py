"""Half of what the slowest target of a saturation record can do, in requests per second: `half_rate.py RECORD.json`."""

import json
import statistics
import sys


def main() -> None:
    with open(sys.argv[1]) as file:
        runs = json.load(file)["runs"]
    # By label and concurrency; a label's rounds count by their median.
    rates: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        concurrency = run["load"]["closed"]["concurrency"]
        rates.setdefault(run["label"], {}).setdefault(concurrency, []).append(run["rates"]["requests"])
    best = {label: max(map(statistics.median, by.values())) for label, by in rates.items()}
    slowest = min(best.values())
    if slowest <= 0:
        raise SystemExit(f"a target answered nothing: {best}")
    print(max(1, round(slowest / 2)))


if __name__ == "__main__":
    main()
