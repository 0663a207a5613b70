"""Remits: bytes to requests on logs and iterators, replies to bytes. See docs/protocols/remits.md.

`frames` splits bytes into frames, `operations` is the table of all operations, `cbor` validates messages.
"""
