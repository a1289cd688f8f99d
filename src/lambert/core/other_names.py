"""Maps names of settings and tasks in other libraries to Lambert's.

Sources: the arguments of transformers' Trainer, its example scripts and its pipelines; sentence-transformers; PyTorch.
"""

from collections.abc import Collection, Mapping

SETTINGS: Mapping[str, tuple[str, ...]] = {
    name: tuple(ours.split())
    for names, ours in {
        "learning_rate": "optim.lr",
        "num_train_epochs num_epochs n_epochs epoch": "train.epochs",
        "max_steps num_steps num_training_steps": "train.steps",
        "per_device_train_batch_size per_gpu_train_batch_size train_batch_size bs": "train.batch_size",
        "max_seq_length max_seq_len max_len model_max_length max_length block_size":
            "task.max_length packing.sequence_length",
        "model model_name model_name_or_path pretrained_model_name_or_path base_model encoder checkpoint": "init model",
        "output_dir output out_dir save_dir": "out",
        "out": "predictions",
        "data": "input",
        "train_file train_data train_dataset train dataset dataset_name": "data corpus",
        "test_file test_data test_dataset eval_file eval_data": "data",
        "validation_file validation_data eval_dataset validation valid val dev_data dev_file": "dev",
        "text_column text_column_name": "task.columns.text columns.text text_field",
        "label_column label_column_name": "task.columns.label columns.label",
        "num_labels id2label label2id label_list": "task.labels",
        "label_smoothing_factor": "task.label_smoothing",
        "optimizer": "optim.name",
        "lr_scheduler lr_scheduler_type scheduler": "optim.schedule",
        "num_warmup_steps": "optim.warmup_steps",
        "warmup_proportion": "optim.warmup_ratio",
        "adam_beta1 adam_beta2": "optim.betas",
        "adam_epsilon": "optim.eps",
        "fp16 bf16 amp dtype torch_dtype": "train.precision inference.precision",
        "torch_compile": "train.compile",
        "eval_steps eval_strategy evaluation_strategy": "train.evaluate_every",
        "save_strategy": "train.save_every",
        "save_total_limit": "train.keep_checkpoints",
        "load_best_model_at_end metric_for_best_model": "train.keep_best",
        "early_stopping early_stopping_patience": "train.patience",
        "logging_steps": "log.every",
        "report_to": "log.trackers",
        "verbose": "log.console",
        "random_state": "seed",
        "mlm_probability": "masking.rate",
        "hidden_size": "model.hidden",
        "num_hidden_layers num_layers n_layers": "model.layers",
        "num_attention_heads num_heads n_heads": "model.heads",
        "intermediate_size": "model.intermediate",
        "vocab_size": "model.vocabulary vocabulary",
        "max_position_embeddings": "model.positions",
    }.items()
    for name in names.split()
}  # fmt: skip
"""From the last part of a name to the possible dotted names, of which a verb has one."""

TASKS: Mapping[str, str] = {
    name: ours
    for names, ours in {
        "text-classification sequence-classification classification classifier sentiment sentiment-analysis topic "
        "intent nli entailment": "classify",
        "multi-label multi-label-classification multilabel-classification": "multilabel",
        "regression text-regression": "regress",
        "multiple-choice": "choice",
        "qa question-answering extractive-qa squad_v2": "squad",
        "ner token-classification tagging pos chunking": "tag",
        "sentence-similarity feature-extraction similarity sts embedding embeddings vectors retrieval": "embed",
        "fill-mask mlm masked-lm": "mask",
    }.items()
    for name in names.split()
}
"""Names of tasks in other libraries, and Lambert's names of them."""


def our_setting(name: str, known: Collection[str]) -> str:
    """Returns which of the `known` dotted names an unknown name means: by the names of other libraries, or because only
    one table has a setting of that name; "" if none is found, or the table of the name does not exist."""
    table, _, leaf = name.rpartition(".")
    if table and len(within := [ours for ours in known if ours.endswith(f".{name}")]) == 1:
        return within[0]
    if table and not any(ours.startswith(f"{table}.") for ours in known):
        return ""  # the table is misspelt
    leaf = leaf.replace("-", "_").lower()
    named = [ours for ours in SETTINGS.get(leaf, ()) if ours in known and ours != name]
    same = [ours for ours in known if ours.rpartition(".")[2] == leaf and ours != name]
    return same[0] if len(same) == 1 else (named or [""])[0]


def our_task(name: str) -> str:
    """Returns Lambert's name of a task of another library; "" if it is unknown."""
    return TASKS.get(name.lower().replace("_", "-"), TASKS.get(name.lower(), ""))
