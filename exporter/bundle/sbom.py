"""`bom.cdx.json`: a CycloneDX bill of materials with the model, its artifacts and the packages that made them.

The format is CycloneDX 1.7 (https://cyclonedx.org/docs/1.7/json/). Unknown fields are omitted.
"""

from __future__ import annotations

import importlib.metadata
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.exception.model import InvalidUriException
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from exporter import targets
from exporter.core import environment
from exporter.core.errors import ArtifactError
from exporter.core.records import Manifest, ModelRecord

OPTIONAL = ("timm",)  # included if installed
LICENCE_CHARACTERS = 80  # some distributions have the whole text instead of a name


def render(manifest: Manifest, files: Mapping[str, str]) -> str:
    """Return the bill as JSON, reproducibly. `files` has the hashes of the artifacts and the golden, by path."""
    model = _model(manifest.model)
    made = [_file(name, digest) for name, digest in sorted(files.items())]
    roots = _roots(manifest)
    packages, needs = _closure(roots)
    libraries = {name: _library(name, package) for name, package in sorted(packages.items())}
    platforms = list(_platforms())
    tool = Component(name="exporter", version=manifest.exporter, type=ComponentType.APPLICATION, bom_ref="exporter")
    bom = Bom(
        components=[*made, *libraries.values(), *platforms],
        metadata=BomMetaData(
            timestamp=datetime.fromisoformat(manifest.created),
            tools=ToolRepository(components=[tool]),
            component=model,
        ),
    )
    needed_by_all = [*(libraries[name] for name in roots if name in libraries), *platforms]
    for component in (model, *made):
        bom.register_dependency(component, needed_by_all if component in made else [*made, *needed_by_all])
    for name, needed in needs.items():
        bom.register_dependency(libraries[name], [libraries[other] for other in needed if other in libraries])
    content = json.dumps([manifest.model.name, manifest.created, manifest.command, sorted(files.items())])
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, content)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_7).output_as_string(indent=2) + "\n"


def hashes(data: bytes) -> dict[str, str]:
    """Read the hashes of files in a bill, by path. Raises ArtifactError if it is not valid."""
    try:
        found = json.loads(data)
        if found["bomFormat"] != "CycloneDX":
            raise ValueError("wrong format")
        files = [component for component in found["components"] if component["type"] == "file"]
        return {str(file["name"]): str(file["hashes"][0]["content"]) for file in files}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ArtifactError(f"it is not a CycloneDX bill of materials: {error}") from error


def _model(model: ModelRecord) -> Component:
    facts = {"source": model.source, "weights": model.weights, "parameters": str(model.parameters or "")}
    facts |= {"seed": str(model.seed), "origin": model.origin}
    component = Component(
        name=model.name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        licenses=_licences(model.licence),
        properties=[Property(name=f"exporter:{name}", value=value) for name, value in facts.items() if value],
    )
    with suppress(ValueError, InvalidUriException):  # the user's recipe may have any text there
        if model.origin.startswith("pkg:"):
            component.purl = PackageURL.from_string(model.origin)
        elif "://" in model.origin:
            link = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(model.origin))
            component.external_references = [link]
    return component


def _file(name: str, digest: str) -> Component:
    hashed = [HashType(alg=HashAlgorithm.SHA_256, content=digest)]
    return Component(name=name, type=ComponentType.FILE, bom_ref=f"file:{name}", hashes=hashed)


def _library(name: str, package: importlib.metadata.Distribution) -> Component:
    local = package.read_text("direct_url.json") is not None  # from a folder or a repository, not from an index
    return Component(
        name=name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"package:{name}",
        purl=None if local else PackageURL("pypi", None, name, package.version),
        licenses=_licences(_licence(package.metadata)),
    )


def _licence(metadata: Any) -> str:
    """Return the licence of a distribution, from the most recent of three metadata fields."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    named = str(metadata.get("License") or "")
    if named and named.isprintable() and len(named) <= LICENCE_CHARACTERS:
        return named
    classifiers = metadata.get_all("Classifier") or ()
    return next((str(c).rpartition(" :: ")[2] for c in classifiers if c.startswith("License ::")), "")


def _licences(text: str) -> Iterable[License]:
    return [LicenseFactory().make_from_string(text)] if text else []


def _platforms() -> Iterator[Component]:
    if cuda := environment.cuda():
        yield Component(name="CUDA", version=cuda, type=ComponentType.PLATFORM, bom_ref="cuda")
    if driver := environment.driver():
        yield Component(name="NVIDIA driver", version=driver, type=ComponentType.DEVICE_DRIVER, bom_ref="driver")


def _roots(manifest: Manifest) -> list[str]:
    """Return the distributions that the run's targets and recipes depend on directly."""
    needed = targets.distributions((variant.target for variant in manifest.variants), optional=True)
    return sorted({canonicalize_name(name) for name in (*environment.DISTRIBUTIONS, *OPTIONAL, *needed)})


def _closure(roots: Iterable[str]) -> tuple[dict[str, importlib.metadata.Distribution], dict[str, set[str]]]:
    """Return the installed transitive dependencies of `roots`, and the direct dependencies of each; both by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    needs: dict[str, set[str]] = {}
    waiting, seen = [Requirement(name) for name in roots], set()
    while waiting:
        wanted = waiting.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) not in seen:
            seen.add((name, extras))
            with suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.distribution(name)
                needed = list(_needed(found[name], extras))
                needs.setdefault(name, set()).update(canonicalize_name(other.name) for other in needed)
                waiting += needed
    return found, needs


def _needed(package: importlib.metadata.Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements of a distribution on this machine, with these extras."""
    for line in package.requires or ():
        with suppress(InvalidRequirement):  # written before requirements were standardised
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                yield needed
