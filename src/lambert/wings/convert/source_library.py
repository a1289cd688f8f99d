"""Computes the outputs of a model with the library that made its folder, in a process of its own:
`python source_library.py JOB.json`.

The job has the folder, the texts and the type of the numbers; the results are written beside it, as result.json and
result.npz. Nothing of Lambert is imported here, so that the comparison (`checking`) is with the library alone. Nothing
is downloaded, and no code of the folder is run.
"""

import importlib.metadata
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

_FEW = 32
"""Number of texts whose vectors are computed with each prompt of the folder."""


def by_transformers(job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the results of transformers: the token ids whole and cut, and the outputs of the model of each row.

    At each token, the logits of the row's own pieces are kept, `logits` [M, M], and the logarithm of the sum of their
    exponentials, `log_sum` [M].
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder, name = job["folder"], job["architecture"]
    if not hasattr(transformers, name):
        return {"unsupported": f"transformers {transformers.__version__} has no {name}"}, {}
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    kind = getattr(transformers, name)
    net = kind.from_pretrained(folder, local_files_only=True, dtype=getattr(torch, job["dtype"])).eval()
    limit = int(min(tokenizer.model_max_length, job["positions"]))  # a tokenizer without a limit has one of 10^30
    reads = inspect.signature(net.forward).parameters
    whole, cut, types, arrays = [], [], [], {}
    labels = net.config.id2label
    for number, row in enumerate(job["rows"]):
        texts = [[text] for text in row]  # as a batch of one: an empty second text alone would be left out
        whole.append(tokenizer(*texts, verbose=False)["input_ids"][0])
        inputs = tokenizer(*texts, truncation=True, max_length=limit, return_tensors="pt")
        cut.append(inputs["input_ids"][0].tolist())
        types.append(inputs["token_type_ids"][0].tolist() if "token_type_ids" in inputs else None)
        choices = "MultipleChoice" in name
        with torch.inference_mode():
            found = net(
                **{key: value.unsqueeze(0) if choices else value for key, value in inputs.items() if key in reads}
            )
        for key, values in _outputs(found, name, inputs["input_ids"][0]).items():
            arrays[f"{number}/{key}"] = values.numpy()
    facts = {
        "whole": whole, "cut": cut, "types": types, "limit": limit,
        "labels": [labels[number] for number in sorted(labels)],
    }  # fmt: skip
    return facts, arrays


def _outputs(found: Any, architecture: str, ids_M: Any) -> dict[str, Any]:
    """Returns the outputs of a model for one row, without the dimension of the batch."""
    if "QuestionAnswering" in architecture:
        return {"start_logits": found.start_logits[0], "end_logits": found.end_logits[0]}
    if architecture.endswith(("MaskedLM", "PreTraining")):
        logits_MV = found["prediction_logits" if "prediction_logits" in found else "logits"][0]
        return {"logits": logits_MV[:, ids_M], "log_sum": logits_MV.logsumexp(-1)}
    if "logits" in found:
        return {"logits": found.logits[0]}
    return {"states": found.last_hidden_state[0]}


def by_sentence_transformers(job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the results of sentence-transformers: token ids as cut, vectors with each prompt and without one; or for
    a CrossEncoder the scores of the pairs, as probabilities if there are several labels."""
    import torch
    import transformers
    from sentence_transformers import CrossEncoder, SentenceTransformer

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    settings: dict[str, Any] = {
        "device": "cpu", "local_files_only": True, "trust_remote_code": False,
        "model_kwargs": {"dtype": getattr(torch, job["dtype"])},
    }  # fmt: skip
    each: dict[str, Any] = {"batch_size": 1, "show_progress_bar": False}
    if job["pairs"]:
        cross = CrossEncoder(job["folder"], **settings)
        pairs = [tuple(row) for row in job["rows"]]
        labels = cross.config.id2label
        scores = np.asarray(cross.predict(pairs, **each), dtype=np.float64)
        activation = cross.activation_fn if hasattr(cross, "activation_fn") else cross.default_activation_function
        if len(labels) > 1 and isinstance(activation, torch.nn.Identity):
            several = cross.config.problem_type == "multi_label_classification"
            logits = torch.from_numpy(scores)
            scores = (logits.sigmoid() if several else logits.softmax(-1)).numpy()
        limit = cross.max_seq_length if hasattr(cross, "max_seq_length") else cross.max_length  # before version 5.4
        facts = {
            "cut": [_ids(cross, pair) for pair in pairs], "limit": limit,
            "labels": [labels[number] for number in sorted(labels)],
        }  # fmt: skip
        return facts, {"scores": scores}
    net, texts = SentenceTransformer(job["folder"], **settings), [row[0] for row in job["rows"]]
    prompts = {name: text for name, text in (net.prompts or {}).items() if text}
    arrays = {"vectors": net.encode(texts, prompt="", **each), "default": net.encode(texts[:_FEW], **each)}
    arrays |= {f"prompt/{name}": net.encode(texts[:_FEW], prompt_name=name, **each) for name in prompts}
    facts = {
        "cut": [_ids(net, text) for text in texts], "limit": net.max_seq_length, "prompts": prompts,
        "default_prompt": net.default_prompt_name,
    }  # fmt: skip
    return facts, arrays


def _ids(net: Any, text: Any) -> list[int]:
    """Returns the token ids of one text or pair, as the model gets them."""
    read = net.preprocess if hasattr(net, "preprocess") else net.tokenize  # before version 5.4
    found: list[int] = read([text])["input_ids"][0].tolist()
    return found


LIBRARIES = {"transformers": by_transformers, "sentence-transformers": by_sentence_transformers}


def main(path: Path) -> None:
    """Computes the job and writes its results. An exception of the library becomes `error` of result.json."""
    job = json.loads(path.read_text(encoding="utf-8"))
    try:
        facts, arrays = LIBRARIES[job["library"]](job)
    except Exception as error:  # of any class: a library that cannot read the folder says so in its own way
        facts, arrays = {"error": f"{type(error).__name__}: {error}"}, {}
    facts["version"] = importlib.metadata.version(job["library"])
    np.savez(path.with_name("result.npz"), **arrays)
    path.with_name("result.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
