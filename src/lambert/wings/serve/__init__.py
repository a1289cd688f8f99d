"""The HTTP service: text models behind a queue that counts tokens, and a page for trying them."""

from lambert.verb import Verb

VERBS = (
    Verb(
        "serve",
        "Serves models over HTTP, with a page to try them.",
        "wings.serve.server:serve",
        "wings.serve.config:ServeConfig",
        order=80,
        takes="flags",
        less_memory="Lower max_waiting_tokens or workers, or serve fewer models.",
        computes=True,
        replaces=True,
        reloads=True,
    ),
)
