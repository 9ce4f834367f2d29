"""Makes model folders of the XLM-RoBERTa-large geometry with seeded random weights in half precision: an embedding model
(first-token pooling, normalised), a reranker (one score) and an NLI model (three labels), and a tokenizer of whole words.

Usage: make_models.py OUT [embedding reranker nli] [--small]

Random weights give vectors without meaning, but every shape, cost and rounding is the real one's."""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification, XLMRobertaModel

out = pathlib.Path(sys.argv[1])
small = '--small' in sys.argv
kinds = [word for word in sys.argv[2:] if not word.startswith('--')] or ['embedding', 'reranker', 'nli']
WORDS = 250_002
GEOMETRY = dict(vocab_size=WORDS, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                max_position_embeddings=514, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                layer_norm_eps=1e-5, hidden_act='gelu', position_embedding_type='absolute')
if small:
    GEOMETRY.update(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
HEADS = {'embedding': (XLMRobertaModel, {}),
         'reranker': (XLMRobertaForSequenceClassification, {'num_labels': 1}),
         'nli': (XLMRobertaForSequenceClassification,
                 {'id2label': {0: 'contradiction', 1: 'neutral', 2: 'entailment'},
                  'label2id': {'contradiction': 0, 'neutral': 1, 'entailment': 2}})}


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1))


def tokenizer():
    specials = ['<s>', '<pad>', '</s>', '<unk>']
    vocabulary = {word: index for index, word in enumerate(specials)}
    vocabulary.update({f'w{index}': index + 4 for index in range(WORDS - 4)})
    made = Tokenizer(models.WordLevel(vocabulary, unk_token='<unk>'))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(specials)
    made.post_processor = processors.TemplateProcessing(
        single='<s> $A </s>', pair='<s> $A </s> </s> $B </s>', special_tokens=[('<s>', 0), ('</s>', 2)])
    return made


def make(kind):
    folder = out / kind
    folder.mkdir(parents=True, exist_ok=True)
    network, extra = HEADS[kind]
    torch.manual_seed(1 + list(HEADS).index(kind))
    config = XLMRobertaConfig(**GEOMETRY, **extra)
    with torch.device('cuda' if torch.cuda.is_available() else 'cpu'):
        model = network(config)
    # The library's initial weights are so small that every text ends up nearly alike; spread them.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and 'embeddings' not in name:
                weight.mul_(2)
    weights = {name: value.half().contiguous().cpu() for name, value in model.state_dict().items()
               if not name.endswith('position_ids')}
    save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
    settings = json.loads(config.to_json_string(use_diff=False))
    settings.update(architectures=[network.__name__], torch_dtype='float16', model_type='xlm-roberta')
    write_json(folder / 'config.json', settings)
    tokenizer().save(str(folder / 'tokenizer.json'))
    write_json(folder / 'tokenizer_config.json', {
        'tokenizer_class': 'PreTrainedTokenizerFast', 'model_max_length': 512, 'bos_token': '<s>', 'eos_token': '</s>',
        'cls_token': '<s>', 'sep_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>'})
    if kind == 'embedding':
        write_json(folder / 'modules.json', [
            {'idx': 0, 'name': '0', 'path': '', 'type': 'sentence_transformers.models.Transformer'},
            {'idx': 1, 'name': '1', 'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'},
            {'idx': 2, 'name': '2', 'path': '2_Normalize', 'type': 'sentence_transformers.models.Normalize'}])
        write_json(folder / '1_Pooling' / 'config.json', {
            'word_embedding_dimension': GEOMETRY['hidden_size'], 'pooling_mode_cls_token': True,
            'pooling_mode_mean_tokens': False, 'pooling_mode_max_tokens': False,
            'pooling_mode_mean_sqrt_len_tokens': False})
        write_json(folder / 'sentence_bert_config.json', {'max_seq_length': 512, 'do_lower_case': False})
    print(f'{folder}: {sum(value.numel() for value in weights.values()) / 1e6:.0f} M parameters', flush=True)


for kind in kinds:
    make(kind)
