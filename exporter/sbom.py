"""`bom.cdx.json`: the model, its artifacts, and the packages that made them, as a CycloneDX bill of materials.

Its form is that of CycloneDX 1.7 (https://cyclonedx.org/docs/1.7/json/). What is not known is left out.
"""

from __future__ import annotations

import importlib.metadata
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from exporter import environment, targets
from exporter.errors import ArtifactError
from exporter.records import Manifest

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

Distributions = dict[str, importlib.metadata.Distribution]
OPTIONAL = ("timm", "torchao", "triton")
LICENCE_CHARACTERS = 80  # some distributions give the whole text instead of a name


def render(manifest: Manifest, files: Mapping[str, str]) -> str:
    """The bill as JSON, the same for the same run. `files` are the hashes of the artifacts and the golden, by path."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    packages = _packages(manifest)
    libraries = {name: _library(found) for name, found in packages.items()}
    made = [_file(name, digest) for name, digest in sorted(files.items())]
    model = _model(manifest)
    platforms = list(_platforms())
    bom = Bom(
        components=[*made, *libraries.values(), *platforms],
        metadata=BomMetaData(
            timestamp=datetime.fromisoformat(manifest.created),
            tools=ToolRepository(components=[_exporter(manifest)]),
            component=model,
        ),
    )
    roots = [libraries[name] for name in _roots(manifest) if name in libraries]
    bom.register_dependency(model, [*made, *roots])
    for component in made:
        bom.register_dependency(component, [*roots, *platforms])
    for name, found in packages.items():
        bom.register_dependency(libraries[name], [libraries[needed] for needed in _needs(found) if needed in libraries])
    content = json.dumps([manifest.model.name, manifest.created, manifest.command, sorted(files.items())])
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, content)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_7).output_as_string(indent=2) + "\n"


def hashes(data: bytes) -> dict[str, str]:
    """The hashes of the files that a bill tells of, by path. ArtifactError for what is no bill."""
    try:
        found = json.loads(data)
        if found["bomFormat"] != "CycloneDX":
            raise ValueError("of another format")
        files = [component for component in found["components"] if component["type"] == "file"]
        return {str(file["name"]): str(file["hashes"][0]["content"]) for file in files}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ArtifactError(f"it is no CycloneDX bill of materials: {error}") from error


def _model(manifest: Manifest) -> Component:
    from cyclonedx.model import ExternalReference, ExternalReferenceType, Property, XsUri
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    model = manifest.model
    facts = {"source": model.source, "weights": model.weights, "parameters": str(model.parameters or "")}
    facts |= {"seed": str(model.seed)}
    package = model.origin.startswith("pkg:")
    link = [ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(model.origin))]
    return Component(
        name=model.name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        licenses=_licences(model.licence),
        purl=PackageURL.from_string(model.origin) if package else None,
        external_references=link if model.origin and not package else [],
        properties=[Property(name=f"exporter:{name}", value=value) for name, value in facts.items() if value],
    )


def _file(name: str, digest: str) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType

    hashed = [HashType(alg=HashAlgorithm.SHA_256, content=digest)]
    return Component(name=name, type=ComponentType.FILE, bom_ref=f"file:{name}", hashes=hashed)


def _exporter(manifest: Manifest) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    return Component(name="exporter", version=manifest.exporter, type=ComponentType.APPLICATION, bom_ref="exporter")


def _library(found: importlib.metadata.Distribution) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    name, version = _name(found.metadata["Name"]), found.version
    local = found.read_text("direct_url.json") is not None  # of a folder or a repository, and not from an index
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={version}",
        purl=None if local else PackageURL("pypi", None, name, version),
        licenses=_licences(_licence(found.metadata)),
    )


def _platforms() -> Iterator[Component]:
    from cyclonedx.model.component import Component, ComponentType

    if cuda := environment.cuda():
        yield Component(name="CUDA", version=cuda, type=ComponentType.PLATFORM, bom_ref="cuda")
    if driver := environment.driver():
        yield Component(name="NVIDIA driver", version=driver, type=ComponentType.DEVICE_DRIVER, bom_ref="driver")


def _licence(metadata: Any) -> str:
    """What a distribution says of its licence, in the newest of the three ways; "" for none, or a whole text."""
    classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    said = metadata.get("License-Expression") or metadata.get("License") or (classifiers or [""])[0]
    return said if len(said) <= LICENCE_CHARACTERS and said.isprintable() else ""


def _licences(text: str) -> Iterable[Any]:
    from cyclonedx.contrib.license.factories import LicenseFactory

    return [LicenseFactory().make_from_string(text)] if text else []


def _packages(manifest: Manifest) -> Distributions:
    """What is installed of the packages that the run's targets stand on, and of all that these need, by name."""
    found: Distributions = {}
    waiting = list(_roots(manifest))
    while waiting:
        name = waiting.pop()
        if name not in found:
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            waiting += _needs(found[name])
    return dict(sorted(found.items()))


def _roots(manifest: Manifest) -> list[str]:
    known = [targets.get(v.target) for v in manifest.variants if v.target in targets.names()]
    needed = [name for target in known for either in target.requires for name in either.split("|")]
    return sorted({_name(name) for name in (*environment.DISTRIBUTIONS, *OPTIONAL, *needed)})


def _needs(found: importlib.metadata.Distribution) -> list[str]:
    """The distributions that one needs here, extras aside."""
    from packaging.requirements import Requirement

    needed = [Requirement(line) for line in found.requires or ()]
    return [_name(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]


def _name(distribution: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(distribution)
