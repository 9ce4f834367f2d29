"""Prints what speed.sh measured: table.py OUT. One line for each record, from the records alone."""
import json
import pathlib
import sys

print(f"{'record':<28}{'req/s':>9}{'texts/s':>9}{'tokens/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'p99.9':>9}{'batch':>8}{'fill':>7}{'bad':>6}  stages, mean µs")
for path in sorted(pathlib.Path(sys.argv[1]).glob('*.json')):
    document = json.loads(path.read_text())
    if 'runs' not in document or path.name == 'sweep.json':
        continue
    for run in document['runs']:
        rates, counts, server = run['rates'], run['counts'], run['server'] or {}
        latency = (run['latency'] or {}).get('corrected')
        p50, p99, p999 = (latency[name] / 1e3 for name in ('p50', 'p99', 'p999')) if latency else (0, 0, 0)
        stages = ' '.join(f"{stage['name']} {stage['mean']:.0f}" for stage in run['stages'])
        errors = ' '.join(f'{kind}: {count}' for kind, count in counts['errors'].items())
        print(f"{path.stem:<28}{rates['requests']:>9.0f}{rates['texts']:>9.0f}{rates['tokens']:>10.0f}{p50:>9.3f}{p99:>9.3f}{p999:>9.3f}"
              f"{server.get('mean_batch') or 0:>8.1f}{server.get('batch_fill') or 0:>7.3f}{counts['wrong'] + counts['failed']:>6}  {stages} {errors}")
