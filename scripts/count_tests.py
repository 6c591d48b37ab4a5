"""Counts the tests in JUnit files, as CTest and pytest write them, and prints one line.

Exits with 1 if a test failed, if a file is missing (its runner crashed), or if it holds no test.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def count(path: Path) -> tuple[int, int, int]:
    """Returns the numbers of tests that passed, failed and were skipped."""
    passed = failed = skipped = 0
    for case in ET.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(names: list[str]) -> int:
    """Prints the sums over the files `names`; a file without results counts as one failure."""
    passed = failed = skipped = 0
    for name in names:
        path = Path(name)
        counts = count(path) if path.exists() else (0, 0, 0)
        if not any(counts):
            print(f"{name}: no test results", file=sys.stderr)
            counts = (0, 1, 0)
        passed, failed, skipped = (
            passed + counts[0],
            failed + counts[1],
            skipped + counts[2],
        )
    line = f"{passed} passed, {failed} failed"
    print(f"{line}, {skipped} skipped" if skipped else line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
