"""Print what no test has seen of the schemas, after all tiers ran: `make test schemas`.

Ends with 1 if no document of a command was checked at all.
"""

import sys

from dflash_deploy.schemas.table import NAMES
from tests.support.schemas import closed
from tests.support.schemas.seen import FOLDER, saved, unseen

seen = saved()
tiers = sorted(file.stem for file in FOLDER.glob("*.json"))
print(f"tiers: {', '.join(tiers) or 'none has run'}")
for name in NAMES:
    for path in unseen(name, closed(name), seen) if name in seen else ():
        print(f"never seen: {name}: {path}")
unused = [name for name in NAMES if name not in seen]
for name in unused:
    print(f"no document was checked: {name}")
sys.exit(bool(unused))
