"""`exporter doctor`: report what is installed, what is missing, and what to install."""

from __future__ import annotations

import click


@click.command(name="doctor")
def command() -> int:
    """Check this machine: packages, compiler, GPU, the C++ runner. Exit code 1 if something is broken."""
    from exporter.runs import doctor

    findings = doctor.examine()
    marks = {
        "ok": click.style("ok  ", fg="green"),
        "note": click.style("note", fg="yellow"),
        "bad": click.style("BAD ", fg="red"),
    }
    for finding in findings:
        click.echo(f"{marks[finding.level]}  {finding.what:<16} {finding.detail}")
        if finding.remedy:
            click.echo(f"{'':<22} {finding.remedy}")
    return 1 if any(f.level == "bad" for f in findings) else 0
