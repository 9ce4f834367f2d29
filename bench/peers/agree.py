"""Whether several servers give the same vectors: `agree.py URL URL …`, each a route of the native or the OpenAI family.

Every text of every server is compared with the first server's by cosine, which must be at least 0.9999. Only the standard
library is needed.
"""

import json
import math
import sys
import urllib.request

COSINE_MIN = 0.9999
TEXTS = [
    "The weather is lovely today.",
    "Es ist so sonnig draußen!",
    "a",
    "今天天氣很好",
    "How many people live in Berlin? " * 12,
    "A text that is much longer than any model takes. " * 60,
]


def vectors(url: str) -> list[list[float]]:
    native = "/infer/" in url
    ask = {"documents": TEXTS} if native else {"model": "model", "input": TEXTS}
    request = urllib.request.Request(url, json.dumps(ask).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = json.load(answer)
    return body["embeddings"] if native else [item["embedding"] for item in body["data"]]


def cosine(a: list[float], b: list[float]) -> float:
    if len(a) != len(b):
        raise SystemExit(f"vectors of {len(a)} and of {len(b)} values cannot be compared")
    return sum(x * y for x, y in zip(a, b)) / (math.hypot(*a) * math.hypot(*b))


def main() -> None:
    ours, *others = [(url, vectors(url)) for url in sys.argv[1:]]
    for url, theirs in others:
        least = min(cosine(a, b) for a, b in zip(ours[1], theirs, strict=True))
        print(f"{url}: least cosine over {len(TEXTS)} texts {least:.7f}")
        if not least >= COSINE_MIN:
            raise SystemExit(f"{url} does not give the vectors of {ours[0]}: speeds would mean nothing")


if __name__ == "__main__":
    main()
