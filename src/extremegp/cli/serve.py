"""Serve saved models over HTTP: suggest labels, and learn and forget documents (extra `serve`).

The address of a model is that of its folder's name. / is a page to try models
on, /docs says what programs can ask, /metrics counts for Prometheus. The JSON
of Annif's REST service (/v1/projects/...) and that of Label Studio's machine
learning backends (/predict, /setup, /webhook) are understood too.

Models change only for who has the token of --token-file, and only models of
label trees can. Every change is on the disk before it is answered. Without
--host only this machine reaches the server.

\b
Examples:
  extremegp serve model
  extremegp serve subjects tags --port 8080 --token-file token.txt
"""

from __future__ import annotations

from pathlib import Path

from extremegp.cli import options
from extremegp.cli.app import say
from extremegp.cli.console import load_libraries
from extremegp.errors import DataError, SettingsError

_SHORTEST_TOKEN = 8


def serve(
    models: options.Models,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    token_file: options.TokenFile = None,
    max_body: options.MaxBody = 1 << 20,
    max_documents: options.MaxDocuments = 64,
    queue: options.Queue = 512,
    timeout: options.Timeout = 30.0,
    quiet: options.Quiet = False,
) -> None:
    """Open the models, and answer until told to stop."""
    token = None if token_file is None else _token(token_file)
    load_libraries(quiet)
    try:
        from extremegp.server import Limits, ServedModel, make_app
        from extremegp.server.run import run
    except ImportError as error:
        raise SettingsError("serving needs starlette and uvicorn: pip install 'extremegp[serve]'") from error
    limits = Limits(body_bytes=max_body, documents=max_documents, queue=queue, seconds=timeout, batch=max_documents)
    names = [folder.resolve().name for folder in models]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"two models have the name {twice[0]!r}: rename a folder")
    served = [ServedModel(folder, limits, changes=token is not None) for folder in models]
    for model in served:
        if not quiet:
            what = "learns" if model.learns else "does not learn"
            say(f"{model.name}: {len(model.model.classes_)} labels, {model.model.n_rows_} rows; {what}")
    run(make_app(served, token=token, limits=limits), host=host, port=port, announce=None if quiet else say)


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("the token cannot be read", path=path) from error
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or any(map(str.isspace, token)):
        raise DataError(f"a token is one ASCII word of at least {_SHORTEST_TOKEN} characters", path=path)
    return token
