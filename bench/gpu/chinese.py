"""Writes Chinese texts, each of its own: chinese.py TOKENIZER.json OUT. 6,000 lines of about 250 tokens, drawn (seeded) from the
pieces of a unigram vocabulary that are all Han characters. No meaning, but the cost of long real text: no spaces, and hardly
a stretch of it twice."""
import json
import random
import sys

random.seed(20261130)
pieces = [piece for piece, _ in json.load(open(sys.argv[1]))['model']['vocab']]
han = [piece for piece in pieces if piece and all('\u4e00' <= letter <= '\u9fff' for letter in piece)]
with open(sys.argv[2], 'w') as out:
    for _ in range(6_000):
        words = random.choices(han, k=250)
        for index in range(random.randint(10, 20), 250, 17):
            words[index] = random.choice('，。、；')
        out.write(''.join(words) + '\n')
