"""A served model under load from another process of this machine: one client, many clients, and learning meanwhile.

Models that are not in --models are trained there first, by the command line with its defaults for --kind. One text is
asked for at a time by one client, then by --clients at once, and then documents are learnt too, each tenth request. At
the end every document that was answered must be in the saved model. Memory is that of the server.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import lzma
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import common
from extremegp import load

TOKEN = "token-of-a-benchmark"
COLUMNS = (
    "",
    "one client: median ms",
    "p99 ms",
    "many clients: texts/s",
    "median ms",
    "p99 ms",
    "with learning: requests/s",
    "p99 ms",
    "learnt",
    "errors",
    "lost",
    "MB before",
    "MB after",
)


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="tib_subjects,debian_tags", metavar="NAME,NAME")
    options.add_argument("--kind", choices=("tree", "factor"), default="tree", help="of the models")
    options.add_argument("--models", type=Path, metavar="DIR", help="folder of the models; by default a temporary one")
    options.add_argument("--clients", type=int, default=16)
    options.add_argument("--requests", type=int, default=2000, help="of each kind of load")
    args = common.parse(options)
    with tempfile.TemporaryDirectory() as temporary:
        results = {name: served(args, name, args.models or Path(temporary)) for name in args.sets}
    common.table("Served over HTTP on this machine", COLUMNS, [row(name, result) for name, result in results.items()])
    common.finish(args.json, {"results": results}, args)


def texts_of(folder: Path, name: str) -> tuple[list[str], list[list[str]]]:
    """Texts of a dataset with their labels."""
    if (folder / name / "train.tsv.gz").is_file():
        with gzip.open(folder / name / "train.tsv.gz", "rt", encoding="utf-8") as lines:
            pairs = [line.rstrip("\n").split("\t") for line in lines]
        return [text for text, _ in pairs], [labels.split() for _, labels in pairs]
    with lzma.open(folder / "debian_packages" / "packages.json.xz") as stream:
        packages = [package for package in json.load(stream) if package[4]]
    return [package[1] for package in packages], [package[4] for package in packages]


def served(args: argparse.Namespace, name: str, models: Path) -> dict[str, Any]:
    texts, labels = texts_of(args.data, name)
    folder = models / f"{name}-{args.kind}"
    n_asked = len(texts) // 10
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        data = folder.parent / f"{name}.jsonl"
        pairs = zip(texts[n_asked:], labels[n_asked:], strict=True)
        data.write_text("".join(json.dumps({"text": t, "labels": y}) + "\n" for t, y in pairs), encoding="utf-8")
        command = [sys.executable, "-m", "extremegp", "train", str(data), "--out", str(folder), "--model", args.kind]
        subprocess.run([*command, "--quiet", "--seed", "0"], check=True)
    before = load(folder).n_rows_
    token = models / "token"
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "extremegp", "serve", str(folder), "--port", "0", "--token-file", str(token)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        port = next(int(found[1]) for line in server.stderr if (found := re.search(r"127.0.0.1:(\d+)/", line)))
        try:
            found = loaded(args, port, folder.name, texts[:n_asked], labels[:n_asked], psutil.Process(server.pid))
        finally:
            server.terminate()
    return found | {"lost": found["learnt"] - (load(folder).n_rows_ - before)}


def loaded(
    args: argparse.Namespace, port: int, model: str, texts: list[str], labels: list[list[str]], server: psutil.Process
) -> dict[str, Any]:
    """Times of all kinds of load, and what went wrong."""

    def together(n_clients: int, n_requests: int, learning: bool) -> dict[str, Any]:
        seconds: list[float] = []
        counts = {"errors": 0, "learnt": 0}

        def client(number: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.connect()
            # As clients do that send head and body at once.
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
            for turn in range(n_requests // n_clients):
                place = (number + n_clients * turn) % len(texts)
                teach = learning and turn % 10 == 0
                body: dict[str, Any] = {"text": texts[place], "k": 5}
                if teach:
                    body = {"documents": [{"text": texts[place], "labels": labels[place]}]}
                started = time.perf_counter()
                connection.request(
                    "POST", f"/models/{model}/{'learn' if teach else 'suggest'}", json.dumps(body), headers
                )
                answer = connection.getresponse()
                answer.read()
                if not teach:
                    seconds.append(time.perf_counter() - started)
                counts["learnt"] += answer.status == 201
                counts["errors"] += answer.status not in (200, 201)
            connection.close()

        threads = [threading.Thread(target=client, args=(number,)) for number in range(n_clients)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - started
        median, p99 = 1e3 * np.quantile(seconds, [0.5, 0.99])
        return {"median": float(median), "p99": float(p99), "rate": n_requests / took} | counts

    together(1, 50, False)
    bytes_before = server.memory_info().rss
    one = together(1, args.requests // 4, False)
    many = together(args.clients, args.requests, False)
    mixed = together(args.clients, args.requests, args.kind == "tree")
    parts = {"one": one, "many": many, "mixed": mixed}
    errors, learnt = (sum(part[what] for part in parts.values()) for what in ("errors", "learnt"))
    held = {"bytes_before": bytes_before, "bytes_after": server.memory_info().rss}
    return parts | {"errors": errors, "learnt": learnt} | held


def row(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    one, many, mixed = result["one"], result["many"], result["mixed"]
    times = (one["median"], one["p99"], many["rate"], many["median"], many["p99"], mixed["rate"], mixed["p99"])
    counts = (str(result[what]) for what in ("learnt", "errors", "lost"))
    sizes = (f"{result[what] / 1e6:.0f}" for what in ("bytes_before", "bytes_after"))
    return (name, *(f"{value:.1f}" for value in times), *counts, *sizes)
