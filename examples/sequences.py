"""A label for every word, and how sure of it: `python examples/sequences.py`.

The sentences are made up by a small grammar, the labels mark their noun phrases (B-NP, I-NP, and O outside). Some words
are ambiguous ("saw", "light"), and the test sentences have nouns that training never saw.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from extremegp import SequenceGPClassifier, load
from extremegp.metrics import SequenceMetrics

Token = tuple[str, str]  # a word, and how it ends

DETERMINERS = ("the", "a", "every")
ADJECTIVES = ("old", "cold", "light", "patient")
NOUNS = ("dogs", "saw", "light", "patient", "watch", "finds", "houses")
NEW_NOUNS = ("zebra", "piano", "comet")
VERBS = ("saw", "likes", "finds", "light", "watch")
PRONOUNS = ("she", "it", "someone")
PREPOSITIONS = ("near", "with", "under")

# Words, their neighbours and endings are features; B lets the label depend on the one before.
TEMPLATE = """
U00:%x[-1,0]
U01:%x[0,0]
U02:%x[1,0]
U03:%x[0,1]
B
"""


def sentences(n: int, nouns: tuple[str, ...], seed: int) -> tuple[list[list[Token]], list[list[str]]]:
    """Words in columns, and a label for each."""
    rng = np.random.default_rng(seed)

    def phrase() -> list[str]:
        if rng.random() < 0.2:
            return [str(rng.choice(PRONOUNS))]
        adjectives = [str(word) for word in rng.choice(ADJECTIVES, size=rng.integers(3), replace=False)]
        determiner = [str(rng.choice(DETERMINERS))] if rng.random() < 0.5 else []
        return [*determiner, *adjectives, str(rng.choice(nouns))]

    tokens, labels = [], []
    for _ in range(n):
        words: list[str] = []
        tags: list[str] = []
        for before in (None, VERBS, PREPOSITIONS)[: 2 + int(rng.integers(2))]:
            if before is not None:
                words.append(str(rng.choice(before)))
                tags.append("O")
            found = phrase()
            words += found
            tags += ["B-NP", *["I-NP"] * (len(found) - 1)]
        tokens.append([(word, word[-2:]) for word in words])
        labels.append(tags)
    return tokens, labels


def main() -> None:
    x, y = sentences(60, NOUNS, seed=0)
    test_x, test_y = sentences(200, (*NOUNS, *NEW_NOUNS), seed=1)

    tagger = SequenceGPClassifier(template=TEMPLATE, n_random_features=200, epochs=300, random_state=0, verbose=False)
    tagger.fit(x, y)
    metrics = SequenceMetrics(tagger.classes_.tolist(), spans=False)
    predicted, marginals = tagger.predict(test_x), np.concatenate(tagger.predict_marginals(test_x))
    metrics.update(test_y, predicted, marginals, sequence_log_prob=tagger.log_prob(test_x, test_y))
    measured = metrics.compute()
    for name in ("token_error", "sequence_error", "nll_struct_per_token", "ece"):
        print(f"{name:22} {measured[name]:.3f}")
    curve = metrics.risk_coverage()
    print(f"error of all tokens {curve.risk[-1]:.4f}, of the surest half {curve.risk[len(curve.risk) // 2]:.4f}")

    epistemic = np.concatenate([uncertainty.epistemic for uncertainty in tagger.predict_uncertainty(test_x)])
    right = np.concatenate(predicted) == np.concatenate(test_y)
    for name, tokens in (("right", right), ("wrong", ~right)):
        print(f"epistemic uncertainty where the label is {name}: {epistemic[tokens].mean():.3f} nats")

    words = ("the", "light", "saw", "saw", "the", "cold", "patient")
    sentence = [(word, word[-2:]) for word in words]
    for labels, log_prob in tagger.predict_k_best([sentence], k=3)[0]:
        tagged = " ".join(f"{word}/{label}" for word, label in zip(words, labels, strict=True))
        print(f"p = {np.exp(log_prob):.3f}  {tagged}")

    with TemporaryDirectory() as folder:
        tagger.save(Path(folder) / "tagger")
        again = load(Path(folder) / "tagger").predict_marginals(test_x)
    print(f"predicts the same: {np.array_equal(np.concatenate(again), marginals)}")


if __name__ == "__main__":
    main()
