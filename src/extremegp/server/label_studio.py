"""The forms of Label Studio's machine learning backends: predictions for tasks, and annotations to learn from."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any, NamedTuple

from extremegp.server.limits import Limits, RequestError
from extremegp.server.served import Answer

_LEARNT_FROM = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")
_LONGEST_CONFIG = 1 << 18


class Control(NamedTuple):
    """Which tag of a labelling configuration labels which text.

    Attributes:
        name: of the tag with the choices.
        to_name: of the tag with the text.
        kind: "choices" or "taxonomy".
        key: of a task's data, which the text is under.
    """

    name: str = "labels"
    to_name: str = "text"
    kind: str = "choices"
    key: str = "text"


def control_of(config: Any) -> Control:
    """The first tag of choices in a configuration, and what it labels.

    Raises:
        RequestError: it is no configuration with such a tag.
    """
    if config in (None, ""):
        return Control()
    # Entities can expand without end, and no configuration needs a document type.
    if not isinstance(config, str) or len(config) > _LONGEST_CONFIG or "<!" in config.replace("<!--", ""):
        raise RequestError(400, "the labelling configuration is not XML without a document type")
    try:
        root = ET.fromstring(config)
    except ET.ParseError as error:
        raise RequestError(400, f"the labelling configuration is not XML: {error}") from None
    texts = {tag.get("name"): tag.get("value", "") for tag in root.iter() if tag.tag in ("Text", "HyperText")}
    for tag in root.iter():
        if tag.tag in ("Choices", "Taxonomy") and tag.get("toName") in texts and tag.get("name"):
            to_name = str(tag.get("toName"))
            return Control(str(tag.get("name")), to_name, tag.tag.lower(), texts[to_name].lstrip("$"))
    raise RequestError(400, "the labelling configuration has no Choices or Taxonomy of a Text")


def texts_of(tasks: Any, control: Control, limits: Limits) -> list[str]:
    """The texts of tasks.

    Raises:
        RequestError: there are none, or too many.
    """
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise RequestError(400, '"tasks" must be a list of tasks')
    if len(tasks) > limits.documents:
        raise RequestError(413, f"these are {len(tasks)} tasks, and at most {limits.documents} are answered at once")
    texts = []
    for task in tasks:
        data = task.get("data")
        text = data.get(control.key) if isinstance(data, dict) else None
        if not isinstance(text, str):
            raise RequestError(400, f'a task has no text under data, "{control.key}"')
        texts.append(text)
    return texts


def prediction(answer: Answer, control: Control, threshold: float, version: str) -> dict[str, Any]:
    """What is said of a task: the labels that apply rather than not, or the best alone."""
    chosen = [each for each in answer.labels if each.probability >= threshold] or answer.labels[:1]
    score = sum(each.probability for each in chosen) / len(chosen) if chosen else 0.0
    labels: list[Any] = [str(each.label) for each in chosen]
    if control.kind == "taxonomy":
        labels = [[label] for label in labels]
    result = {
        "from_name": control.name,
        "to_name": control.to_name,
        "type": control.kind,
        "value": {control.kind: labels},
        "score": score,
    }
    return {"result": [result], "score": score, "model_version": version}


def annotation_of(body: Any) -> tuple[str, list[str], str] | None:
    """Text, labels and name of what a webhook tells; None where there is nothing to learn.

    Raises:
        RequestError: it is no such call.
    """
    if not isinstance(body, dict) or not isinstance(body.get("action"), str):
        raise RequestError(400, 'the body must be an object with an "action"')
    annotation, task = body.get("annotation"), body.get("task")
    if body["action"] not in _LEARNT_FROM:
        return None
    if not isinstance(annotation, dict) or not isinstance(task, dict) or not isinstance(annotation.get("result"), list):
        raise RequestError(400, 'the body must have a "task" and an "annotation" with a "result"')
    data = task.get("data")
    strings = [value for value in data.values() if isinstance(value, str)] if isinstance(data, dict) else []
    text = data.get("text") if isinstance(data, dict) and isinstance(data.get("text"), str) else None
    if text is None and len(strings) == 1:
        text = strings[0]
    if text is None:
        raise RequestError(400, "the task has no text")
    labels: list[str] = []
    for result in annotation["result"]:
        value = result.get("value") if isinstance(result, dict) else None
        if not isinstance(value, dict):
            continue
        labels += [each for each in value.get("choices", []) if isinstance(each, str)]
        paths = value.get("taxonomy", [])
        labels += [path[-1] for path in paths if isinstance(path, list) and path and isinstance(path[-1], str)]
    if annotation.get("was_cancelled") is True or not labels:
        return None
    return text, labels, f"label-studio-task-{task.get('id', 'unnamed')}"
