"""Backups of whole stores, of any backend: online, incremental, checksummed; in a folder or in one file.

A place for backups holds these files, as members of a plain tar if its name ends in `.tar`:

    penstock-backup.txt                                 says what it is
    history/<first>-<last>.records                      records one after the other, each after its length (u32)
    states/<number>.cbor                                all else that the store held: consumers, logs, the ledger
    backups/<number>.json                               the manifest: what it is of, and all its files with checksums

Files of history never overlap and leave nothing out. The next backup adds the records since, a state and a manifest.
All backups of a place are of one store and one timeline.

Records and state go from store to store as well, without a place in between: `copy_store` moves one to another backend.
"""

from penstock.backup.copying import Copied, copy_store
from penstock.backup.manifests import Manifest
from penstock.backup.opening import open_place
from penstock.backup.places import Place
from penstock.backup.reading import chain, check_all
from penstock.backup.restoring import Restored, Stage, restore
from penstock.backup.writing import Written, back_up

__all__ = [
    "Copied",
    "Manifest",
    "Place",
    "Restored",
    "Stage",
    "Written",
    "back_up",
    "chain",
    "check_all",
    "copy_store",
    "open_place",
    "restore",
]
