"""An embedding server after the design of the one that reactrt replaces, with onnxruntime on the CPU as its engine, or torch on
a GPU.

FastAPI and uvicorn in one process. Every text is padded to 256 tokens. Requests gather, up to 32 of them or until 10 ms after
the first; then all their texts are tokenized and computed together, at most 32 at once, while the next requests gather. The
.onnx, made by `reactrt convert --layout padded`, does its own pooling. On a GPU one captured CUDA graph for each batch size of
GRAPHS stands for the original's engine: no cost of launching, none of new shapes.

    old_design.py --model MODEL.onnx --tokenizer tokenizer.json --name NAME --port PORT [--threads N]
    old_design.py --torch FOLDER --name NAME --port PORT

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
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from tokenizers import Tokenizer

LENGTH = 256
REQUESTS_MAX = 32
TEXTS_MAX = 32
WINDOW_S = 0.010
GRAPHS = (1, 2, 4, 8, 16, 24, 32)


class Ask(BaseModel):
    documents: list[str]


class Answer(BaseModel):
    embeddings: list[list[float]]
    elapsed_ms: float


class Engine:
    """One session and its tokenizer; called from one thread."""

    def __init__(self, model: str, tokenizer: str, threads: int):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = [given.name for given in self.session.get_inputs()]
        self.tokenizer = padding_tokenizer(tokenizer)

    def run(self, batch) -> tuple[list[list[float]], float]:
        columns = {
            "input_ids": [encoding.ids for encoding in batch],
            "attention_mask": [encoding.attention_mask for encoding in batch],
            "token_type_ids": [encoding.type_ids for encoding in batch],
        }
        feeds = {name: numpy.array(columns[name], dtype=numpy.int32) for name in self.inputs}
        began = time.perf_counter()
        (output,) = self.session.run(["embeddings"], feeds)
        return output.tolist(), (time.perf_counter() - began) * 1e3

    def infer(self, texts: list[str]) -> tuple[list[list[float]], float]:
        """The vectors, and how long the session took for all of them, in milliseconds."""
        encodings = self.tokenizer.encode_batch(texts)
        vectors, elapsed_ms = [], 0.0
        for start in range(0, len(encodings), TEXTS_MAX):
            output, batch_ms = self.run(encodings[start : start + TEXTS_MAX])
            elapsed_ms += batch_ms
            vectors.extend(output)
        return vectors, elapsed_ms


class TorchEngine(Engine):
    """The same in half precision on a GPU, a captured graph for each batch size: first token, normalised."""

    def __init__(self, folder: str):
        import torch
        from transformers import AutoModel

        self.torch = torch
        self.tokenizer = padding_tokenizer(os.path.join(folder, "tokenizer.json"))
        # cuDNN attention plans every new shape for seconds.
        torch.backends.cuda.enable_cudnn_sdp(False)
        options = {"dtype": torch.float16, "attn_implementation": "sdpa"}
        self.model = AutoModel.from_pretrained(folder, **options).to("cuda").eval()
        with torch.inference_mode():
            self.graphs = {size: self.capture(size) for size in reversed(GRAPHS)}

    def capture(self, size: int):
        torch = self.torch
        ids = torch.full((size, LENGTH), 5, device="cuda")
        mask = torch.ones_like(ids)
        mask[:, LENGTH // 2 :] = 0

        def once():
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
            return torch.nn.functional.normalize(hidden.float(), dim=1)

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                once()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            vectors = once()
        return graph, ids, mask, vectors

    def run(self, batch) -> tuple[list[list[float]], float]:
        began = time.perf_counter()
        graph, ids, mask, vectors = self.graphs[next(size for size in GRAPHS if size >= len(batch))]
        with self.torch.inference_mode():
            ids[: len(batch)].copy_(self.torch.tensor([encoding.ids for encoding in batch]))
            mask[: len(batch)].copy_(self.torch.tensor([encoding.attention_mask for encoding in batch]))
            graph.replay()
            return vectors[: len(batch)].cpu().tolist(), (time.perf_counter() - began) * 1e3


def padding_tokenizer(path: str) -> Tokenizer:
    """Cuts and pads every text to LENGTH."""
    tokenizer = Tokenizer.from_file(path)
    pads = [token for token in ("[PAD]", "<pad>") if tokenizer.token_to_id(token) is not None]
    if not pads:
        raise SystemExit(f"{path} has neither [PAD] nor <pad>")
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH, pad_id=tokenizer.token_to_id(pads[0]), pad_token=pads[0])
    return tokenizer


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
    parser.add_argument("--model", help="an .onnx made by `reactrt convert --layout padded`")
    parser.add_argument("--tokenizer", help="its tokenizer.json")
    parser.add_argument("--torch", metavar="FOLDER", help="instead of both: a model folder, for the GPU")
    parser.add_argument("--name", required=True, help="what the route calls it")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the session (default: one per core)")
    given = parser.parse_args()
    if given.torch:
        engine = TorchEngine(given.torch)
    elif given.model and given.tokenizer:
        engine = Engine(given.model, given.tokenizer, given.threads)
    else:
        parser.error("--model and --tokenizer are needed, or --torch")
    # The first run plans its memory.
    engine.infer(["warm"])
    uvicorn.run(application(engine, given.name), host="127.0.0.1", port=given.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
