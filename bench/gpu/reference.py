"""Compares what the GPU device gave (`tests/gpu.rs --dump FILE`) with transformers in single precision on the same folders.

Usage: reference.py FOLDER_OF_MODELS DUMP.jsonl

For each model, layout and bucket: the smallest cosine, the largest difference relative to the largest value, and, for single
scores, whether ranks agree wherever the reference's scores are further apart than the differences found, and how far
transformers' own half precision is from the reference. Exit code 1 below a cosine of 0.999."""
import collections
import json
import pathlib
import sys

import torch
from transformers import AutoModel, AutoModelForSequenceClassification

torch.backends.cuda.enable_cudnn_sdp(False)
torch.backends.cuda.matmul.allow_tf32 = False
device = 'cuda' if torch.cuda.is_available() else 'cpu'
root = pathlib.Path(sys.argv[1])
groups = collections.defaultdict(list)
for line in open(sys.argv[2]):
    case = json.loads(line)
    groups[case['model'], case['task']].append(case)

failed = False
for (name, task), cases in groups.items():
    network = AutoModel if task == 'embedding' else AutoModelForSequenceClassification
    model = network.from_pretrained(root / name, dtype=torch.float32).to(device).eval()
    half_model = network.from_pretrained(root / name, dtype=torch.float16).to(device).eval() if task == 'reranking' else None
    pooling = json.loads((root / name / '1_Pooling' / 'config.json').read_text()) if task == 'embedding' else {}
    normalize = task == 'embedding' and 'Normalize' in (root / name / 'modules.json').read_text()
    rows = collections.defaultdict(list)
    for case in cases:
        ids = torch.tensor([case['ids']], device=device)
        more = {}
        if getattr(model.config, 'type_vocab_size', 1) > 1:
            more['token_type_ids'] = torch.tensor([case['types']], device=device)
        with torch.no_grad():
            result = model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
        if task == 'embedding':
            hidden = result.last_hidden_state[0].double()
            vector = hidden[0] if pooling.get('pooling_mode_cls_token') else hidden.mean(0)
            if normalize:
                vector = vector / vector.norm()
        else:
            vector = result.logits[0].double()
        found = torch.tensor(case['vector'], dtype=torch.float64, device=device)
        cosine = torch.nn.functional.cosine_similarity(vector, found, dim=0).item()
        difference = ((vector - found).abs().max() / vector.abs().max()).item()
        own = 0
        if task == 'reranking':
            with torch.no_grad():
                own = abs(half_model(input_ids=ids, attention_mask=torch.ones_like(ids), **more).logits[0, 0].double() - vector[0]).item()
        rows[case['layout'], case['bucket']].append((cosine, difference, vector[0].item(), found[0].item(), own))
    for (layout, bucket), values in rows.items():
        cosine = min(value[0] for value in values)
        relative = max(value[1] for value in values)
        words = f'{name:<12} {layout:<7} {bucket:<8} {len(values):>3} texts: cosine >= {cosine:.6f}, relative difference <= {relative:.1e}'
        bad = cosine < 0.999
        if task == 'reranking':
            error = max(abs(value[2] - value[3]) for value in values)
            pairs = [(a, b) for i, a in enumerate(values) for b in values[:i] if abs(a[2] - b[2]) > 2 * error]
            kept = sum((a[2] > b[2]) == (a[3] > b[3]) for a, b in pairs)
            words += f', scores within {error:.1e}, {kept} of {len(pairs)} ranks equal'
            # One value has no direction but its sign. Its error is compared with that of transformers in half precision.
            half = max(value[4] for value in values)
            words += f' (transformers in fp16: within {half:.1e})'
            bad = kept < len(pairs) or error > 5 * half + 1e-3
        failed |= bad
        print(words + ('   TOO FAR' if bad else ''), flush=True)
    del model
sys.exit(failed)
