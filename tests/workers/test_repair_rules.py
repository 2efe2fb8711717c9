"""The rules of `exporter repair`, on source text alone, and what compares two versions of a file."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from exporter.workers.repair import branches
from exporter.workers.repair.records import Frame, Obstacle
from exporter.workers.repair.rules import order
from exporter.workers.repair.rules._rule import Failure, Proposal
from exporter.workers.repair.source import BOM, Source, unified


def proposals(text: str, failing: str, message: str = "") -> list[Proposal]:
    """Return what the rules propose if the expression `failing` of a forward fails."""
    source = Source("net.py", text.encode())
    start = source.data.index(failing.encode())
    before, upto = source.data[:start], source.data[: start + len(failing.encode())]
    frame = Frame(
        "net.py", before.count(b"\n") + 1, len(before) - before.rfind(b"\n") - 1,
        upto.count(b"\n") + 1, len(upto) - upto.rfind(b"\n") - 1,
    )  # fmt: skip
    return list(order.propose(Failure(Obstacle("", message, "", "", "", (frame,)), {"net.py": source})))


def forward(body: str) -> str:
    """Return a module with this forward."""
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), "        ")
    return f"import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n{lines}\n"


def body_of(proposal: Proposal) -> str:
    """Return the statements of the forward that a proposal makes."""
    text = proposal.data.decode()
    compile(text, "net.py", "exec")
    return textwrap.dedent(text.partition("forward(self, x):\n")[2]).strip("\n")


@pytest.mark.parametrize(("name", "bound"), [("max", "min"), ("min", "max")])
def test_a_bound_becomes_clamp(name: str, bound: str) -> None:
    """The larger of a value and 3 is at least 3."""
    made = proposals(forward(f"return {name}(x, 3)"), f"{name}(x, 3)")
    assert f"return torch.clamp(x, {bound}=3)" in [body_of(one) for one in made]


@pytest.mark.parametrize(
    ("before", "failing", "after"),
    [
        ("y = x if x.sum() > 0 else -x\nreturn y", "x.sum() > 0", "y = torch.where(x.sum() > 0, x, -x)\nreturn y"),
        ("if x.any():\n    x = x + 1\nreturn x", "x.any()", "x = torch.where(x.any(), x + 1, x)\nreturn x"),
        ("if x.any():\n    x += 1\nreturn x", "x.any()", "x = torch.where(x.any(), x + 1, x)\nreturn x"),
        ("if x.any():\n    x.mul_(2)\nreturn x", "x.any()", "x = torch.where(x.any(), x.mul(2), x)\nreturn x"),
        (
            "if x.any():\n    x[0] = 1\nreturn x",
            "x.any()",
            "x[0] = torch.where(x.any(), 1, x[0])\nreturn x",
        ),
        (
            "if x.sum():  # some\n    y = x  # kept\nelse:\n    y = -x  # turned\nreturn y",
            "x.sum()",
            "# some\n# kept\ny = torch.where(x.sum() != 0, x, -x)  # turned\nreturn y",
        ),
        (
            "if torch.equal(x, -x) or not x.any():\n    return x\nreturn -x",
            "torch.equal(x, -x)",
            "return torch.where(torch.logical_or((x == (-x)).all(), torch.logical_not(x.any())), x, -x)",
        ),
        (
            "if 0 < x.mean() < 1:\n    return x\nreturn -x",
            "0 < x.mean() < 1",
            "return torch.where(torch.logical_and(0 < x.mean(), x.mean() < 1), x, -x)",
        ),
        (
            "if self.on and x.any():\n    x = -x\nreturn x",
            "x.any()",
            "if self.on:\n    x = torch.where(x.any(), -x, x)\nreturn x",
        ),
    ],
)
def test_branches_become_where(before: str, failing: str, after: str) -> None:
    first = proposals(forward(before), failing)[0]
    assert body_of(first) == after
    assert first.note == "both sides are computed in every call"


@pytest.mark.parametrize(
    "body",
    [
        "while x.any():\n    x = x - 1\nreturn x",
        "if x.any():\n    for y in x:\n        if y:\n            break\nreturn x",
        "if x.any():\n    raise_it()\nreturn x",
        "for y in x:\n    if x.any():\n        return y\n    x = -x\nreturn x",
    ],
)
def test_branches_that_no_rule_rewrites(body: str) -> None:
    assert proposals(forward(body), "x.any()") == []


def test_sides_of_several_statements_become_functions() -> None:
    body = "if x.any():\n    a = x + 1\n    y = a * 2\nelse:\n    # nothing\n    y = x\n    y = y + 1\nreturn y"
    cond, where = proposals(forward(body), "x.any()")
    assert body_of(cond) == (
        "def if_true():\n    a = x + 1\n    y = a * 2\n    return y\n\ndef if_false():\n    # nothing\n    y = x\n"
        "    y = y + 1\n    return y\n\ny = torch.cond(x.any(), if_true, if_false, ())\nreturn y"
    )
    assert "y = torch.where(x.any(), if_true(), if_false())" in body_of(where)


def test_one_of_several_early_returns() -> None:
    body = "if x.any():\n    return x\nif x.all():\n    return -x\ny = x + 1\nreturn y"
    (made,) = proposals(forward(body), "x.any()")
    assert body_of(made) == (
        "returns_early = x.any()\nearly_value = x\nreturns_early_2 = x.all()\nearly_value_2 = -x\ny = x + 1\n"
        "return torch.where(returns_early, early_value, torch.where(returns_early_2, early_value_2, y))"
    )


def test_a_check_is_kept_in_python() -> None:
    asserted, left_out = proposals(forward('assert x.all(), "bad"\nreturn x'), 'assert x.all(), "bad"')
    assert body_of(asserted) == (
        'if torch.compiler.is_compiling():\n    torch._assert_async(x.all(), "bad")\n'
        'else:\n    assert x.all(), "bad"\nreturn x'
    )
    assert body_of(left_out) == 'assert torch.compiler.is_compiling() or x.all(), "bad"\nreturn x'


def test_an_exception_is_kept_in_python() -> None:
    asserted, left_out = proposals(forward('if x.any():\n    raise ValueError("bad")\nreturn x'), "x.any()")
    assert body_of(asserted) == (
        'if torch.compiler.is_compiling():\n    torch._assert_async(torch.logical_not(x.any()), "bad")\n'
        'elif x.any():\n    raise ValueError("bad")\nreturn x'
    )
    assert "if not torch.compiler.is_compiling() and x.any():" in body_of(left_out)


def test_what_torch_suggests_is_stated_before_the_statement() -> None:
    message = (
        "To fix the error, insert one of the following checks:\n  1. torch._check(n <= 4)\n  2. torch._check(u0 < 3)"
    )
    made = proposals(forward("n = x.max().item()\ny = x[:n]\nreturn y"), "x[:n]", message)
    (check,) = [one for one in made if "torch._check" in one.text]
    assert body_of(check) == "n = x.max().item()\ntorch._check(n <= 4)\ny = x[:n]\nreturn y"


def test_torch_is_imported_if_it_is_not() -> None:
    text = '"""A net."""\nfrom __future__ import annotations\n\n\nclass Net:\n    def forward(self, x):\n'
    text += "        print(x)\n        return x\n"
    (made,) = proposals(text, "print(x)")
    assert made.data.decode().splitlines()[2] == "import torch"
    assert "        if not torch.compiler.is_compiling():\n            print(x)\n" in made.data.decode()


def test_another_name_of_torch_is_used() -> None:
    text = "import torch as th\n\n\nclass Net:\n    def forward(self, x):\n        return x if x.any() else -x\n"
    assert b"th.where(x.any(), x, -x)" in proposals(text, "x.any()")[0].data


def test_columns_are_bytes_and_line_ends_are_kept() -> None:
    text = forward('é = "äöü"; y = x if x.any() else -x\nreturn y').replace("\n", "\r\n")
    (made, *_) = proposals(text, "x.any()")
    assert 'é = "äöü"; y = torch.where(x.any(), x, -x)\r\n'.encode() in made.data
    assert made.data.count(b"\n") == made.data.count(b"\r\n")
    source = Source("net.py", BOM + b"x = 1\n")
    assert source.replaced([(4, 5, "2")]) == BOM + b"x = 2\n"


@pytest.mark.parametrize("data", [b"x = (\n", b"x = '\xff'\n", b"x = 1\ry = 2\r"])
def test_files_that_cannot_be_changed(data: bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        Source("net.py", data)


def test_tests_that_a_patch_removes_are_found() -> None:
    old = forward("if self.on:\n    x = x + 1\nif x.any():\n    x = x * 2\nassert x.all()\nreturn x")
    new = forward("if self.on:\n    x = x + 1\nx = torch.where(x.any(), x * 2, x)\nreturn x")
    sites = branches.changed(Source("net.py", old.encode()), Source("net.py", new.encode()))
    assert [(site.test, site.kind) for site in sites] == [("x.any()", "branch"), ("x.all()", "check")]


def test_one_of_two_equal_tests_is_found() -> None:
    old = forward("if x.any():\n    x = x + 1\nif x.any():\n    x = x * 2\nreturn x")
    new = forward("x = torch.where(x.any(), x + 1, x)\nif x.any():\n    x = x * 2\nreturn x")
    assert len(branches.changed(Source("net.py", old.encode()), Source("net.py", new.encode()))) == 2


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("if x.any():\n    logger.info('x')", "effect"),
        ("if x.any():\n    x = -x", "branch"),
        ("if x.any():\n    raise ValueError", "check"),
        ("if n not in self.seen:\n    self.seen[n] = x", "memo"),
        ("if n not in self.seen:\n    self.other[n] = x", "branch"),
    ],
)
def test_kinds_of_tests(statement: str, kind: str) -> None:
    old = Source("net.py", forward(f"{statement}\nreturn x").encode())
    (site,) = branches.changed(old, Source("net.py", forward("return x").encode()))
    assert site.kind == kind


def test_instrumented_source_computes_the_same() -> None:
    text = (
        "def f(a, b):\n    if (a if a > b else b) > 1:\n        return 'é' if not a else 2\n"
        "    while a: a -= 1\n    assert a == 0, a\n    return 3\n"
    )
    source = Source("net.py", text.encode())
    sites = branches.changed(source, Source("net.py", b"pass\n"))
    assert len(sites) == 5
    seen: list[str] = []

    def saw(key: str, value: object) -> object:
        seen.append(key)
        return value

    changed = branches.instrumented(source, sites)
    assert changed.count(b"\n") == text.count("\n")
    plain: dict[str, object] = {}
    watched: dict[str, object] = {branches.SAW: saw}
    exec(text, plain)
    exec(changed, watched)
    for a, b in ((0, 0), (1, 0), (2, 1), (0, 3)):
        assert watched["f"](a, b) == plain["f"](a, b)  # type: ignore[operator]
    assert set(seen) == {site.key for site in sites}


def test_diffs_of_files_without_a_last_line_break() -> None:
    diff = unified("net.py", b"a\nb", b"a\nc")
    assert diff == (
        "--- net.py\n+++ net.py\n@@ -1,2 +1,2 @@\n a\n"
        "-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )


def test_every_rule_is_listed() -> None:
    folder = Path(order.__file__).parent
    files = {file.stem for file in folder.glob("*.py")} - {"__init__", "_rule", "order"}
    assert {rule.__module__.rpartition(".")[2] for rule in order.RULES} == files
    assert all(ast.get_docstring(ast.parse((folder / f"{name}.py").read_text())) for name in files)
