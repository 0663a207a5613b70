"""Backups of whole stores, of any backend: online, incremental, checksummed; in a folder or in one file.

A place for backups holds these files, as members of a plain tar if its name ends in `.tar`:

    penstock-backup.txt                                 marks the place
    history/<first>-<last>.records                      records, each after its length (u32)
    states/<number>.cbor                                the rest of the store: consumers, logs, the ledger
    backups/<number>.json                               the manifest: its source, and all its files with checksums

Files of history never overlap and have no gaps. The next backup adds the records since, a state and a manifest.
All backups of a place are of one store and one timeline.

`copy_store` sends records and state from store to store, without a place in between.
"""

from penstock.backup.manifest import Manifest
from penstock.backup.places import Place, open_place
from penstock.backup.reader import chain, check_all
from penstock.backup.restore import Restored, Stage, restore_backup
from penstock.backup.store_copy import Copied, copy_store
from penstock.backup.writer import Written, back_up
