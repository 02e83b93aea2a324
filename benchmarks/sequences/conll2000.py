"""Chunking of CoNLL-2000 with the CRF++ template: words and tags in a window of two, and their pairs (D section 5.3.2).

Methods are as in gpstruct.py, beside the thesis' figures. Training and test are the shared task's.
"""

from __future__ import annotations

import json

from benchmarks import common
from benchmarks.sequences import sequence_data
from extremegp.cli.settings import parse_settings
from extremegp.data import CHUNKING_TEMPLATE
from extremegp.presets import SEQUENCE_PRESETS

DEFAULT = "default"
COLUMNS = ("", "error %", "NLL unstruct", "NLL struct", "span F1", "ECE", "seconds", "peak MiB")
THESIS = (
    ("D Table 5.13: logistic regression", 4.22, 7897, "-"),
    ("D Table 5.13: flat SDGP1", 7.19, 13476, 10717),
    ("D Table 5.13: deep SDGP1", 4.17, 7222, 4942),
)


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--preset", type=common.names, default=DEFAULT, metavar="NAME,NAME", help="methods")
    options.add_argument("--limit", type=int, metavar="N", help="read so many sentences of each part only")
    common.add_parameters(options, "SequenceGPClassifier")
    args = common.parse(options)
    every = (*sequence_data.PEERS, DEFAULT, *SEQUENCE_PRESETS)
    if unknown := set(args.preset) - set(every):
        options.error(f"unknown presets {', '.join(sorted(unknown))}; known are {', '.join(every)}")
    for name in sequence_data.missing(args.preset):
        print(f"{name} is left out: pip install 'extremegp[bench]'")
        args.preset.remove(name)
    given = parse_settings(args.parameters, "SequenceGPClassifier")
    train, test = sequence_data.conll2000(args.data, CHUNKING_TEMPLATE, args.limit)
    rows, runs = [], {}
    for method in args.preset:
        preset = SEQUENCE_PRESETS.get(method)
        parameters = {"verbose": True, **(preset.settings if preset else {}), **given}
        made = sequence_data.PEERS.get(method) or sequence_data.estimator(parameters)
        runs[method] = run = sequence_data.measure(made, train, test)
        rows.append(
            [
                method,
                f"{100 * run['token_error']:.2f}",
                *(f"{run[name]:.0f}" for name in ("nll_unstruct", "nll_struct")),
                f"{100 * run['span_f1']:.2f}" if "span_f1" in run else "-",
                f"{run['ece']:.4f}",
                *(f"{run[name]:.0f}" for name in ("seconds", "peak_mib")),
            ]
        )
        if args.json is not None:
            args.json.write_text(json.dumps({"runs": runs}) + "\n", encoding="utf-8")
    rows += [[who, f"{error:.2f}", str(unstruct), str(struct), *["-"] * 4] for who, error, unstruct, struct in THESIS]
    tokens = sum(map(len, train.X))
    common.table(
        f"CoNLL-2000: {len(train.X)} training and {len(test.X)} test sentences, {tokens} tokens", COLUMNS, rows
    )
    common.finish(args.json, {"runs": runs}, args)
