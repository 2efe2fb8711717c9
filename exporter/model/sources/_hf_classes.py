"""Selecting the transformers class of a model: the one its configuration names, or the one for a task."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from exporter.core.errors import RecipeError

UNLISTED_TASKS = {  # transformers 5 has classes for these, but no pipeline
    "question-answering": "AutoModelForQuestionAnswering",
    "summarization": "AutoModelForSeq2SeqLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "translation": "AutoModelForSeq2SeqLM",
}


def choose(name: str, config: Any, task: str = "") -> Any:
    """Return the model class of a configuration. Raises RecipeError if there is none or only the repository has it."""
    if task:
        return _for_task(name, config, task)
    for architecture in config.architectures or ():
        if (found := _native(architecture)) is not None:
            return found
        if architecture in str(getattr(config, "auto_map", None)):
            raise remote_code(name)
    for auto in _auto_classes():
        if (found := _of(auto, config)) is not None:
            return found
    raise RecipeError(
        f"transformers has no stand-alone model for {config.model_type}",
        "give the model that contains it, or a part of it",
    )


def remote_code(name: str) -> RecipeError:
    """Return the error for a model that only code in its repository can build."""
    return RecipeError(
        f"{name} is built by code in its repository, which hf: does not run",
        "read that code; if you trust it, write a recipe FILE.py:NAME, with functions NAME and NAME_inputs",
    )


def _native(architecture: str) -> Any:
    import transformers

    found = getattr(transformers, architecture, None)
    return found if hasattr(found, "from_pretrained") else None


def _for_task(name: str, config: Any, task: str) -> Any:
    tasks = _tasks()
    if task not in tasks:
        close = difflib.get_close_matches(task, tasks, n=3)
        raise RecipeError(f"unknown task {task!r}", f"choose one of {', '.join(close or sorted(tasks))}")
    for auto in tasks[task]:
        if (found := _of(auto, config)) is not None:
            return found
    possible = [other for other, autos in tasks.items() if any(_of(auto, config) is not None for auto in autos)]
    raise RecipeError(
        f"transformers has no {config.model_type} for {task}",
        f"{name} supports {', '.join(sorted(possible)) or 'none'}",
    )


def _tasks() -> dict[str, tuple[Any, ...]]:
    import transformers
    from transformers.pipelines import SUPPORTED_TASKS, TASK_ALIASES

    listed: dict[str, Any] = SUPPORTED_TASKS
    tasks: dict[str, tuple[Any, ...]] = {task: (getattr(transformers, auto),) for task, auto in UNLISTED_TASKS.items()}
    tasks |= {task: entry["pt"] for task, entry in listed.items()}
    return tasks | {alias: tasks[task] for alias, task in TASK_ALIASES.items()}


def _auto_classes() -> Iterator[Any]:
    """Yield AutoModel, then the auto classes with a head, in transformers' order."""
    from transformers.models.auto import modeling_auto

    yield modeling_auto.AutoModel
    for name, found in vars(modeling_auto).items():
        if name.startswith("AutoModelFor") and hasattr(found, "_model_mapping"):
            yield found


def _of(auto: Any, config: Any) -> Any:
    """Return the (first) class that an auto class maps this configuration to, or None."""
    found = auto._model_mapping.get(type(config), None)
    return found[0] if isinstance(found, tuple) else found
