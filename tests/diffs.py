"""A diff, applied as `patch` does: every line that it names has to be where it says."""

from __future__ import annotations

import re


def apply_diff(before: str, diff: str) -> str:
    """Return ``before`` with a unified diff of one file applied; AssertionError where it does not fit."""
    if not diff:
        return before
    lines, out, at = re.findall(r"[^\n]*\n|[^\n]+", before), [], 0
    changes = re.findall(r"[^\n]*\n", diff)
    assert changes[0].startswith("--- ")
    assert changes[1].startswith("+++ ")
    position, side = 2, ""
    while position < len(changes):
        line = changes[position]
        position += 1
        if line.startswith("@@ "):
            first, count = re.match(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@", line).groups()
            start = int(first) - (count != "0")
            assert start >= at
            out += lines[at:start]
            at = start
            continue
        side, text = line[0], line[1:]
        if position < len(changes) and changes[position].startswith("\\"):
            text = text.removesuffix("\n")
            position += 1
        if side in " -":
            assert lines[at] == text
            at += 1
        if side in " +":
            out.append(text)
    return "".join(out + lines[at:])
