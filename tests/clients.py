"""The clients people already have, against this server: the official OpenAI client and plain `requests`.

    python3 -m venv target/clients && target/clients/bin/pip install openai==3.57.0 requests==2.32.5
    target/clients/bin/python tests/clients.py [target/release/reactrt]

Starts the binary (default: target/debug/reactrt) with the small models of tests/fixtures/three-tasks.yaml on a port of the
system's choosing, runs every check, stops it, and prints what passed.
"""

import json
import math
import os
import re
import signal
import struct
import subprocess
import sys

import base64
import requests
from openai import APIStatusError, BadRequestError, NotFoundError, OpenAI

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def start(binary):
    """The server's process and its base URL."""
    command = [binary, "serve", "--config", "tests/fixtures/three-tasks.yaml", "--port", "0", "--devices", "cpu"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = re.search(r"listening on (http://\S+)", line)
        if found:
            return process, found.group(1)
    raise SystemExit(f"the server ended with {process.wait()}")


def close(one, other):
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-7) for a, b in zip(one, other))


def openai_embeddings_by_default_and_as_floats(base):
    client = OpenAI(api_key="EMPTY", base_url=f"{base}/v1")
    texts = ["The weather is lovely today.", "今天天氣很好"]
    # Without a format of its own the client asks for base64 and decodes it.
    default = client.embeddings.create(model="tiny-embedding", input=texts)
    floats = client.embeddings.create(model="tiny-embedding", input=texts, encoding_format="float")
    native = requests.post(f"{base}/infer/tiny-embedding", json={"documents": texts}).json()["embeddings"]
    for index in range(2):
        assert default.data[index].index == index and default.data[index].object == "embedding"
        assert close(default.data[index].embedding, floats.data[index].embedding)
        assert close(floats.data[index].embedding, native[index])
    raw = client.embeddings.with_raw_response.create(model="tiny-embedding", input=texts)
    sent = json.loads(raw.http_request.content)
    assert sent["encoding_format"] == "base64", sent
    text = json.loads(raw.text)["data"][0]["embedding"]
    vector = struct.unpack(f"<{len(native[0])}f", base64.b64decode(text))
    assert close(vector, native[0])
    assert default.usage.prompt_tokens == default.usage.total_tokens > 6
    assert default.model == "tiny-embedding"


def openai_errors_are_its_own_exceptions(base):
    client = OpenAI(api_key="EMPTY", base_url=f"{base}/v1", max_retries=0)
    for kind, arguments in [
        (NotFoundError, {"model": "nope", "input": "a"}),
        (BadRequestError, {"model": "tiny-embedding", "input": ""}),
        (BadRequestError, {"model": "tiny-embedding", "input": []}),
        (BadRequestError, {"model": "tiny-nli", "input": "a"}),
    ]:
        try:
            client.embeddings.create(**arguments)
        except APIStatusError as error:
            assert type(error) is kind, (type(error), arguments)
            assert error.request_id and error.body["message"], error.body
        else:
            raise AssertionError(f"accepted: {arguments}")


def openai_lists_models(base):
    client = OpenAI(api_key="EMPTY", base_url=f"{base}/v1")
    assert {model.id for model in client.models.list()} == {"tiny-embedding", "tiny-reranker", "tiny-nli"}


def old_readme_openai_embedding(base):
    client = OpenAI(
        api_key="EMPTY",  # any value
        base_url=f"{base}/v1"
    )
    text = "這是一個測試文本"
    response = client.embeddings.create(
        input=[text],
        model="tiny-embedding"
    )
    assert all(math.isfinite(value) for value in response.data[0].embedding)


def old_readme_openai_reranker(base):
    client = OpenAI(
        api_key="EMPTY",
        base_url=f"{base}/v1"
    )
    documents = [
        "機器學習最好通過專案來學習",
        "理論對於理解機器學習很重要"
    ]
    response = client.embeddings.create(
        model="tiny-reranker",
        input=documents,
        extra_body={"query": "理論對於理解機器學習很重要"}
    )
    scores = [data.embedding for data in response.data]
    assert len(scores) == 2 and all(type(score) is float for score in scores), scores
    payload = {"query": "理論對於理解機器學習很重要", "documents": documents}
    native = requests.post(f"{base}/infer/tiny-reranker", json=payload).json()["scores"]
    assert close(scores, native)


def old_readme_requests_embedding(base):
    url = f"{base}/infer/tiny-embedding"
    payload = {"documents": ["這是一個測試文本", "另一個測試文本"]}
    response = requests.post(url, json=payload)
    body = response.json()
    assert response.status_code == 200 and len(body["embeddings"]) == 2 and body["elapsed_ms"] > 0


def old_readme_requests_reranker(base):
    url = f"{base}/infer/tiny-reranker"
    payload = {
        "query": "機器學習的理論很重要",
        "documents": [
            "理論對於理解機器學習非常重要",
            "實作經驗在機器學習中也很關鍵"
        ]
    }
    response = requests.post(url, json=payload)
    assert response.status_code == 200 and len(response.json()["scores"]) == 2


def old_readme_requests_nli(base):
    url = f"{base}/infer/tiny-nli"
    payload = {
        "premises": ["今天天氣很好", "貓是動物"],
        "hypotheses": ["今天是晴天", "狗是動物"]
    }
    response = requests.post(url, json=payload)
    body = response.json()
    labels = {"entailment", "neutral", "contradiction"}
    assert response.status_code == 200 and set(body["predictions"]) <= labels
    assert [len(logits) for logits in body["logits"]] == [3, 3]


CHECKS = [
    openai_embeddings_by_default_and_as_floats,
    openai_errors_are_its_own_exceptions,
    openai_lists_models,
    old_readme_openai_embedding,
    old_readme_openai_reranker,
    old_readme_requests_embedding,
    old_readme_requests_reranker,
    old_readme_requests_nli,
]


def main():
    binary = os.path.join(ROOT, sys.argv[1] if len(sys.argv) > 1 else "target/debug/reactrt")
    process, base = start(binary)
    failed = 0
    try:
        for check in CHECKS:
            try:
                check(base)
                print(f"ok     {check.__name__}")
            except Exception as error:
                failed += 1
                print(f"FAILED {check.__name__}: {type(error).__name__}: {error}")
    finally:
        process.send_signal(signal.SIGTERM)
        ended = process.wait(timeout=30)
    assert ended == 0, f"the server ended with {ended}"
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
