"""An embedding server after the design of the one that reactrt replaces, with onnxruntime on the CPU as its engine.

FastAPI and uvicorn in one process. Every text is padded to 256 tokens. Requests gather, up to 32 of them or until 10 ms after
the first; then all their texts are tokenized and computed together, at most 32 at once, while the next requests gather. The
.onnx, made by `reactrt convert --layout padded`, does its own pooling.

    old_design.py --model MODEL.onnx --tokenizer tokenizer.json --name NAME --port PORT [--threads N]

    GET  /health          {"status": "ok"}
    POST /infer/NAME      {"documents": ["...", ...]} -> {"embeddings": [[...], ...], "elapsed_ms": ...}

In two things it is kinder than the original: the engine runs in a thread of its own, so that it does not hold up the event
loop, and a request that the engine cannot take is refused before it can spoil a batch.
"""

import argparse
import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import numpy
import onnxruntime
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from tokenizers import Tokenizer

LENGTH = 256
REQUESTS_MAX = 32
TEXTS_MAX = 32
WINDOW_S = 0.010


class Ask(BaseModel):
    documents: list[str]


class Answer(BaseModel):
    embeddings: list[list[float]]
    elapsed_ms: float


class Engine:
    """One session and its tokenizer; called from one thread."""

    def __init__(self, model: str, tokenizer: str, threads: int):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = [given.name for given in self.session.get_inputs()]
        self.tokenizer = Tokenizer.from_file(tokenizer)
        pads = [token for token in ("[PAD]", "<pad>") if self.tokenizer.token_to_id(token) is not None]
        if not pads:
            raise SystemExit(f"{tokenizer} has neither [PAD] nor <pad>")
        self.tokenizer.enable_truncation(LENGTH)
        self.tokenizer.enable_padding(length=LENGTH, pad_id=self.tokenizer.token_to_id(pads[0]), pad_token=pads[0])

    def infer(self, texts: list[str]) -> tuple[list[list[float]], float]:
        """The vectors, and how long the session took for all of them, in milliseconds."""
        encodings = self.tokenizer.encode_batch(texts)
        vectors, elapsed_ms = [], 0.0
        for start in range(0, len(encodings), TEXTS_MAX):
            batch = encodings[start : start + TEXTS_MAX]
            columns = {
                "input_ids": [encoding.ids for encoding in batch],
                "attention_mask": [encoding.attention_mask for encoding in batch],
                "token_type_ids": [encoding.type_ids for encoding in batch],
            }
            feeds = {name: numpy.array(columns[name], dtype=numpy.int32) for name in self.inputs}
            began = time.perf_counter()
            (output,) = self.session.run(["embeddings"], feeds)
            elapsed_ms += (time.perf_counter() - began) * 1e3
            vectors.extend(output.tolist())
        return vectors, elapsed_ms


async def gather(queue: asyncio.Queue) -> list[tuple[list[str], asyncio.Future]]:
    """The next batch of requests: what comes within the window that the first one opens."""
    requests = [await queue.get()]
    end = time.monotonic() + WINDOW_S
    while len(requests) < REQUESTS_MAX:
        try:
            requests.append(await asyncio.wait_for(queue.get(), end - time.monotonic()))
        except TimeoutError:
            break
    return requests


async def work(engine: Engine, queue: asyncio.Queue) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:
        while True:
            requests = await gather(queue)
            texts = [text for documents, _ in requests for text in documents]
            try:
                vectors, elapsed_ms = await loop.run_in_executor(thread, engine.infer, texts)
            except Exception as error:  # whatever it is, those who wait are told
                for _, answer in requests:
                    if not answer.done():
                        answer.set_exception(HTTPException(500, str(error)))
                continue
            start = 0
            for documents, answer in requests:
                if not answer.done():
                    part = vectors[start : start + len(documents)]
                    answer.set_result(Answer(embeddings=part, elapsed_ms=elapsed_ms))
                start += len(documents)


def application(engine: Engine, name: str) -> FastAPI:
    queue: asyncio.Queue = asyncio.Queue()

    @asynccontextmanager
    async def life(_: FastAPI):
        worker = asyncio.create_task(work(engine, queue))
        yield
        worker.cancel()

    app = FastAPI(lifespan=life)

    @app.get("/health")
    async def health():
        return {"status": "ok"}

    @app.post("/infer/{model}")
    async def infer(model: str, ask: Ask) -> Answer:
        if model != name:
            raise HTTPException(404, f"model {model} not found")
        if not ask.documents:
            raise HTTPException(400, "documents is empty")
        answer = asyncio.get_running_loop().create_future()
        queue.put_nowait((ask.documents, answer))
        return await answer

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="An embedding server after the old design.")
    parser.add_argument("--model", required=True, help="an .onnx made by `reactrt convert --layout padded`")
    parser.add_argument("--tokenizer", required=True, help="its tokenizer.json")
    parser.add_argument("--name", required=True, help="what the route calls it")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the session (default: one per core)")
    given = parser.parse_args()
    engine = Engine(given.model, given.tokenizer, given.threads)
    # The first run plans its memory.
    engine.infer(["warm"])
    uvicorn.run(application(engine, given.name), host="127.0.0.1", port=given.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
