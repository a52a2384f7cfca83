"""Files and links that the documents name are there."""

import os
import pathlib
import re
import sys

SOURCE = pathlib.Path(os.environ["MOEWRIGHT_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from _jobs import Checks  # noqa: E402

checks = Checks()
for document in [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").rglob("*.md"))]:
    text = document.read_text()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        checks.expect((document.parent / link).exists(), f"{document.name}: no {link}")
    for name in re.findall(r"`([a-z_]+/[\w/.*{},-]+\.(?:h|cpp|cu|py|sh|toml|json|sbatch))`", text):
        if "NAME" in name or "ROOM" in name:  # stand for the name of something
            continue
        places = [root for root in (SOURCE, SOURCE / "src") if list(root.glob(name)) or (root / name).exists()]
        checks.expect(places or "{" in name or name.startswith(("run", "build")), f"{document.name}: no {name}")
checks.finish()
