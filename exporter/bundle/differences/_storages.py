"""Find the dtypes of an archive's tensors from its records, without unpickling."""

from __future__ import annotations

import json
import pickletools
import re
import zipfile
from typing import Any

_STORAGE = re.compile(r"torch (\w+)Storage")
_TYPES = {
    "Float": "<f4", "Double": "<f8", "Half": "<f2", "BFloat16": "bfloat16", "Long": "<i8", "Int": "<i4", "Short": "<i2",
    "Char": "i1", "Byte": "u1", "Bool": "u1", "ComplexFloat": "<c8", "ComplexDouble": "<c16",
}  # fmt: skip
# torch.export's dtype numbers (torch/_export/serde/schema.py, ScalarType).
_SCALARS = {
    1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f2", 7: "<f4", 8: "<f8", 10: "<c8", 11: "<c16", 12: "u1",
    13: "bfloat16",
}  # fmt: skip
_CONFIG = re.compile(r"(.*/data/(?:weights|constants)/)model_\w+_config\.json")


def types(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return the number type of each member with tensor data, as far as the archive's records state it."""
    found: dict[str, str] = {}
    for name in archive.namelist():
        folder, _, file = name.rpartition("/")
        if file in ("data.pkl", "constants.pkl"):
            stored = _storages(archive.read(name))
            found |= {f"{folder}/{file.removesuffix('.pkl')}/{key}": kind for key, kind in stored.items()}
        elif config := _CONFIG.fullmatch(name):
            for entry in json.loads(archive.read(name))["config"].values():
                if not entry["use_pickle"] and (kind := _SCALARS.get(entry["tensor_meta"]["dtype"])):
                    found[config[1] + entry["path_name"]] = kind
    return found


def _storages(data: bytes) -> dict[str, str]:
    """Return the number type of each storage that a torch pickle refers to, by its key, without unpickling.

    A persistent ID is the tuple ("storage", class, key, location, size); earlier values come from the memo.
    """
    found, pushed, memo = dict[str, str](), list[Any](), dict[Any, Any]()
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = pushed[-1] if pushed else None
        elif code.name in ("BINGET", "LONG_BINGET"):
            pushed.append(memo.get(argument))
        elif argument is not None:
            pushed.append(argument)
        elif code.name == "BINPERSID" and len(pushed) >= 5:
            _, storage, key, _, _ = pushed[-5:]
            if (named := _STORAGE.fullmatch(str(storage))) and named[1] in _TYPES:
                found[str(key)] = _TYPES[named[1]]
    return found
