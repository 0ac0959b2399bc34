"""How much code there is: `python scripts/lines.py [FOLDER]`.

Lines of code without blanks, comments and docstrings; of whole files the median and the longest.
"""

import argparse
import ast
import io
import tokenize
from pathlib import Path
from statistics import median

LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """The lines of a source that hold code.

    >>> code_lines("# why\\n\\nx = 1\\n")
    1
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def main() -> None:
    """Print the counts of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("src/upscale"))
    texts = [path.read_text() for path in sorted(parser.parse_args().folder.rglob("*.py"))]
    lengths = [len(text.splitlines()) for text in texts]
    print(f"{sum(map(code_lines, texts)):,} lines of code in {len(texts)} files")
    print(f"a file has {median(lengths):.0f} lines in the median, {max(lengths)} at most")


if __name__ == "__main__":
    main()
