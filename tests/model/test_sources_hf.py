"""Recipes from transformers: small models of many architectures, folders, the hub and its errors. No network."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Cli
from torch.utils import _pytree as pytree

from exporter.core.errors import RecipeError
from exporter.model import recipes
from exporter.model.recipes import example_sizes
from exporter.model.sources import _hf_hub

transformers = pytest.importorskip("transformers")

TEXT = {"batch": (1, 64), "sequence": (1, 512)}
BOTH = {**TEXT, "decoder_sequence": (1, 512)}
ARCHITECTURES = {
    "bert": (["input_ids", "attention_mask", "token_type_ids", "use_cache"], TEXT),
    "gpt2": (["input_ids", "attention_mask", "use_cache"], TEXT),
    "llama": (["input_ids", "attention_mask", "use_cache"], TEXT),
    "falcon": (["input_ids", "attention_mask", "use_cache"], TEXT),
    "mixtral": (["input_ids", "attention_mask", "use_cache"], TEXT),
    "t5": (["input_ids", "attention_mask", "decoder_input_ids", "use_cache"], BOTH),
    "mamba2": (["input_ids", "attention_mask", "use_cache"], TEXT),
    "xlnet": (["input_ids", "attention_mask", "use_mems"], TEXT),
    "funnel": (["input_ids", "attention_mask"], {"batch": (1, 64), "sequence": (5, 512)}),
    "layoutlm": (["input_ids", "bbox", "attention_mask", "token_type_ids"], TEXT),
    "vit": (["pixel_values"], {"batch": (1, 64)}),
    "detr": (["pixel_values"], {"batch": (1, 64), "height": (32, 512), "width": (32, 512)}),
    "wav2vec2": (["input_values"], {"batch": (1, 64), "samples": (720, 160_000)}),
    "whisper": (
        ["input_features", "decoder_input_ids", "use_cache"],
        {"batch": (1, 64), "decoder_sequence": (1, 448)},
    ),
    "speech_to_text": (
        ["input_features", "decoder_input_ids", "use_cache"],
        {"batch": (1, 64), "decoder_sequence": (1, 512), "frames": (8, 1000)},
    ),
    "clip": (["input_ids", "pixel_values", "attention_mask"], {"batch": (1, 64), "sequence": (1, 77)}),
    "vilt": (
        ["input_ids", "attention_mask", "token_type_ids", "pixel_values"],
        {"batch": (1, 64), "sequence": (1, 40)},
    ),
    "videomae": (["pixel_values"], {"batch": (1, 64)}),
    "canine": (
        ["input_ids", "attention_mask", "token_type_ids"],
        {"batch": (1, 64), "sequence": (4, 512)},
    ),
    "esm": (["input_ids", "attention_mask"], TEXT),
    "clap": (["input_ids", "input_features", "attention_mask"], TEXT),
    "patchtst": (["past_values"], {"batch": (1, 64)}),
    "sam": (["pixel_values"], {"batch": (1, 64)}),
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Disable the hub, and use an empty cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(_hf_hub, "online", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def recipe(name: str, task: str = "") -> Any:
    return recipes.load(recipes.find(f"hf:{name}", task=task))


def run(made: Any, model: torch.nn.Module, **sizes: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**made.inputs(**sizes))
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name: str) -> None:
    """A model is small, runs at the ends of its ranges, depends only on the seed, and returns no cache."""
    made = recipe(name)
    arguments, sizes = ARCHITECTURES[name]
    assert made.sizes == sizes
    assert list(made.inputs()) == arguments
    torch.manual_seed(0)
    model = made.load("auto")
    assert not model.training
    assert model.exporter_weights == "random"
    assert sum(p.numel() for p in model.parameters()) < 4e6
    first = run(made, model)
    assert first
    assert all(torch.isfinite(t).all() for t in first if t.is_floating_point())
    assert all(torch.equal(a, b) for a, b in zip(first, run(made, model), strict=True))
    shapes = [t.shape for t in first]
    for size, (least, most) in sizes.items():
        for value in {least, min(most, 3 * example_sizes(made.inputs)[size]) + 1}:
            if least <= value <= most:
                assert [len(t.shape) for t in run(made, model, **{size: value})] == [len(shape) for shape in shapes]


def test_an_image_has_enough_pixels_for_a_detector() -> None:
    """It takes its 300 queries from the pixels of three maps."""
    made = recipe("rt_detr")
    assert made.sizes == {"batch": (1, 64), "height": (128, 512), "width": (128, 512)}
    assert example_sizes(made.inputs) == {"batch": 1, "height": 128, "width": 128}
    assert recipe("deformable_detr").sizes["height"] == (32, 512), "its queries are learned"


def test_an_architecture_whose_parts_do_not_fit_when_small_is_whole() -> None:
    made = recipe("cvt")
    assert run(made, made.load("auto"))


def test_statistics_of_random_weights_are_of_several_rows() -> None:
    """With those of two rows, an output of this model was 1e12."""
    made = recipe("levit")
    torch.manual_seed(0)
    assert max(float(t.abs().max()) for t in run(made, made.load("auto"))) < 1e4


def test_the_same_architectures_export(cli: Cli, tmp_path: Path) -> None:
    """They have two dynamic sizes and a constant among the inputs."""
    options = ["--targets", "trace", "--no-bench", "--device", "cpu", "--json", "-q", "--out", tmp_path / "bundle"]
    done = cli("export", "hf:gpt2", *options)
    assert done.code == 0, done.err
    manifest = json.loads(done.out)
    assert manifest["model"]["weights"] == "random"
    assert [spec["name"] for spec in manifest["contract"]["inputs"]] == ["input_ids", "attention_mask"]
    assert manifest["contract"]["outputs"][0]["shape"] == ["batch", "sequence", 96]
    assert "use_cache" in json.dumps(manifest["contract"]["constants"])


def test_an_error_about_a_name_is_one_line(cli: Cli, tmp_path: Path) -> None:
    done = cli("export", "hf:./nowhere", "--targets", "trace", "--no-bench", "-q", "--out", tmp_path / "bundle")
    assert done.code == 2
    assert "there is no folder ./nowhere" in done.err


def test_the_signature_of_inputs_has_the_sizes() -> None:
    made = recipe("t5")
    assert example_sizes(made.inputs) == {"batch": 1, "sequence": 14, "decoder_sequence": 14}
    inputs = made.inputs(batch=2, sequence=5, decoder_sequence=3)
    assert inputs["input_ids"].shape == (2, 5)
    assert inputs["decoder_input_ids"].shape == (2, 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'height'"):
        made.inputs(height=3)


def test_recipes_are_found_and_private_modules_are_not() -> None:
    assert "hf" in recipes.sources()
    assert not [name for name in recipes.sources() if name.startswith("_")]
    assert recipes.find("hf:google-bert/bert-base-uncased").label == "bert-base-uncased"
    assert recipes.find("hf:./tests/").label == "tests"


def test_text_inputs() -> None:
    """Every other row ends with padding, ids are not special tokens, and the second half is a second text."""
    inputs = recipe("bert").inputs(batch=4, sequence=6)
    assert inputs["attention_mask"].tolist() == [[1] * 6, [1] * 5 + [0]] * 2
    assert inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]] * 4
    assert inputs["input_ids"][1, -1] == 0
    words = inputs["input_ids"][inputs["attention_mask"] == 1]
    assert int(words.min()) >= 100
    assert int(words.max()) < 1000


def test_text_inputs_of_models_that_search_for_the_end_token() -> None:
    made = recipe("clip")
    inputs = made.inputs(batch=2, sequence=6)
    end = made.load("auto").config.text_config.eos_token_id
    assert [(row == end).nonzero().flatten().tolist() for row in inputs["input_ids"]] == [[5], [4]]


def test_positions_that_are_counted_from_the_padding_token() -> None:
    made = recipe("roberta")
    assert made.sizes["sequence"] == (1, 510)  # 512 rows, two of which are unused
    assert run(made, made.load("auto"), sequence=510)


def test_boxes_have_their_corners_in_order() -> None:
    left, top, right, bottom = recipe("layoutlm").inputs(batch=2)["bbox"].unbind(-1)
    assert bool((left <= right).all())
    assert bool((top <= bottom).all())


def test_no_random_weights_are_all_zero_or_one() -> None:
    """Losing a bias, layer scale or batch norm must change the outputs."""
    model = recipe("convnext").load("auto")
    assert all(p.std() > 0 for p in model.parameters() if p.numel() > 1)
    statistics = {n: b for n, b in recipe("resnet").load("auto").named_buffers() if "running" in n}
    assert statistics
    assert all(values.std() > 0.01 for values in statistics.values())
    assert all((values > 0).all() for name, values in statistics.items() if name.endswith("var"))
    means = torch.cat([values for name, values in statistics.items() if name.endswith("mean")])
    assert means.min() < 0 < means.max()  # together, because the few of one layer may have one sign by chance


def test_random_weights_come_from_the_seed() -> None:
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(recipe("bert").load("random").state_dict())
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert not torch.equal(models[0]["pooler.dense.weight"], models[2]["pooler.dense.weight"])


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        ("bert", "fill-mask", "BertForMaskedLM"),
        ("bert", "question-answering", "BertForQuestionAnswering"),
        ("bart", "text-classification", "BartForSequenceClassification"),
        ("gpt2", "text-generation", "GPT2LMHeadModel"),
        ("gpt2", "text-classification", "GPT2ForSequenceClassification"),
        ("vit", "image-classification", "ViTForImageClassification"),
        ("wav2vec2", "automatic-speech-recognition", "Wav2Vec2ForCTC"),
        ("whisper", "automatic-speech-recognition", "WhisperForConditionalGeneration"),
    ],
)
def test_tasks(name: str, task: str, expected: str) -> None:
    made = recipe(name, task)
    model = made.load("auto")
    assert type(model).__name__ == expected
    assert run(made, model, batch=2)


@pytest.mark.parametrize(
    ("name", "task", "message", "remedy"),
    [
        ("bert", "image-classification", "no bert for image-classification", "fill-mask"),
        ("bert", "fill-masks", "unknown task 'fill-masks'", "fill-mask"),
        ("llava", "", "LlavaModel takes pixel_values, for which hf: has no example", "NAME_inputs"),
        ("decision_transformer", "", "takes states", "FILE.py:NAME"),
        ("clip_text_modle", "", "is not in .*cache", "did you mean hf:clip_text_model"),
        ("./nowhere", "", "there is no folder ./nowhere", "check the path"),
        ("a b/c", "", "a b/c is not a valid model ID", "hf:ORGANISATION/NAME"),
        (
            "nobody/nothing",
            "",
            "nobody/nothing is not in .*cache, and https://.* does not answer",
            "hf download nobody",
        ),
    ],
)
def test_unavailable_names(name: str, task: str, message: str, remedy: str) -> None:
    with pytest.raises(RecipeError, match=message) as raised:
        recipe(name, task)
    assert remedy in raised.value.remedy


def test_an_architecture_has_no_pretrained_weights() -> None:
    with pytest.raises(RecipeError, match="bert is an architecture") as raised:
        recipe("bert").load("pretrained")
    assert "hf:ORGANISATION/NAME" in raised.value.remedy


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, written by save_pretrained. Do not change it; use `folder` for that."""
    from exporter.model.sources import _hf_small

    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("saved") / "small-bert"
    transformers.BertForMaskedLM(_hf_small.config(transformers.BertConfig)).save_pretrained(path)
    return path


@pytest.fixture
def folder(saved_model: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    copy = tmp_path / "small-bert"
    copy.mkdir()
    for file in saved_model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def test_a_folder(folder: Path) -> None:
    made = recipe(str(folder))
    model = made.load("auto")
    assert (type(model).__name__, model.exporter_weights) == ("BertForMaskedLM", "pretrained")
    expected = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    assert all(torch.equal(a, b) for a, b in zip(run(made, model), run(made, expected), strict=True))
    random = made.load("random")
    assert random.exporter_weights == "random"
    assert not torch.equal(random.cls.predictions.bias, model.cls.predictions.bias)


def test_half_precision_weights_are_read_as_float32(folder: Path) -> None:
    transformers.BertForMaskedLM.from_pretrained(folder).half().save_pretrained(folder)
    for weights in ("pretrained", "random"):
        assert {p.dtype for p in recipe(str(folder)).load(weights).parameters()} == {torch.float32}


def test_weights_that_the_files_lack_are_named(folder: Path) -> None:
    made = recipe(str(folder), "text-classification")
    with pytest.warns(UserWarning, match=r"random weights for .*classifier.bias, classifier.weight"):
        model = made.load("pretrained")
    assert model.exporter_weights == "pretrained"


def test_weights_of_another_model(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"something.else": torch.ones(3)}, folder / "model.safetensors")
    with pytest.raises(RecipeError, match="has no weights of BertForMaskedLM"):
        recipe(str(folder)).load("auto")


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    made = recipe(str(folder))
    with pytest.raises(RecipeError, match="has no weights") as raised:
        made.load("pretrained")
    assert "model.safetensors" in raised.value.remedy
    with pytest.warns(UserWarning, match="random weights: .* has no weights; --weights pretrained makes this an error"):
        assert made.load("auto").exporter_weights == "random"


@pytest.mark.parametrize("weights", ["auto", "pretrained"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: b"", r"\(0 bytes\) is broken"),
        (lambda whole: whole[: len(whole) // 2], "is broken"),
        (lambda whole: whole[:5], r"\(5 bytes\) is broken"),
        (lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git-lfs pointer"),
    ],
)
def test_broken_weights_are_never_replaced_by_random_ones(
    folder: Path, content: Any, message: str, weights: str
) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(RecipeError, match=message) as raised:
        recipe(str(folder)).load(weights)
    assert "model.safetensors" in str(raised.value)
    assert raised.value.remedy == "copy model.safetensors again"


def test_a_torch_archive(folder: Path) -> None:
    model = transformers.BertForMaskedLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    loaded = recipe(str(folder)).load("pretrained")
    assert torch.equal(loaded.cls.predictions.bias, model.cls.predictions.bias)
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-100])
    with pytest.raises(RecipeError, match=r"pytorch_model.bin .* is broken"):
        recipe(str(folder)).load("pretrained")


class Trap:
    """A pickle that creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_torch_archive_runs_no_code(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
    with pytest.raises(RecipeError, match="cannot be loaded"):
        recipe(str(folder)).load("auto")
    assert not (tmp_path / "sprung").exists()


def test_shards(folder: Path) -> None:
    model = transformers.BertForMaskedLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="400KB")
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    assert recipe(str(folder)).load("pretrained").exporter_weights == "pretrained"
    shards[1].unlink()
    with pytest.raises(RecipeError, match=f"lacks 1 of {len(shards)} shards: {shards[1].name}"):
        recipe(str(folder)).load("auto")


@pytest.mark.parametrize(
    ("config", "message", "remedy"),
    [
        ("", "config.json is broken: Expecting value", "copy config.json again"),
        ('{"model_type": "bert"', "config.json is broken", "copy config.json again"),
        ("[]", "is not a configuration: it holds a list", "copy config.json again"),
        ('{"model_type": "bort"}', "does not know bort", "upgrade transformers"),
        (
            '{"model_type": "bert", "hidden_size": "wide"}',
            "is not a valid configuration of transformers",
            "FILE.py:NAME",
        ),
        ("{}", "is not a valid configuration of transformers", "FILE.py:NAME"),
        (
            '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.MyConfig"}}',
            "built by code in its repository, which hf: does not run",
            "write a recipe",
        ),
        (
            '{"model_type": "bert", "architectures": ["Mine"], "auto_map": {"AutoModel": "mine.Mine"}}',
            "built by code in its repository, which hf: does not run",
            "write a recipe",
        ),
    ],
)
def test_unusable_configurations(folder: Path, config: str, message: str, remedy: str) -> None:
    (folder / "config.json").write_text(config)
    (folder / "mine.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.raises(RecipeError, match=message) as raised:
        recipe(str(folder))
    assert remedy in raised.value.remedy
    assert not (folder / "ran").exists()


def test_kernels_named_by_a_configuration_are_not_downloaded(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"_attn_implementation": "acme/attention"}))
    for weights in ("pretrained", "random"):
        assert recipe(str(folder)).load(weights).config._attn_implementation in ("sdpa", "eager")


def test_quantized_weights(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    with pytest.raises(RecipeError, match=r"quantized \(gptq\)"):
        recipe(str(folder)).load("auto")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"has no config.json"):
        recipe(str(tmp_path))
    (tmp_path / "x").touch()
    with pytest.raises(RecipeError, match="is a file"):
        recipe(str(tmp_path / "x"))


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(folder: Path, tmp_path: Path) -> Path:
    """The folder of the model in the hub's cache, as acme/small in the client's layout."""
    place = tmp_path / "cache" / "models--acme--small"
    snapshot = place / "snapshots" / COMMIT
    for made in (place / "refs", place / "blobs", snapshot):
        made.mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    for file in (folder / "config.json", folder / "model.safetensors"):
        blob = place / "blobs" / file.name.replace(".", "-")
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return place


def test_from_the_cache(cached: Path) -> None:
    for weights in ("auto", "pretrained"):
        model = recipe("acme/small").load(weights)
        assert model.exporter_weights == "pretrained"
        assert (model.exporter_origin, model.exporter_licence) == (f"pkg:huggingface/acme/small@{COMMIT}", "")


@pytest.mark.parametrize(
    ("card", "licence"),
    [("---\nlicense: apache-2.0\n---\n# Small\n", "apache-2.0"), ("# Small\n", ""), ("---\nlicense: [\n---\n", "")],
)
def test_the_licence_in_a_card(cached: Path, card: str, licence: str) -> None:
    (cached / "snapshots" / COMMIT / "README.md").write_text(card)
    assert recipe("acme/small").load("auto").exporter_licence == licence


def test_an_unfinished_download(cached: Path) -> None:
    (cached / "blobs" / "model-safetensors").rename(cached / "blobs" / "1234.5678.incomplete")
    made = recipe("acme/small")
    with pytest.raises(RecipeError, match=r"the download of acme/small is incomplete .*\.incomplete") as raised:
        made.load("pretrained")
    assert "hf download acme/small" in raised.value.remedy
    with pytest.warns(UserWarning, match="random weights: the download of acme/small is incomplete"):
        assert made.load("auto").exporter_weights == "random"


def test_a_truncated_cached_file(cached: Path) -> None:
    blob = cached / "blobs" / "model-safetensors"
    blob.write_bytes(blob.read_bytes()[:1000])
    with pytest.raises(RecipeError, match=r"\(1,000 bytes\) is broken") as raised:
        recipe("acme/small").load("auto")
    assert f"delete {cached / 'snapshots' / COMMIT / 'model.safetensors'} with {blob}" in raised.value.remedy
    (cached / "blobs" / "config-json").write_text('{"model_type"')
    with pytest.raises(RecipeError, match=r"config.json is broken") as raised:
        recipe("acme/small")
    assert "hf download acme/small config.json" in raised.value.remedy


class Hub(ThreadingHTTPServer):
    """A hub with one model, acme/small, with files from a folder; if set, `refusal` is its answer instead."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Answer))
        self.folder, self.refusal = folder, (0, "")
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    """Answers like the hub for files of `main` and of the tag v1."""

    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        status, code = self.server.refusal
        file = self.server.folder / self.path.rpartition("/")[2]
        if not status and "/acme/small/resolve/" not in self.path:
            status, code = 404, "RepoNotFound"
        if not status and self.path.split("/resolve/")[1].partition("/")[0] not in ("main", "v1", COMMIT):
            status, code = 404, "RevisionNotFound"
        if not status and not file.is_file():
            status, code = 404, "EntryNotFound"
        content = b"" if status else file.read_bytes()
        self.send_response(status or 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Error-Code", code)
        self.send_header("ETag", f'"{file.name}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *words: Any) -> None:
        """Print nothing."""


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A local hub that hf: uses instead of the real one."""
    from huggingface_hub import constants

    with Hub(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(_hf_hub, "online", lambda: True)
        yield server
        server.shutdown()


def test_from_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recipe("acme/small").load("pretrained").exporter_weights == "pretrained"
    monkeypatch.setattr(_hf_hub, "online", lambda: False)
    assert recipe("acme/small").load("pretrained").exporter_weights == "pretrained"


def test_a_revision(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recipe("acme/small@v1").load("pretrained").exporter_weights == "pretrained"
    with pytest.raises(RecipeError, match="acme/small has no revision v2") as raised:
        recipe("acme/small@v2")
    assert "after the @" in raised.value.remedy
    monkeypatch.setattr(_hf_hub, "online", lambda: False)
    assert recipe("acme/small@v1").load("pretrained").exporter_weights == "pretrained"
    with pytest.raises(RecipeError, match=r"holds acme/small@v2 without its config\.json") as raised:
        recipe("acme/small@v2")
    assert "hf download acme/small --revision v2" in raised.value.remedy


def test_torch_archives_from_the_hub(hub: Hub) -> None:
    torch.save(transformers.BertForMaskedLM.from_pretrained(hub.folder).state_dict(), hub.folder / "pytorch_model.bin")
    (hub.folder / "model.safetensors").unlink()
    assert recipe("acme/small").load("pretrained").exporter_weights == "pretrained"


@pytest.mark.parametrize(
    ("refusal", "name", "message", "remedy"),
    [
        ((403, "GatedRepo"), "acme/small", "acme/small is gated", "hf auth login"),
        ((401, "RepoNotFound"), "acme/small", "the hub has no model acme/small, or it is private", "check the ID"),
        ((0, ""), "acme/other", "the hub has no model acme/other", "check the ID"),
    ],
)
def test_refusals_of_the_hub(hub: Hub, refusal: tuple[int, str], name: str, message: str, remedy: str) -> None:
    hub.refusal = refusal
    with pytest.raises(RecipeError, match=message) as raised:
        recipe(name)
    assert remedy in raised.value.remedy


def test_refused_weights(hub: Hub) -> None:
    made = recipe("acme/small")
    hub.refusal = (403, "GatedRepo")
    with pytest.raises(RecipeError, match="acme/small is gated"):
        made.load("pretrained")
    with pytest.warns(UserWarning, match="random weights: acme/small is gated"):
        assert made.load("auto").exporter_weights == "random"


def test_files_missing_on_the_hub(hub: Hub) -> None:
    made = recipe("acme/small")
    (hub.folder / "model.safetensors").unlink()
    with pytest.raises(RecipeError, match="acme/small has no weights for PyTorch"):
        made.load("auto")
    (hub.folder / "config.json").unlink()
    with pytest.raises(RecipeError, match=r"acme/small has no config\.json"):
        recipe("acme/small")


def test_the_availability_of_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    asked = _hf_hub.online.__wrapped__
    assert asked()
    hub.refusal = (503, "")
    assert asked()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not asked()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.shutdown()
    hub.server_close()
    assert not asked()


def test_a_hub_that_does_not_answer_costs_only_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    from huggingface_hub import constants

    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(_hf_hub, "ANSWER_S", 0.2)
        started = time.monotonic()
        assert not _hf_hub.online.__wrapped__()
        assert time.monotonic() - started < 5
