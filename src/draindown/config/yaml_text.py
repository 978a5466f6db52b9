"""Values as the text of a pipeline file, which `yaml_document` reads back as the same values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from draindown.config.yaml_document import is_text

_REFERENCE = re.compile(r"\$(?!\{secret:[A-Za-z_][A-Za-z0-9_]*\})")
_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Writes texts so that the core schema of YAML 1.2 reads them as texts."""

    def ignore_aliases(self, data: Any) -> bool:
        """Repeat values: an alias hides what a flow has."""
        del data
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None if is_text(value) else "'"
    if any(line != line.strip() or not line.isprintable() for line in value.split("\n")):
        style = '"'
    elif "\n" in value:
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def written(value: Mapping[str, Any]) -> str:
    """Return a mapping as text. Keys keep their order; the same value gives the same text.

    Raises TypeError for a value that is no text, number, truth value, null, list or mapping.
    """
    try:
        return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    except yaml.representer.RepresenterError as error:
        kind = type(error.args[-1]).__name__
        raise TypeError(f"a pipeline file can't hold a {kind}: {error.args[-1]!r}") from None


def literal(value: Any) -> Any:
    """Return values that are already filled in, spelled as a file spells them: `$` becomes `$$`,
    except in references to secrets.
    """
    if isinstance(value, Mapping):
        return {key: literal(one) for key, one in value.items()}
    if isinstance(value, list):
        return [literal(one) for one in value]
    return _REFERENCE.sub("$$", value) if isinstance(value, str) else value
