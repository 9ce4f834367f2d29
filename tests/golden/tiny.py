"""Tiny tokenizers, trained repeatably, and tiny models with random weights, saved as Hugging Face folders.

Owns how a folder comes to be; what a folder should answer is `generate.py`'s. The folders differ in everything that
real folders differ in: kind of file, type of number, names of tensors, presence of a manifest, order of labels.

Invariant: the same versions of the libraries give the same bytes, and no folder exceeds FOLDER_BYTES_MAX.
"""

import io
import json
import tempfile
import unicodedata
from dataclasses import dataclass, field

import sentencepiece
import torch
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig, BertForSequenceClassification, BertModel, CamembertConfig, CamembertModel, RobertaConfig,
    RobertaForSequenceClassification, RobertaModel, XLMRobertaConfig, XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from corpus import SENTENCES

FOLDER_BYTES_MAX = 400_000

# ---------------------------------------------------------------------------------------------------------------------
# Tokenizers
# ---------------------------------------------------------------------------------------------------------------------


def special(content, **more):
    return AddedToken(content, special=True, normalized=False, **more)


def bert_tokenizer(lowercase, vocabulary):
    """WordPiece behind BERT's normaliser and its pair template with token types."""
    normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)
    split = pre_tokenizers.BertPreTokenizer()
    inner = sorted({character for sentence in SENTENCES
                    for word, _ in split.pre_tokenize_str(normalizer.normalize_str(sentence)) for character in word[1:]})
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # The trainer meets the inner characters in an order that varies from run to run, and ties between merges fall
    # accordingly: naming them up front, in order, makes it repeatable.
    trained = Tokenizer(models.WordPiece({}, unk_token="[UNK]"))
    trained.normalizer = normalizer
    trained.pre_tokenizer = split
    trained.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=specials + [f"##{character}" for character in inner],
        show_progress=False))
    pieces = sorted(set(trained.get_vocab()) - set(specials))
    numbered = {piece: index for index, piece in enumerate(specials + pieces)}
    tokenizer = Tokenizer(models.WordPiece(numbered, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split
    tokenizer.add_special_tokens([special(content) for content in specials])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbered["[CLS]"]), ("[SEP]", numbered["[SEP]"])])
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def roberta_tokenizer(vocabulary):
    """Byte-level BPE, `<s> a </s></s> b </s>`, ids in RoBERTa's order; `<mask>` swallows the blank before it."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(
        vocab_size=vocabulary - 1, special_tokens=specials, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.add_special_tokens([special(content) for content in specials])
    tokenizer.add_special_tokens([special("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(
        sep=("</s>", 2), cls=("<s>", 0), trim_offsets=True, add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def normalization_rules():
    """XLM-RoBERTa's normaliser in small, source text to target text: the same rules (NFKC, blanks to a space, control
    characters away) for the characters of these tests and their neighbourhoods. The complete map is 300 KB in
    tokenizer.json and is checked with the real tokenizer."""
    rules = {}
    blocks = [(0xA0, 0x24F), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2070, 0x214F), (0x2150, 0x218B), (0x2460, 0x24FF),
              (0x3000, 0x30FF), (0x3130, 0x318F), (0x3300, 0x33FF), (0xFB00, 0xFB06), (0xFDFA, 0xFDFA),
              (0xFE70, 0xFEFC), (0xFF00, 0xFFEF)]
    for first, last in blocks:
        for code in range(first, last + 1):
            character = chr(code)
            composed = unicodedata.normalize("NFKC", character)
            if composed != character:
                rules[character] = composed
            spread = unicodedata.normalize("NFD", composed)
            if len(spread) > 1 and unicodedata.normalize("NFKC", spread) == composed:
                rules[spread] = composed
    for base in map(chr, range(0xFF66, 0xFF9E)):  # half-width kana with its voicing mark
        for mark in "\uff9e\uff9f":
            composed = unicodedata.normalize("NFKC", base + mark)
            if len(composed) == 1:
                rules[base + mark] = composed
    for code in [*range(0x01, 0x09), 0x0B, *range(0x0E, 0x20), 0x7F, 0x8F, 0x9F]:
        rules[chr(code)] = ""
    for code in [0x09, 0x0A, 0x0C, 0x0D, 0x1680, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2028, 0x2029, 0x2581, 0xFEFF,
                 0xFFFD]:
        rules[chr(code)] = " "
    return rules


def train_unigram(vocabulary):
    """SentencePiece itself, as the real models were made: the compiled normaliser, and pieces with their scores."""
    def points(text):
        return " ".join(f"{ord(character):X}" for character in text)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        for source, target in sorted(normalization_rules().items()):
            file.write(f"{points(source)}\t{points(target)}\n")
        file.flush()
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES), model_writer=written, model_type="unigram", vocab_size=vocabulary,
            hard_vocab_limit=False, character_coverage=1.0, normalization_rule_tsv=file.name, num_threads=1,
            minloglevel=2)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(written.getvalue())
    pieces = [(piece.piece, round(piece.score, 6)) for piece in model.pieces if piece.type == piece.NORMAL]
    return model.normalizer_spec.precompiled_charsmap, pieces


def unigram_tokenizer(vocabulary, camembert):
    """Unigram behind the normaliser and Metaspace set-up of XLM-RoBERTa or of CamemBERT."""
    precompiled, pieces = train_unigram(vocabulary)
    normalizer = normalizers.Sequence([normalizers.Precompiled(precompiled), normalizers.Replace(Regex(" {2,}"), " ")])
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    if camembert:
        head = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
    else:
        head = ["<s>", "<pad>", "</s>", "<unk>"]
    numbered = [(content, 0.0) for content in head] + pieces + [("<mask>", 0.0)]
    ids = {piece: index for index, (piece, _) in enumerate(numbered)}
    tokenizer = Tokenizer(models.Unigram(numbered, unk_id=ids["<unk>"], byte_fallback=False))
    tokenizer.normalizer = normalizer
    # Real files have either form: newer ones split at blanks first, older ones leave that to Metaspace.
    if camembert:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    else:
        tokenizer.pre_tokenizer = metaspace
    tokenizer.add_special_tokens([special(content) for content in head])
    tokenizer.add_special_tokens([special("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A", "</s>"], pair=["<s>", "$A", "</s>", "</s>", "$B", "</s>"],
        special_tokens=[("<s>", ids["<s>"]), ("</s>", ids["</s>"])])
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return tokenizer


TOKENIZERS = {
    "bert": lambda: bert_tokenizer(lowercase=True, vocabulary=1000),
    "bert-cased": lambda: bert_tokenizer(lowercase=False, vocabulary=900),
    "roberta": lambda: roberta_tokenizer(vocabulary=900),
    "xlm-roberta": lambda: unigram_tokenizer(vocabulary=800, camembert=False),
    "camembert": lambda: unigram_tokenizer(vocabulary=700, camembert=True),
}

BERT_NAMES = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
              "mask_token": "[MASK]"}
ROBERTA_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
                 "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}

# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Tiny:
    """One folder. `length` is the model's max_length as its files say it, `length_from` the file that says so."""

    name: str
    model: type
    config: type
    tokenizer: str
    tokenizer_class: str
    seed: int
    length: int
    length_from: str  # "sentence_bert", "tokenizer", "positions" or "huge" (a number that means: no limit)
    weights: str = "safetensors"  # or "bin", "safetensors-sharded", "bin-sharded"
    dtype: torch.dtype = torch.float32
    names: str = "plain"  # "prefixed": as saved from a model with a head; "legacy": LayerNorm.gamma and .beta too
    pooling: str | None = None
    normalize: bool = False
    manifest: bool = False
    labels: list = field(default_factory=list)
    prompts: dict = field(default_factory=dict)
    default_prompt: str | None = None
    baked: bool = False  # truncation and fixed padding inside tokenizer.json, to be ignored
    geometry: dict = field(default_factory=dict)

    @property
    def task(self):
        return "embedding" if self.pooling else "nli" if self.labels else "reranking"

    @property
    def is_bert(self):
        return self.config is BertConfig


def geometry(hidden, intermediate, layers, positions, **more):
    return {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": 4, "max_position_embeddings": positions, **more}


TINY = [
    Tiny("bert-embedding-mean", BertModel, BertConfig, "bert", "BertTokenizer", 1, 40, "sentence_bert",
         pooling="mean", normalize=True, manifest=True, geometry=geometry(40, 88, 3, 64)),
    Tiny("bert-embedding-cls", BertModel, BertConfig, "bert", "BertTokenizer", 2, 48, "tokenizer", weights="bin",
         names="legacy", pooling="cls", manifest=True, baked=True, geometry=geometry(32, 64, 2, 64)),
    Tiny("bert-reranker", BertForSequenceClassification, BertConfig, "bert", "BertTokenizer", 3, 56, "positions",
         weights="safetensors-sharded", geometry=geometry(40, 72, 2, 56)),
    Tiny("bert-nli", BertForSequenceClassification, BertConfig, "bert-cased", "BertTokenizer", 4, 64, "tokenizer",
         dtype=torch.float16, labels=["entailment", "contradiction", "neutral"],
         geometry=geometry(36, 70, 2, 64, hidden_act="gelu_new")),
    Tiny("roberta-embedding", RobertaModel, RobertaConfig, "roberta", "RobertaTokenizer", 5, 44, "sentence_bert",
         dtype=torch.bfloat16, pooling="mean", manifest=True, prompts={"query": "query: ", "passage": "passage: "},
         default_prompt="query", geometry=geometry(48, 80, 3, 66)),
    Tiny("roberta-reranker", RobertaForSequenceClassification, RobertaConfig, "roberta", "RobertaTokenizer", 6, 64,
         "positions", weights="bin-sharded", geometry=geometry(32, 64, 2, 66, hidden_act="relu")),
    Tiny("roberta-nli", RobertaForSequenceClassification, RobertaConfig, "roberta", "RobertaTokenizer", 7, 64,
         "tokenizer", labels=["contradiction", "neutral", "entailment"], geometry=geometry(40, 64, 2, 66)),
    Tiny("xlm-roberta-embedding", XLMRobertaModel, XLMRobertaConfig, "xlm-roberta", "XLMRobertaTokenizer", 8, 96,
         "sentence_bert", names="prefixed", pooling="cls", normalize=True, manifest=True,
         geometry=geometry(48, 96, 2, 98)),
    Tiny("xlm-roberta-reranker", XLMRobertaForSequenceClassification, XLMRobertaConfig, "xlm-roberta",
         "XLMRobertaTokenizer", 9, 50, "huge", geometry=geometry(32, 56, 3, 52)),
    Tiny("xlm-roberta-nli", XLMRobertaForSequenceClassification, XLMRobertaConfig, "xlm-roberta",
         "XLMRobertaTokenizer", 10, 64, "tokenizer", labels=["neutral", "entailment", "contradiction"],
         geometry=geometry(32, 64, 2, 66)),
    Tiny("camembert-embedding", CamembertModel, CamembertConfig, "camembert", "CamembertTokenizer", 11, 64, "tokenizer",
         pooling="mean", geometry=geometry(32, 64, 2, 66)),
]


def build(tiny, tokenizer):
    """The model of one folder. Weights are wide (matrices 0.25, embeddings 0.5, LayerNorm gains around 1 with 0.3) so
    that a wrong mask, position, type or pooling moves the output by far more than the tolerance."""
    torch.manual_seed(tiny.seed)
    settings = dict(tiny.geometry, vocab_size=tokenizer.get_vocab_size(), type_vocab_size=2 if tiny.is_bert else 1)
    if tiny.is_bert:
        settings.update(pad_token_id=tokenizer.token_to_id("[PAD]"), layer_norm_eps=1e-12)
    else:
        settings.update(pad_token_id=tokenizer.token_to_id("<pad>"), bos_token_id=tokenizer.token_to_id("<s>"),
                        eos_token_id=tokenizer.token_to_id("</s>"), layer_norm_eps=1e-5)
    if tiny.labels:
        settings.update(id2label=dict(enumerate(tiny.labels)), label2id={n: i for i, n in enumerate(tiny.labels)})
    elif tiny.task == "reranking":
        settings.update(num_labels=1)
    model = tiny.model(tiny.config(**settings)).eval()
    generator = torch.Generator().manual_seed(tiny.seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if "LayerNorm.weight" in name:
                tensor.copy_(1 + 0.3 * noise)
            elif name.endswith("bias"):
                tensor.copy_(0.3 * noise)
            else:
                tensor.copy_((0.5 if "embeddings" in name else 0.25) * noise)
            tensor.copy_(tensor.to(tiny.dtype).float())  # the reference computes in fp32 from what is stored
    return model


def stored_names(tiny, model):
    """The state as it is written: tensors by the name they have in the file."""
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if tiny.names != "plain":
        prefix = model.base_model_prefix
        state = {f"{prefix}.{name}": tensor for name, tensor in state.items()}
    if tiny.names == "legacy":
        state = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
                 for name, tensor in state.items()}
        positions = model.config.max_position_embeddings
        state["bert.embeddings.position_ids"] = torch.arange(positions).unsqueeze(0)
        state["cls.predictions.bias"] = torch.zeros(model.config.vocab_size)
        # Views of one storage, as some exporters leave them: an offset into the storage is to be honoured.
        for layer in range(model.config.num_hidden_layers):
            names = [f"bert.encoder.layer.{layer}.attention.self.{part}.weight" for part in ("query", "key", "value")]
            for name, view in zip(names, torch.stack([state[name] for name in names])):
                state[name] = view
    return {name: tensor.to(tiny.dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def save_weights(tiny, model, folder):
    state = stored_names(tiny, model)
    whole = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}
    kind = tiny.weights.removesuffix("-sharded")
    def save(part, path):
        if kind == "bin":
            torch.save(part, path)
        else:
            save_file({name: tensor.contiguous() for name, tensor in part.items()}, path, metadata={"format": "pt"})
    if kind == tiny.weights:
        save(state, folder / whole[kind])
        return
    names, count = sorted(state), 3
    shards = [names[index::count] for index in range(count)]
    stem, ending = whole[kind].rsplit(".", 1)
    weight_map = {}
    for index, shard in enumerate(shards):
        file = f"{stem}-{index + 1:05}-of-{count:05}.{ending}"
        save({name: state[name] for name in shard}, folder / file)
        weight_map.update({name: file for name in shard})
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    write_json(folder / f"{whole[kind]}.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n")


def save_tokenizer(tiny, tokenizer, folder):
    text = json.loads(tokenizer.to_str())
    if tiny.baked:
        text["truncation"] = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
        text["padding"] = {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "[PAD]"}
    (folder / "tokenizer.json").write_text(json.dumps(text, ensure_ascii=False, separators=(",", ":")))
    settings = dict(BERT_NAMES if tiny.is_bert else ROBERTA_NAMES, tokenizer_class=tiny.tokenizer_class)
    if tiny.tokenizer == "bert-cased":
        settings.update(do_lower_case=False)
    elif tiny.is_bert:
        settings.update(do_lower_case=True)
    elif tiny.tokenizer == "roberta":
        settings.update(add_prefix_space=False, trim_offsets=True)
    if tiny.length_from == "tokenizer":
        settings.update(model_max_length=tiny.length)
    elif tiny.length_from == "sentence_bert":
        settings.update(model_max_length=tiny.length + 8)
    elif tiny.length_from == "huge":
        settings.update(model_max_length=int(1e30))
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "special_tokens_map.json", BERT_NAMES if tiny.is_bert else ROBERTA_NAMES)


def save_manifest(tiny, folder):
    """What sentence-transformers writes beside the model."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + ([("2_Normalize", "Normalize")] if tiny.normalize else [])
    write_json(folder / "modules.json", [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)])
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": tiny.geometry["hidden_size"], "pooling_mode_cls_token": tiny.pooling == "cls",
        "pooling_mode_mean_tokens": tiny.pooling == "mean", "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False})
    if tiny.length_from == "sentence_bert":
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": tiny.length, "do_lower_case": False})
    if tiny.prompts:
        write_json(folder / "config_sentence_transformers.json", {
            "__version__": {"sentence_transformers": "2.7.0"}, "prompts": tiny.prompts,
            "default_prompt_name": tiny.default_prompt})


def save(tiny, tokenizer, folder):
    """Writes one folder and returns the model that was written."""
    folder.mkdir(parents=True)
    model = build(tiny, tokenizer)
    settings = model.config.to_dict()
    settings.update(architectures=[tiny.model.__name__], torch_dtype=str(tiny.dtype).removeprefix("torch."))
    if tiny.task != "nli":
        settings.pop("id2label", None), settings.pop("label2id", None)
    if tiny.task == "reranking":
        settings.update(id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
    write_json(folder / "config.json", dict(sorted(settings.items())))
    save_weights(tiny, model, folder)
    save_tokenizer(tiny, tokenizer, folder)
    if tiny.manifest:
        save_manifest(tiny, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < FOLDER_BYTES_MAX, f"{tiny.name}: {size} bytes"
    return model
