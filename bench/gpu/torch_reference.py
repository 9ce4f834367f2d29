"""What torch does with the same weights on this GPU, with no server around it.

    torch_reference.py FOLDER bulk     fp16, texts sorted by length, batches of 16,384 tokens at most, padded to their longest:
                                       texts and useful tokens a second, for 32 tokens (w1), 256 (w2) and log-normal lengths (w3)
    torch_reference.py FOLDER sweep    N texts of 32 tokens: one after another, in one batch, and in one batch by a CUDA graph, ms

Lengths are those of the served workloads; the model's first token is the vector, as served. cuDNN attention is off: it plans
every new shape for seconds."""
import sys
import time

import numpy
import torch
from transformers import XLMRobertaModel

torch.backends.cuda.enable_cudnn_sdp(False)
device = 'cuda'
model = XLMRobertaModel.from_pretrained(sys.argv[1], dtype=torch.float16, attn_implementation='sdpa').to(device).eval()
random = numpy.random.default_rng(20261130)
TOKENS = 16_384


def lengths(kind, count):
    if kind == 'w1':
        return numpy.full(count, 32)
    if kind == 'w2':
        return numpy.full(count, 256)
    return numpy.clip(numpy.rint(numpy.exp(random.normal(numpy.log(30), 0.9, count))), 4, 254).astype(int) + 2


def batches(kind):
    """Host tensors: what a program that has all its texts beforehand would make."""
    made, batch, longest = [], [], 0
    for length in sorted(lengths(kind, {'w1': 40_000, 'w2': 8_000, 'w3': 30_000}[kind])):
        if batch and max(longest, length) * (len(batch) + 1) > TOKENS:
            made.append((len(batch), longest, numpy.array(batch)))
            batch, longest = [], 0
        batch.append(length)
        longest = max(longest, length)
    made.append((len(batch), longest, numpy.array(batch)))
    out = []
    for rows, length, each in made:
        ids = torch.from_numpy(random.integers(5, 250_000, (rows, length)))
        mask = torch.from_numpy((numpy.arange(length)[None, :] < each[:, None]).astype(numpy.int64))
        ids[mask == 0] = 1
        # Without a mask where nothing is padded: torch then takes its faster kernel.
        out.append((ids.pin_memory(), None if bool(mask.all()) else mask.pin_memory(), int(each.sum())))
    return out


@torch.inference_mode()
def embed(ids, mask):
    if mask is not None:
        mask = mask.to(device, non_blocking=True)
    hidden = model(input_ids=ids.to(device, non_blocking=True), attention_mask=mask).last_hidden_state[:, 0]
    return torch.nn.functional.normalize(hidden.float(), dim=1).to('cpu', non_blocking=True)


def bulk():
    for kind in ['w1', 'w2', 'w3']:
        work = batches(kind)
        for ids, mask, _ in work[:: max(1, len(work) // 12)]:
            embed(ids, mask)
        torch.cuda.synchronize()
        best = None
        for _ in range(3):
            start = time.perf_counter()
            out = [embed(ids, mask) for ids, mask, _ in work]
            torch.cuda.synchronize()
            elapsed = time.perf_counter() - start
            best = min(best or elapsed, elapsed)
            assert all(torch.isfinite(vector).all() for vector in out)
        texts, tokens = sum(len(ids) for ids, _, _ in work), sum(count for _, _, count in work)
        print(f'torch bulk {kind}: {texts / best:.0f} texts/s, {tokens / best:.0f} useful tokens/s', flush=True)


@torch.inference_mode()
def sweep():
    def timed(run, count=20):
        times = []
        for _ in range(count):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        return sorted(times)[count // 2]

    for rows in [1, 2, 4, 8, 16, 32, 64]:
        ids = torch.randint(5, 250_000, (rows, 32)).pin_memory()
        for _ in range(3):
            embed(ids, None)
        one = ids[:1].clone().pin_memory()
        serial = timed(lambda: [(embed(one, None), torch.cuda.synchronize()) for _ in range(rows)], 7)
        batched = timed(lambda: embed(ids, None))
        still = ids.to(device)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(input_ids=still)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch.nn.functional.normalize(model(input_ids=still).last_hidden_state[:, 0].float(), dim=1)

        def replay():
            still.copy_(ids, non_blocking=True)
            graph.replay()
            out.to('cpu', non_blocking=True)

        print(f'torch sweep {rows:>2} texts: serial {serial:.3f} ms, batch {batched:.3f} ms, graph {timed(replay):.3f} ms', flush=True)


{'bulk': bulk, 'sweep': sweep}[sys.argv[2]]()
